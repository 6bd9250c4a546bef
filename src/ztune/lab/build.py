"""Builds a guest's image: a kernel of the distribution, OpenZFS compiled for it, and OpenZFS's tools.

Everything is downloaded and unpacked below the lab's folder; nothing is installed. What takes long, the
module, is kept for each pair of kernel and OpenZFS.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar

from ztune import paths
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.lab import apt as packages
from ztune.lab import image as images
from ztune.lab import qemu, recipe
from ztune.lab.apt import Apt
from ztune.lab.image import Image, matches, order
from ztune.onhost.host import shared_files
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.process import end_group, ends_within
from ztune.packages import install_command

Progress = Callable[[str], None]
_Chosen = TypeVar("_Chosen")
ROOM = 3 << 30
"""Bytes that a build takes at most on the way: the kernel's packages, and OpenZFS with its object files."""
BUILD_S = 3600.0
_KERNEL = re.compile(
    r"linux-image-(\d+\.\d+\.\d+-\d+(?:\.bpo\.\d+|\+deb\d+(?:\.\d+)?(?:\+\d+)?)?-(?:amd64|generic))$"
)
_FILES = 360
"""Files that OpenZFS 2.3 compiles, for the progress only."""
_MATTERS = re.compile(r"\berror\b|\*\*\*|undefined|No such file|cannot find|FATAL|ERROR", re.IGNORECASE)


def build(
    openzfs: str | None = None, kernel: str | None = None, progress: Progress = lambda _: None
) -> Image:
    """Build an image, or return it if it is there.

    ``openzfs``: version of the package or its beginning, such as ``2.1``; default the newest that apt offers.
    ``kernel``: release or its beginning, such as ``6.1``; default the distribution's own.

    Raises MissingError (no QEMU, compiler, room, package), InputError (no such version), ZtuneError with the
    lines that matter when the module does not compile.
    """
    check_host()
    with folder_for(progress) as folder:
        return _build(openzfs, kernel, folder, progress)


def check_host() -> None:
    """Raise MissingError where no image can be built."""
    if platform.machine() != "x86_64":
        raise MissingError(f"the lab's guest is an x86_64 machine, this host is {platform.machine()}")
    qemu.program()
    for tool in ("cc", "make"):
        if shutil.which(tool) is None:
            raise MissingError(
                f"the lab builds the OpenZFS module and needs `{tool}`: {install_command(tool)}"
            )
    if not recipe.AGENT.is_file():
        raise MissingError(
            f"the lab's recipe {recipe.AGENT} is not there; build the lab from ztune's source folder"
        )


@contextlib.contextmanager
def folder_for(progress: Progress) -> Iterator[Path]:
    """Yield a folder to build in, one build at a time, and remove it. Raises MissingError without room."""
    with _lock(progress):
        _sweep()
        free = shutil.disk_usage(paths.lab()).free
        if free < ROOM:
            raise MissingError(
                f"no room for the lab: {paths.lab()} has {free / 2**30:.1f} GiB free, a build takes "
                f"{ROOM >> 30} GiB; "
                f"set ZTUNE_HOME to a roomier place"
            )
        with shared_files.temporary(paths.lab(), paths.BUILD) as folder:
            folder.mkdir(mode=0o700)
            yield folder


@contextlib.contextmanager
def _lock(progress: Progress = lambda _: None) -> Iterator[None]:
    def waiting() -> None:
        progress("another build of the lab is running: waiting for it")

    with shared_files.locked(paths.lab() / "lock", waiting=waiting):
        yield


def _sweep() -> None:
    """Remove what builds that were killed left. Ours alone: the lock is held."""
    shared_files.remove_left(paths.lab(), paths.BUILD, "")
    for path in paths.lab().glob(f"{paths.BUILD}*"):  # an older ztune's have no lock of their own
        shutil.rmtree(path, ignore_errors=True)


def _build(openzfs: str | None, kernel: str | None, folder: Path, progress: Progress) -> Image:
    apt, (release, zfs) = offered(lambda apt: _choose(apt, openzfs, kernel), progress)
    image = Image(f"{release}_{zfs}", release, zfs, recipe.identity())
    return there(image, progress) or _assemble(apt, image, folder, progress)


def offered(choose: Callable[[Apt], _Chosen], progress: Progress) -> tuple[Apt, _Chosen]:
    """Return the apt configuration that has what ``choose`` wants, and what that is. Raises as it does."""
    apt = Apt()
    try:
        return apt, choose(apt)
    except (MissingError, InputError):
        # The host's lists may lack contrib or backports, or be empty: never changed, but not the last word.
        apt = packages.private(paths.lab() / "apt", progress)
        return apt, choose(apt)


def there(image: Image, progress: Progress) -> Image | None:
    """Return ``image`` if it is built, with the recipe as it is now; None if not, or not so, or damaged."""
    what = f"OpenZFS {image.openzfs} for {image.kernel}"
    for found in images.built():
        if found.name == image.name:
            if found.made_with != image.made_with:
                progress(f"{what}: built another way by another ztune, made anew")
                return None
            try:
                found.check()
            except ZtuneError:
                progress(f"{what}: damaged, made anew")
                return None
            progress(f"{what}: already built")
            return current(found)
    return None


def install(image: Image, part: Path) -> Image:
    """Put what was built in ``part`` in the place of ``image``, and return that."""
    shutil.rmtree(image.folder, ignore_errors=True)
    part.rename(image.folder)
    image.save()
    return image


def _choose(apt: Apt, openzfs: str | None, kernel: str | None) -> tuple[str, str]:
    """Return (kernel's release, version of OpenZFS's packages). Raises MissingError, InputError."""
    zfs = version_of(apt, openzfs)
    for meta in ("linux-image-amd64", "linux-image-generic"):
        if kernel is None and (names := _kernels(name for name, _ in apt.depends(meta, _own(apt, meta)))):
            return names[0], zfs
    if kernel is None:
        raise MissingError("apt offers no kernel: neither linux-image-amd64 nor linux-image-generic")
    names = [name for name in _kernels(apt.names("^linux-image-[0-9]")) if matches(name, kernel)]
    if not names:
        raise InputError(f"apt offers no generic kernel {kernel} here")
    return max(names, key=order), zfs


def version_of(apt: Apt, openzfs: str | None) -> str:
    """Return the newest version of OpenZFS's packages that fits. Raises MissingError, InputError."""
    have = apt.versions("zfs-dkms")
    if not have:
        raise MissingError("apt offers no package zfs-dkms, the source of the OpenZFS module")
    fitting = [version for version in have if openzfs is None or matches(version, openzfs)]
    if not fitting:
        raise InputError(f"apt offers OpenZFS {', '.join(have)} here, not {openzfs}")
    return max(fitting, key=order)


def _own(apt: Apt, package: str) -> str:
    """The version of the release itself, not of backports: what its users run."""
    have = apt.versions(package)
    return next((version for version in have if "~bpo" not in version), have[0] if have else "")


def _kernels(names: Iterator[str] | list[str]) -> list[str]:
    return [match[1] for name in names if (match := _KERNEL.match(name))]


def _assemble(apt: Apt, image: Image, folder: Path, progress: Progress) -> Image:
    progress(f"downloading kernel {image.kernel} and OpenZFS {image.openzfs}")
    unpacked = folder / "root"
    kernel_packages = [f"linux-image-{image.kernel}"]
    if f"linux-modules-{image.kernel}" in dict(apt.depends(kernel_packages[0])):
        kernel_packages.append(f"linux-modules-{image.kernel}")  # Ubuntu's way
    tools = tool_packages(apt, image.openzfs)
    for path in apt.download([*kernel_packages, *tools], folder / "packages"):
        target = unpacked if path.name.startswith("linux-") else folder / "tools"
        packages.unpack(path, target)
        path.unlink()
    trees = list(unpacked.glob("lib/modules/*")) + list(unpacked.glob("usr/lib/modules/*"))
    vmlinuz = unpacked / "boot" / f"vmlinuz-{image.kernel}"
    if not trees or not vmlinuz.is_file():
        raise ZtuneError(f"the packages of kernel {image.kernel} hold no kernel")
    builtin = {
        Path(line).name.partition(".ko")[0].replace("-", "_")
        for line in (trees[0] / "modules.builtin").read_text().split()
    }
    ready = _ready_made(trees[0], image.openzfs)
    module = ready or _module(apt, image, unpacked, folder, progress)
    progress("packing the guest")
    part = folder / "image"
    (part / "modules").mkdir(parents=True)
    for index, (name, data) in enumerate(recipe.collect([module, trees[0]], builtin).items()):
        (part / "modules" / f"{index:03d}-{name}.ko").write_bytes(data)
    layer(folder / "tools", part / "tools")
    shutil.copyfile(vmlinuz, part / "vmlinuz")
    recipe.pack(_modules(part), part / "initrd")
    return install(image, part)


def tool_packages(apt: Apt, version: str) -> list[str]:
    """Return the packages of OpenZFS's tools, as apt takes them."""
    wanted, seen = [("zfsutils-linux", version)], {}
    while wanted:
        name, exact = wanted.pop()
        if name not in seen:
            seen[name] = exact
            wanted += [(other, pin) for other, pin in apt.depends(name, exact) if pin == version]
    return [f"{name}={exact}" for name, exact in seen.items()]


def _ready_made(tree: Path, version: str) -> Path | None:
    """Return where the kernel's own packages hold OpenZFS of ``version``, if they do; nothing is compiled
    then."""
    for path in tree.rglob("zfs.ko*"):
        found = recipe.modinfo(recipe.read_module(path), "version")
        if found and order(found[0])[:2] == order(version)[:2]:
            return tree
    return None


def layer(unpacked: Path, into: Path) -> None:
    """Lay unpacked tools out below ``usr`` alone: a folder ``lib`` would hide the host's link of that
    name."""
    for part in ("bin", "sbin", "lib", "usr/bin", "usr/sbin", "usr/lib", "usr/libexec"):
        source = unpacked / part
        for path in source.iterdir() if source.is_dir() else ():
            if path.name in ("systemd", "udev", "modules-load.d", "dracut"):
                continue
            target = into / "usr" / Path(part).name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(path, target, follow_symlinks=False)
    features = unpacked / "usr" / "share" / "zfs"
    if features.is_dir():  # compatibility=… of zpool
        shutil.copytree(features, into / "usr" / "share" / "zfs", symlinks=True)


def _modules(folder: Path) -> dict[str, bytes]:
    return {path.stem[4:]: path.read_bytes() for path in sorted((folder / "modules").glob("*.ko"))}


def current(image: Image) -> Image:
    """Return ``image`` with the recipe as it is now; packs it again if the recipe has changed."""
    want = recipe.identity()
    if not want or want == image.recipe:
        return image
    with shared_files.locked(image.folder / "lock"):
        for found in images.built():
            if found.name == image.name and found.recipe == want:
                return found
        recipe.pack(_modules(image.folder), image.initrd)
        renewed = replace(image, recipe=want)
        renewed.save()
        for states in (image.folder / "states").glob("*"):
            if states.name != want:
                shutil.rmtree(states, ignore_errors=True)
        return renewed


# --- the module
# ----------------------------------------------------------------------------------------------------------


def _module(apt: Apt, image: Image, unpacked: Path, folder: Path, progress: Progress) -> Path:
    """Return the folder with the compiled module, kept for the next time."""
    kept = paths.lab() / "modules" / image.name
    if kept.is_dir():
        return kept
    headers = f"linux-headers-{image.kernel}"
    if not apt.versions(headers):
        raise MissingError(
            f"kernel {image.kernel} has no package {headers}, without which no module is built for it"
        )
    wanted = _header_packages(apt, headers)
    for path in apt.download([*wanted, f"zfs-dkms={image.openzfs}"], folder / "packages"):
        packages.unpack(path, unpacked if path.name.startswith("linux-") else folder / "source")
        path.unlink()
    tree = unpacked / "usr" / "src" / headers
    common = next(iter((unpacked / "usr" / "src").glob("linux-headers-*-common")), None)
    if common is None:  # Ubuntu: linux-headers-6.8.0-31 beside linux-headers-6.8.0-31-generic
        common = tree.with_name(headers.removesuffix("-generic"))
    sources = list((folder / "source" / "usr" / "src").glob("zfs-*"))
    if not (tree / "Makefile").is_file() or not common.is_dir() or not sources:
        raise MissingError(
            f"the packages {', '.join(wanted)} hold no usable headers of kernel {image.kernel}"
        )
    # Debian's says where it would be if it were installed.
    makefile = tree / "Makefile"
    if makefile.stat().st_size < 1000:
        text = makefile.read_text().replace(f"/usr/src/{common.name}/", f"{common}/")
        makefile.write_text(text)
    compiler = _compiler(tree)
    log = paths.lab() / f"build-log-{image.name}.txt"
    began = time.monotonic()
    what = f"OpenZFS {image.openzfs} for {image.kernel}"
    with log.open("w") as out:
        steps = Steps(out, log, progress)
        words = ["--with-config=kernel", f"--with-linux={common}", f"--with-linux-obj={tree}"]
        words += [f"KERNEL_CC={compiler}"] if compiler else []
        steps.run(["./configure", *words], sources[0], f"configuring {what}")
        jobs = os.cpu_count() or 1
        command = ["make", f"-j{jobs}", "CONFIG_DEBUG_INFO="]  # no debugging symbols: a third of the time
        if compiler:
            command.append(f"CC={compiler}")
        steps.run(command, sources[0], f"compiling {what}", _FILES)
    part = folder / "module"
    part.mkdir()
    for path in (sources[0] / "module").rglob("*.ko"):
        shutil.copyfile(path, part / path.name)
    if not (part / "zfs.ko").is_file():
        raise ZtuneError(f"the build of {what} ended without a module: {_what_matters(log)}")
    kept.parent.mkdir(exist_ok=True)
    part.rename(kept)
    log.unlink()
    progress(f"compiled {what} in {(time.monotonic() - began) / 60:.1f} min")
    return kept


def _header_packages(apt: Apt, headers: str) -> list[str]:
    wanted, seen = [headers], []
    while wanted:
        name = wanted.pop()
        if name not in seen and name.startswith(("linux-headers", "linux-kbuild")):
            seen.append(name)
            wanted += [other for other, _ in apt.depends(name)]
    return seen


def _compiler(tree: Path) -> str:
    """Return the compiler to name where the one that built the kernel is not here, empty where it is."""
    variables = tree / ".kernelvariables"
    if not variables.is_file():
        return ""
    match = re.search(r"gcc-\d+", variables.read_text())
    return "" if match is None or shutil.which(match[0]) else "gcc"


@dataclass(frozen=True)
class Steps:
    """The steps of a build: where they say what they do, and to whom."""

    out: IO[str]
    log: Path
    progress: Progress

    def run(
        self, argv: list[str], cwd: Path, what: str, files: int = 0, env: Mapping[str, str] | None = None
    ) -> None:
        """Run a step with progress. ``files``: how many it compiles, about.

        Raises ZtuneError with the lines that matter.
        """
        environment = {
            key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        }
        environment |= {**(env or {}), "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
        self.progress(what)
        process: subprocess.Popen[bytes] | None = None
        try:
            # A stop that came as it begins would leave it behind: nobody else ends its group.
            with uninterrupted():
                process = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=self.out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            deadline = time.monotonic() + BUILD_S
            said = time.monotonic()
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise ZtuneError(f"{what} took more than {BUILD_S / 60:.0f} min")
                ends_within(process, 0.5)
                if files and time.monotonic() - said > 5:
                    said = time.monotonic()
                    done = self.log.read_text(errors="replace").count("  CC ")
                    self.progress(f"{what}: {min(done, files)} of about {files} files")
        finally:
            if process is not None:
                end_group(process)
        if process.returncode:
            failed = ZtuneError(f"{what} failed; what matters of {self.log}:")
            failed.add_note(_what_matters(self.log))
            raise failed


def _what_matters(log: Path, most: int = 15) -> str:
    """Return the first errors of a build and what follows them, else its last lines."""
    lines = [line.rstrip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    lines = [
        line for line in lines if ": Leaving directory" not in line and ": Entering directory" not in line
    ]
    at = [
        index
        for index, line in enumerate(lines)
        if _MATTERS.search(line) and not re.search(r"Werror|-error|checking |ignored\)", line)
    ]
    if not at:
        return "\n".join(lines[-most:])
    chosen: list[int] = []
    for index in at:
        chosen += [n for n in range(index, min(index + 4, len(lines))) if n not in chosen]
    return "\n".join(lines[n] for n in chosen[:most])
