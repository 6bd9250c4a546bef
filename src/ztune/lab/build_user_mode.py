"""Builds an image whose kernel runs in user mode (UML): Linux from the distribution's source, OpenZFS in it.

OpenZFS does not know UML, and UML is compiled otherwise than the kernels that people run. ``EDITS`` says what
is changed in both for that, and why. Nothing else is: what runs is OpenZFS's kernel code.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from ztune import paths
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.lab import apt as packages
from ztune.lab import build as building
from ztune.lab import recipe
from ztune.lab.apt import Apt
from ztune.lab.image import Image, order
from ztune.lab.uml import check_rights
from ztune.packages import install_command

TOOLS = ("flex", "bison", "bc")
BUILTIN = "copy-builtin"
"""OpenZFS's script that puts its source into Linux's; Debian's package of 2.1 is without it."""
ON = """
    HOSTFS VIRTIO VIRTIO_MENU VIRTIO_UML VIRTIO_BLK BLK_DEV BLK_DEV_LOOP BLK_DEV_INITRD RD_GZIP
    DEVTMPFS TMPFS TMPFS_XATTR TMPFS_POSIX_ACL OVERLAY_FS EXT4_FS FUSE_FS PARTITION_ADVANCED
    EFI_PARTITION FS_POSIX_ACL EXPORTFS FHANDLE PROC_FS SYSFS MODULES HIGH_RES_TIMERS NO_HZ_IDLE
    POSIX_TIMERS AIO IO_URING SHMEM SYSVIPC POSIX_MQUEUE NET UNIX INET CRYPTO CRYPTO_DEFLATE
    ZLIB_INFLATE ZLIB_DEFLATE KALLSYMS TASKSTATS TASK_XACCT TASK_IO_ACCOUNTING TASK_DELAY_ACCT
    CGROUPS MEMCG BLK_CGROUP SLUB SLAB_FREELIST_RANDOM SLAB_FREELIST_HARDENED
    INIT_ON_ALLOC_DEFAULT_ON FORTIFY_SOURCE CC_OPTIMIZE_FOR_PERFORMANCE DEBUG_INFO_NONE PREEMPT_VOLUNTARY ZFS
"""
OFF = """
    DEBUG_KERNEL GCOV FTRACE WERROR UML_NET COMPAT_BRK HARDENED_USERCOPY MODULE_SIG IPV6 WLAN
    WIRELESS REISERFS_FS HID HID_SUPPORT INPUT SERIO PTP_1588_CLOCK PREEMPT_NONE
"""
VALUES = {"FRAME_WARN": "4096", "KERNEL_STACK_ORDER": "3"}
"""OpenZFS needs more than UML's stacks of 8 KiB."""
STATE_BYTES = 12288


@dataclass(frozen=True)
class Edit:
    """A change of a source file: what stands for the first match of ``find``, a regular expression."""

    file: str
    find: str
    put: str


def _without_state(name: str) -> str:
    """Return C that declares registers ``name`` without the processor's state, which is their end."""
    return (
        "\tlong room[offsetof(struct uml_pt_regs, fp) / sizeof(long)];\n"
        f"#define {name} (*(struct uml_pt_regs *)room)"
    )


LINUX = (
    # As ordinary kernels are compiled: UML does it for code beyond 2 GiB, and without builtins.
    Edit("arch/um/Makefile", r"-mcmodel=large", "-mcmodel=small"),
    Edit(
        "arch/x86/Makefile.um",
        r"(KBUILD_CFLAGS \+= -fno-builtin -m64)",
        r"\1 -mno-sse -mno-mmx -mno-sse2 -mno-3dnow -mno-avx -mno-red-zone -mskip-rax-setup -mtune=generic "
        "-falign-jumps=1 -falign-loops=1 -fcf-protection=none -fno-jump-tables",
    ),
    # UML can't be preempted anywhere, which does not keep it from making way where it might sleep, as
    # Debian's kernels do. Without it a transaction group compresses all it has before others' turn.
    Edit(
        "kernel/Kconfig.preempt",
        r"(config PREEMPT_VOLUNTARY\n.*\n)\s*depends on !ARCH_NO_PREEMPT\n",
        r"\1",
    ),
    # Room for a processor's whole state: 11,008 bytes where there is AMX. With less the host refuses to set
    # it, and the first process ends the guest. So much is not kept on stacks, where nothing reads it.
    Edit("arch/x86/um/user-offsets.c", r"HOST_FP_SIZE, 2696", f"HOST_FP_SIZE, {STATE_BYTES}"),
    Edit(
        "arch/x86/um/shared/sysdep/ptrace.h",
        r"(\tunsigned long fp\[MAX_FP_NR\];\n)((?:\t.*\n)+)\};",
        r"\2\1};",
    ),
    Edit("arch/um/include/asm/thread_info.h", r"aux_fp_regs\[FP_SIZE\]", "aux_fp_regs[1]"),
    Edit(
        "arch/um/os-Linux/skas/process.c",
        r"(get_skas_faultinfo\(int pid, struct faultinfo \*fi, unsigned long \*)aux_fp_regs\)\n\{",
        r"\1unused)\n{\n\tstatic unsigned long aux_fp_regs[FP_SIZE];",
    ),
    Edit("arch/um/os-Linux/signal.c", r"\tstruct uml_pt_regs r;", _without_state("r")),
    Edit(
        "arch/um/os-Linux/signal.c",
        r"\tstruct uml_pt_regs regs;((?:.*\n)*?.*memset\(&regs, 0, sizeof\()regs\)",
        _without_state("regs") + r"\1room)",
    ),
    # qemu-storage-daemon says 0, which Linux takes for a page: what ZFS moves at once came in pieces.
    Edit("drivers/block/virtio_blk.c", r"(size_max, &v\);\n\tif \(!err)\)", r"\1 && v != 0)"),
    Edit("lib/zlib_deflate/Makefile", r"\A", "ccflags-y += -fbuiltin\n"),
    Edit("lib/zlib_inflate/Makefile", r"\A", "ccflags-y += -fbuiltin\n"),
)
OPENZFS = (
    Edit("fs/zfs/Kbuild", r"(?m)^(ZFS_MODULE_CFLAGS \+= )", r"\1-fbuiltin "),
    # Where object files are elsewhere, $(src) is relative.
    Edit("fs/zfs/Kbuild", r"(icp_include = )\$\(src\)", r"\1$(srctree)/$(src)"),
    Edit("fs/zfs/Kbuild", r"(zstd_include = )\$\(src\)", r"\1$(srctree)/$(src)"),
    # UML has the host's features from /proc/cpuinfo, which does not say this one; without it no AVX is used.
    Edit(
        "include/zfs/os/linux/kernel/linux/simd_x86.h",
        r"#if defined\(X86_FEATURE_OSXSAVE\)",
        "#if defined(CONFIG_UML)\n\thas_osxsave = B_TRUE;\n#elif defined(X86_FEATURE_OSXSAVE)",
    ),
    # Each page of vmalloc() is a mapping of the host's: it takes linear memory where there is some.
    Edit(
        "fs/zfs/os/linux/spl/spl-kmem-cache.c",
        r"(?m)^(\tptr = spl_vmalloc\(size, lflags \| __GFP_HIGHMEM\);)",
        "\tptr = get_order(size) < MAX_ORDER ? alloc_pages_exact(size,\n"
        "\t    (lflags & ~__GFP_COMP) | __GFP_NOWARN | __GFP_NORETRY) : NULL;\n"
        "\tif (ptr == NULL)\n\\1",
    ),
    Edit(
        "fs/zfs/os/linux/spl/spl-kmem-cache.c",
        r"(?m)^\tvfree\(ptr\);",
        "\tif (is_vmalloc_addr(ptr))\n\t\tvfree(ptr);\n\telse\n\t\tfree_pages_exact(ptr, size);",
    ),
)


def build(openzfs: str | None, progress: building.Progress) -> Image:
    """Build an image whose kernel runs in user mode, or return it if it is there.

    ``openzfs``: as in ``ztune.lab.build.build``. Raises MissingError (not root, no compiler, room, package),
    InputError (no such version), ZtuneError with the lines that matter when it does not compile.
    """
    building.check_host()
    check_rights()
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise MissingError(f"a kernel in user mode is built with `{tool}`: {install_command('uml')}")
    with building.folder_for(progress) as folder:
        apt, (source, zfs) = building.offered(lambda apt: _choose(apt, openzfs), progress)
        release = f"{re.split('[-+~]', apt.versions(source)[0])[0]}-um"
        name = f"{release}_{zfs}"
        image = Image(name, release, zfs, recipe.identity(), user_mode=True, made_with=identity())
        return building.there(image, progress) or _assemble(apt, source, image, folder, progress)


def identity() -> str:
    """Return a hash of what is chosen and changed in the sources: a kernel of another one is made anew."""
    return hashlib.sha256(repr((ON, OFF, VALUES, LINUX, OPENZFS)).encode()).hexdigest()[:12]


def _choose(apt: Apt, openzfs: str | None) -> tuple[str, str]:
    """Return (package of the kernel's source, version of OpenZFS's packages)."""
    zfs = building.version_of(apt, openzfs)
    named = [name for name, _ in apt.depends("linux-source") if name.startswith("linux-source-")]
    names = named or [name for name in apt.names("^linux-source-[0-9]") if apt.versions(name)]
    if not names:
        raise MissingError("apt offers no package linux-source, the kernel's source")
    return max(names, key=order), zfs


def _assemble(apt: Apt, source: str, image: Image, folder: Path, progress: building.Progress) -> Image:
    progress(f"downloading the source of Linux {image.kernel} and OpenZFS {image.openzfs}")
    tools = building.tool_packages(apt, image.openzfs)
    for path in apt.download([source, f"zfs-dkms={image.openzfs}", *tools], folder / "packages"):
        target = "source" if path.name.startswith(("linux-source", "zfs-dkms")) else "tools"
        packages.unpack(path, folder / target)
        path.unlink()
    tree, zfs = _sources(folder / "source" / "usr" / "src", folder, image.openzfs)
    log = paths.lab() / f"build-log-{image.name}.txt"
    began = time.monotonic()
    with log.open("w") as out:
        _compile(tree, zfs, folder / "objects", building.Steps(out, log, progress), image)
    progress("packing the guest")
    part = folder / "image"
    part.mkdir()
    building.layer(folder / "tools", part / "tools")
    shutil.copyfile(folder / "objects" / "linux", part / "vmlinuz")
    (part / "vmlinuz").chmod(0o755)
    recipe.pack({}, part / "initrd")
    log.unlink()
    progress(f"compiled Linux {image.kernel} with OpenZFS in {(time.monotonic() - began) / 60:.1f} min")
    return building.install(image, part)


def _sources(packed: Path, folder: Path, openzfs: str) -> tuple[Path, Path]:
    """Return where the unpacked sources of Linux and of OpenZFS are."""
    archive = next(
        (path for path in sorted(packed.rglob("linux-source-*.tar.*")) if not path.is_symlink()), None
    )
    zfs = next(iter(packed.glob("zfs-*")), None)
    if archive is None or zfs is None:
        raise MissingError("the packages hold no source of Linux or none of OpenZFS")
    if not (zfs / BUILTIN).is_file():
        raise InputError(
            f"OpenZFS {openzfs} has no guest in user mode: its package lacks `{BUILTIN}`, which puts it into "
            f"a kernel; `ztune lab build --openzfs {openzfs}` builds the emulated guest"
        )
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "linux", filter="tar")
    archive.unlink()
    return next((folder / "linux").iterdir()), zfs


def _compile(tree: Path, zfs: Path, objects: Path, steps: building.Steps, image: Image) -> None:
    def make(what: str, *words: str, files: int = 0) -> None:
        steps.run(["make", "ARCH=um", f"O={objects}", f"-j{os.cpu_count() or 1}", *words], tree, what, files)

    linux, openzfs = f"Linux {image.kernel}", f"OpenZFS {image.openzfs}"
    edit(tree, LINUX)
    objects.mkdir()
    make(f"configuring {linux}", "x86_64_defconfig")
    _configure(tree, objects, steps)
    make(f"configuring {linux}", "olddefconfig")
    make(f"preparing {linux}", "modules_prepare")
    words = ["./configure", "--with-config=kernel", "--enable-linux-builtin"]
    where = [f"--with-linux={tree}", f"--with-linux-obj={objects}"]
    steps.run([*words, *where], zfs, f"configuring {openzfs} for it", env={"ARCH": "um"})
    steps.run(["sh", f"./{BUILTIN}", str(tree)], zfs, f"putting {openzfs} into it")
    revision = tree / "include" / "zfs" / "zfs_gitrev.h"
    if not revision.exists():  # the distribution's package has none
        revision.write_text(f'#define ZFS_META_GITREV "zfs-{image.openzfs}"\n')
    edit(tree, OPENZFS)
    _configure(tree, objects, steps)
    make(f"configuring {linux}", "olddefconfig")
    make(f"compiling {linux} with {openzfs}", "linux", files=1700)
    if not (objects / "linux").is_file():
        raise ZtuneError(f"the build of {linux} ended without a kernel; {steps.log} has what it said")


def _configure(tree: Path, objects: Path, steps: building.Steps) -> None:
    script = [str(tree / "scripts" / "config"), "--file", str(objects / ".config")]
    words = [
        *(word for key in ON.split() for word in ("-e", key)),
        *(word for key in OFF.split() for word in ("-d", key)),
    ]
    words += [word for key, value in VALUES.items() for word in ("--set-val", key, value)]
    steps.run([*script, *words], tree, "choosing what the kernel has")


def edit(tree: Path, edits: tuple[Edit, ...]) -> None:
    """Change source files below ``tree``. Raises ZtuneError naming the file in which a place is not found."""
    for one in edits:
        path = tree / one.file
        text = path.read_text() if path.is_file() else ""
        changed, times = re.subn(one.find, one.put, text, count=1)
        if times == 0:
            raise ZtuneError(
                f"OpenZFS does not go into this kernel in user mode: {one.file} is not as expected "
                f"(no {one.find!r})"
            )
        path.write_text(changed)
