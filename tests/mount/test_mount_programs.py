"""Programs that others wrote to find faults in file systems: fio's verify modes, stress-ng, fsx, pjdfstest.

``scripts/test-tools.sh`` brings those that ztune itself does not need.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from mount_ground import Ground

pytestmark = pytest.mark.timeout(280)

BESIDE = os.path.dirname(sys.executable)


def program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((BESIDE, os.environ.get("PATH", os.defpath))))
    if found is None:
        pytest.skip(f"no {name} here: scripts/test-tools.sh brings it")
    return found


def run(argv: Sequence[str | Path], where: Path, seconds: float = 240) -> str:
    """Return what it said; fail with its last words if it fails."""
    done = subprocess.run(argv, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        pytest.fail(f"{Path(argv[0]).name} ended with {done.returncode}: {said[-3000:]}")
    return said


# --- fio -------------------------------------------------------------------------------------------


def fio(where: Path, **settings: object) -> str:
    path = program("fio")
    how = {
        "name": "verified",
        "directory": where,
        "size": "6m",
        "verify": "crc32c",
        "verify_fatal": 1,
        "do_verify": 1,
        "randrepeat": 1,
        "group_reporting": 1,
        **settings,
    }
    said = run([path, *(f"--{key}={value}" for key, value in how.items())], where)
    assert re.search(r"err= 0", said), said
    return said


def must_have(where: Path, engine: str) -> None:
    """Skip where the kernel does not let us use an engine."""
    path = program("fio")
    argv = [path, "--name=probe", f"--directory={where}", "--size=4k", "--rw=write", f"--ioengine={engine}"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if re.search("not permitted|not implemented|engine .* not loadable", done.stdout + done.stderr):
        pytest.skip(f"{engine} can't be used here")


PATTERNS: list[tuple[str, dict[str, object]]] = [
    # What a database's data files, its log, a load, a mapped database do.
    ("psync", {"rw": "randwrite", "bs": "8k", "fsync": 32}),
    ("psync", {"rw": "write", "bs": "8k", "sync": "dsync", "size": "2m"}),
    ("psync", {"rw": "randrw", "bsrange": "1k-256k", "bs_unaligned": 1}),
    ("psync", {"rw": "randwrite", "bs": "4k", "fallocate": "keep", "overwrite": 1, "numjobs": 3}),
    ("psync", {"rw": "rw", "bssplit": "512/20:8k/60:128k/20", "fdatasync": 16}),
    ("libaio", {"rw": "randwrite", "bs": "16k", "direct": 1, "iodepth": 16}),
    ("libaio", {"rw": "randrw", "bs": "8k", "direct": 1, "iodepth": 8, "verify": "sha256", "loops": 2}),
    ("io_uring", {"rw": "randwrite", "bs": "8k", "iodepth": 16}),
    ("io_uring", {"rw": "randrw", "bs": "32k", "iodepth": 8, "direct": 1, "fsync": 64}),
    ("mmap", {"rw": "randwrite", "bs": "4k", "fsync": 64}),
    ("mmap", {"rw": "randrw", "bs": "16k"}),
]


# By default each pattern runs on one of the datasets only, in turn.
WHERE = [
    pytest.param(
        *pattern,
        top,
        id=f"{pattern[0]}-{pattern[1]['rw']}-{n}-{top}",
        marks=[] if n % 2 == m else [pytest.mark.long],
    )
    for n, pattern in enumerate(PATTERNS)
    for m, top in enumerate(("place", "other"))
]


@pytest.mark.parametrize("engine, settings, top", WHERE)
def test_fio_reads_back_what_it_wrote(
    engine: str, settings: dict[str, object], top: str, request: pytest.FixtureRequest
) -> None:
    where: Path = request.getfixturevalue(top)
    must_have(where, engine)
    fio(where, ioengine=engine, **settings)


@pytest.mark.parametrize("engine, top", [("psync", "other"), ("mmap", "place"), ("libaio", "place")])
def test_fio_finds_its_data_after_a_restart(
    ground: Ground, engine: str, top: str, request: pytest.FixtureRequest
) -> None:
    where: Path = request.getfixturevalue(top)
    must_have(where, engine)
    how: dict[str, object] = {"ioengine": engine, "rw": "randwrite", "bs": "8k", "size": "8m"}
    fio(where, **how, do_verify=0)
    ground.restart()
    said = fio(where, **{**how, "rw": "randread"}, verify_only=1)
    assert "read:" in said.lower()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["psync", "libaio", "io_uring", "mmap"])
def test_fio_for_long(each: Path, engine: str) -> None:
    must_have(each, engine)
    how: dict[str, object] = {"ioengine": engine, "size": "256m", "numjobs": 4, "loops": 3, "iodepth": 16}
    fio(each, **how, rw="randrw", bsrange="4k-128k", verify_backlog=512, fsync=128)


# --- stress-ng ---------------------------------------------------------------------------------------

# Each checks its own results with --verify. What Linux gives no FUSE file system at all is left out: fiemap,
# verity, quotas; so are io-uring (it fails on ext4 too) and io (it syncs every other mount of the machine).
STRESSORS = [
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dup",
    "fallocate",
    "fcntl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "hdd",
    "iomix",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "mmapfork",
    "msync",
    "open",
    "readahead",
    "rename",
    "revio",
    "seek",
    "sendfile",
    "splice",
    "symlink",
    "sync-file",
    "touch",
    "unlink",
    "utime",
    "xattr",
    "aio",
    "aiol",
    "mmap",
]
QUICK = ["dentry", "fcntl", "filename", "fpunch", "hdd", "msync", "rename", "xattr"]


# Sizes for a small pool.
SIZES: dict[str, list[str]] = {
    "copy-file": ["--copy-file-bytes", "128m"],
    "fallocate": ["--fallocate-bytes", "16m"],
    "hdd": ["--hdd-bytes", "16m", "--hdd-opts", "wr-rnd,rd-rnd,fsync,utimes"],
    "iomix": ["--iomix-bytes", "16m"],
    "mmap": ["--mmap-file", "--mmap-bytes", "16m"],
    "readahead": ["--readahead-bytes", "16m"],
    "revio": ["--revio-bytes", "16m"],
    "seek": ["--seek-size", "16m"],
    "splice": ["--splice-bytes", "1m"],
    "sync-file": ["--sync-file-bytes", "8m"],
}


def stress(where: Path, names: list[str], seconds: int, instances: int) -> None:
    path = program("stress-ng")
    known = subprocess.run([path, "--stressors"], capture_output=True, text=True).stdout.split()
    ran, failed = 0, []
    # One call each: of several at once it would not be clear which failed.
    for name in names:
        if name not in known:
            continue
        argv = [path, f"--{name}", str(instances), *SIZES.get(name, [])]
        argv += ["--timeout", str(seconds), "--temp-path", str(where), "--verify"]
        done = subprocess.run(argv, cwd=where, capture_output=True, text=True, timeout=seconds + 200)
        said = done.stdout + done.stderr
        # 4: the stressor found that this kernel has not what it needs.
        if done.returncode not in (0, 4) or re.search(r"\bfail: ", said):
            failed.append(f"{name} ({done.returncode}): {said[-800:]}")
        ran += done.returncode == 0
        left = os.listdir(where)
        if left:
            failed.append(f"{name} left {left[:5]}")
            for one in left:
                shutil.rmtree(where / one, ignore_errors=True)
    assert not failed, "\n".join(failed)
    assert ran > len(names) // 2


def test_stress_ng_finds_nothing(place: Path) -> None:
    stress(place, QUICK, 1, 2)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_stress_ng_finds_nothing_for_long(each: Path) -> None:
    stress(each, STRESSORS, 4, 4)


# --- fsx ----------------------------------------------------------------------------------------------

_FSX = """
flen = 1048576
[opsize]
max = 200000
min = 1
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 5.0
mapwrite = 5.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 2.0
fdatasync = 2.0
posix_fallocate = 3.0
punch_hole = 5.0
sendfile = 2.0
posix_fadvise = 1.0
copy_file_range = 3.0
"""


def fsx(where: Path, operations: int, seed: int) -> None:
    path = program("fsx")
    settings = where / "fsx.toml"
    settings.write_text(_FSX)
    argv: list[str | Path] = [
        path,
        "-f",
        settings,
        "-N",
        str(operations),
        "-S",
        str(seed),
        "-P",
        where,
        where / "file",
    ]
    run(argv, where, 1700)


@pytest.mark.parametrize("seed", [1, 2])
def test_fsx(each: Path, seed: int) -> None:
    fsx(each, 2000, seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 14))
def test_fsx_for_long(each: Path, seed: int) -> None:
    fsx(each, 30_000, seed)


# --- pjdfstest ------------------------------------------------------------------------------------------

_PJDFSTEST = """
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
rename_ctime = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"""


def test_pjdfstest(ground: Ground, other: Path) -> None:
    """Hundreds of checks of what POSIX says of names, modes, owners, times and errors."""
    path = program("pjdfstest")
    if os.geteuid() != 0:
        pytest.skip("only root may act as other users")
    settings = other / "pjdfstest.toml"
    settings.write_text(_PJDFSTEST)
    # A short name: it makes sockets, whose paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="p", dir=ground.small) as name:
        os.chmod(name, 0o755)
        second: list[str | Path] = ["-s", other] if os.stat(name).st_dev != other.stat().st_dev else []
        argv: list[str | Path] = [path, "-c", settings, "-p", name, *second]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=250, cwd=name)
    found = re.search(r"Summary: (\d+) failed, (\d+) skipped, (\d+) passed", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    failed = re.findall(r"^(\S+) .*\bFAILED\b", done.stdout, flags=re.M)
    assert int(found[1]) == 0, f"{failed}: {done.stdout[-6000:]}"
    assert int(found[3]) > 350, "most of it must have run"
