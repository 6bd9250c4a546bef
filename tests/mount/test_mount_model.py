"""Random sequences of calls, on the mount and on a directory of the host: same answers, same trees.

Errors are compared by number, contents byte by byte. The reference is a file system of the kernel's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from mount_ground import Ground
from mount_libc import KEEP_SIZE, PUNCH_HOLE, RENAME_EXCHANGE, RENAME_NOREPLACE, fallocate, rename

pytestmark = pytest.mark.timeout(600)  # a failing example is made smaller for up to five minutes

KIB, MIB = 1 << 10, 1 << 20
# Few names, so that calls meet; directories in directories. What is there at the start comes up most.
_START = {"d": None, "d/e": None, "a": b"some content" * 1000, "b": b"", "d/a": b"x" * 131_073}
_PATHS = [*_START, *_START, "c", "d/c", "d/e/a", "d/e/d", "d/é", "d/e/" + "é" * 120, "c/a", "a/b", "d/e/d/a"]
_PATH = st.sampled_from(_PATHS)
# Around the edges of pages and of both datasets' records.
_EDGES = [0, 1, 511, 512, 4095, 4096, 4097, 8191, 8192, 8193, 16_384, 131_071, 131_072, 131_073, 262_144]
_OFFSET = st.one_of(st.sampled_from(_EDGES), st.integers(0, 400_000))
_LENGTHS = [1, 2, 512, 4096, 8192, 8193, 65_536, 131_072, 140_000]
_LENGTH = st.one_of(st.sampled_from(_LENGTHS), st.integers(1, 200_000))
_SLOT = st.integers(0, 3)
_FLAGS = [
    os.O_RDWR | os.O_CREAT,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    os.O_RDWR | os.O_APPEND,
    os.O_RDWR | os.O_CREAT | os.O_DSYNC,
    os.O_RDWR,
    os.O_RDONLY,
    os.O_WRONLY | os.O_NOFOLLOW,
]
# Small: ext4, as the reference, has one block for all, and needs room there for the old value and the new.
_ATTRIBUTE = st.sampled_from(["user.a", "user.b"])
_MODES = st.sampled_from([0o600, 0o644, 0o755, 0o4711, 0o2755, 0o1777])


class Pair(RuleBasedStateMachine):
    """The same calls on two directories."""

    top: Path
    reference: Path
    ground: Ground

    @initialize()
    def begin(self) -> None:
        self.roots = [Path(tempfile.mkdtemp(dir=where)) for where in (self.top, self.reference)]
        for root in self.roots:
            root.chmod(0o755)
        self.open: dict[int, tuple[int, int]] = {}
        for path, content in _START.items():
            for root in self.roots:
                if content is None:
                    (root / path).mkdir()
                else:
                    (root / path).write_bytes(content)
        for slot, path in enumerate(("a", "b", "d/a")):
            self.open_file(path, slot, os.O_RDWR | os.O_CREAT)

    def teardown(self) -> None:
        if not hasattr(self, "roots"):
            return
        try:
            self.same_trees()
            self.close_all()
        finally:
            for root in self.roots:
                shutil.rmtree(root)

    def close_all(self) -> None:
        for pair in self.open.values():
            for fd in pair:
                os.close(fd)
        self.open.clear()

    def both(self, call: Callable[[Path], Any], what: str) -> list[Any] | None:
        """Do it twice; return both results, or None if both failed alike."""
        results, errors = [], []
        for root in self.roots:
            try:
                results.append(call(root))
                errors.append(0)
            except OSError as error:
                results.append(None)
                number = error.errno or 0
                # POSIX lets rename say either of a directory that is not empty.
                errors.append(errno.ENOTEMPTY if number == errno.EEXIST and what[:6] == "rename" else number)
        said = [errno.errorcode.get(number, "fine") for number in errors]
        assert errors[0] == errors[1], f"{what}: {said[0]} on the mount, {said[1]} on the reference"
        return None if errors[0] else results

    def on_open(self, slot: int, call: Callable[[int], Any], what: str) -> None:
        """The same on the open files in a slot, whose results must be the same too."""
        if slot not in self.open:
            return
        fds = iter(self.open[slot])
        results = self.both(lambda _: call(next(fds)), what)
        if results is not None:
            assert results[0] == results[1], f"{what}: {results[0]!r:.200} and {results[1]!r:.200}"

    # --- names

    @rule(path=_PATH, mode=_MODES)
    def mkdir(self, path: str, mode: int) -> None:
        self.both(lambda root: (root / path).mkdir(mode), f"mkdir {path}")

    @rule(path=_PATH)
    def rmdir(self, path: str) -> None:
        self.both(lambda root: (root / path).rmdir(), f"rmdir {path}")

    @rule(path=_PATH)
    def unlink(self, path: str) -> None:
        self.both(lambda root: (root / path).unlink(), f"unlink {path}")

    @rule(old=_PATH, new=_PATH)
    def rename(self, old: str, new: str) -> None:
        self.both(lambda root: (root / old).rename(root / new), f"rename {old} {new}")

    @rule(old=_PATH, new=_PATH, flags=st.sampled_from([RENAME_NOREPLACE, RENAME_EXCHANGE]))
    def rename_with(self, old: str, new: str, flags: int) -> None:
        if self.flags_known():
            self.both(lambda root: rename(root / old, root / new, flags), f"rename {old} {new} with {flags}")

    def flags_known(self) -> bool:
        """Whether this OpenZFS has them: since 2.2."""
        found = type(self).__dict__.get("_known")
        if found is None:
            try:
                rename(self.roots[0] / "no-such", self.roots[0] / "file", RENAME_NOREPLACE)
            except OSError as error:
                found = error.errno == errno.ENOENT
            type(self)._known = found
        return bool(found)

    @rule(old=_PATH, new=_PATH)
    def link(self, old: str, new: str) -> None:
        self.both(lambda root: os.link(root / old, root / new, follow_symlinks=False), f"link {old} {new}")

    # No "..": through it a name could lead out of what is compared.
    @rule(path=_PATH, to=st.one_of(_PATH, st.just("x" * 500), st.just(".")))
    def symlink(self, path: str, to: str) -> None:
        self.both(lambda root: (root / path).symlink_to(to), f"symlink {path}")

    @rule(path=_PATH, mode=_MODES)
    def chmod(self, path: str, mode: int) -> None:
        self.both(lambda root: (root / path).chmod(mode), f"chmod {path}")

    @rule(path=_PATH, size=st.integers(0, 400), name=_ATTRIBUTE, remove=st.booleans())
    def attribute(self, path: str, size: int, name: str, remove: bool) -> None:
        def call(root: Path) -> None:
            if remove:
                os.removexattr(root / path, name)
            else:
                os.setxattr(root / path, name, bytes([size % 251]) * size)

        self.both(call, f"xattr {name} of {path}")

    # --- files

    @rule(
        path=_PATH,
        slot=_SLOT,
        flags=st.sampled_from(_FLAGS),
    )
    def open_file(self, path: str, slot: int, flags: int) -> None:
        self.close_file(slot)
        opened = self.both(lambda root: os.open(root / path, flags, 0o640), f"open {path} with {flags:#x}")
        if opened:
            self.open[slot] = (opened[0], opened[1])

    @rule(slot=_SLOT)
    def close_file(self, slot: int) -> None:
        for fd in self.open.pop(slot, ()):
            os.close(fd)

    @rule(slot=_SLOT, offset=_OFFSET, length=_LENGTH, seed=st.integers(0, 99))
    def write(self, slot: int, offset: int, length: int, seed: int) -> None:
        data = random.Random(seed).randbytes(length)
        self.on_open(slot, lambda fd: os.pwrite(fd, data, offset), f"write {length} at {offset}")

    @rule(slot=_SLOT, offset=_OFFSET, length=_LENGTH)
    def write_zeros(self, slot: int, offset: int, length: int) -> None:
        self.on_open(slot, lambda fd: os.pwrite(fd, bytes(length), offset), f"zeros {length} at {offset}")

    @rule(slot=_SLOT, length=_LENGTH, seed=st.integers(0, 99))
    def write_at_end(self, slot: int, length: int, seed: int) -> None:
        data = random.Random(seed).randbytes(length)

        def call(fd: int) -> tuple[int, int]:
            os.lseek(fd, 0, os.SEEK_END)
            return os.write(fd, data), os.lseek(fd, 0, os.SEEK_CUR)

        self.on_open(slot, call, f"write {length} at the end")

    @rule(slot=_SLOT, offset=_OFFSET, length=_LENGTH)
    def read(self, slot: int, offset: int, length: int) -> None:
        self.on_open(slot, lambda fd: os.pread(fd, length, offset), f"read {length} at {offset}")

    @rule(slot=_SLOT, size=_OFFSET)
    def truncate(self, slot: int, size: int) -> None:
        self.on_open(slot, lambda fd: os.ftruncate(fd, size), f"truncate to {size}")

    @rule(path=_PATH, size=_OFFSET)
    def truncate_by_name(self, path: str, size: int) -> None:
        self.both(lambda root: os.truncate(root / path, size), f"truncate {path} to {size}")

    @rule(slot=_SLOT, offset=_OFFSET, length=_LENGTH)
    def punch(self, slot: int, offset: int, length: int) -> None:
        mode = PUNCH_HOLE | KEEP_SIZE
        self.on_open(slot, lambda fd: fallocate(fd, mode, offset, length), f"punch {length} at {offset}")

    @rule(slot=_SLOT, offset=_OFFSET, length=_LENGTH, mode=st.sampled_from([0, KEEP_SIZE]))
    def reserve(self, slot: int, offset: int, length: int, mode: int) -> None:
        self.on_open(slot, lambda fd: fallocate(fd, mode, offset, length), f"reserve {length} at {offset}")

    @rule(source=_SLOT, sink=_SLOT, offset=_OFFSET, into=_OFFSET, length=_LENGTH)
    def copy(self, source: int, sink: int, offset: int, into: int, length: int) -> None:
        if source not in self.open or sink not in self.open or source == sink:
            return
        pairs = iter(zip(self.open[source], self.open[sink], strict=True))

        def call(_: Path) -> int:
            a, b = next(pairs)
            if os.path.sameopenfile(a, b):  # ranges that overlap are another test's
                return 0
            done = 0
            while done < length:
                step = os.copy_file_range(a, b, length - done, offset + done, into + done)
                if step == 0:
                    break
                done += step
            return done

        results = self.both(call, f"copy {length} from {offset} to {into}")
        assert results is None or results[0] == results[1]

    @rule(slot=_SLOT, how=st.sampled_from(["fsync", "fdatasync"]))
    def sync(self, slot: int, how: str) -> None:
        self.on_open(slot, os.fsync if how == "fsync" else os.fdatasync, how)

    @rule(seed=st.integers(0, 2**32))
    def many(self, seed: int) -> None:
        """Do a dozen things at once: examples are short, and file systems take some to be confused."""
        r = random.Random(seed)

        def offset() -> int:
            return r.choice([r.choice(_EDGES), r.randrange(400_000)])

        def length() -> int:
            return r.choice([r.choice(_LENGTHS), r.randrange(1, 200_000)])

        def path() -> str:
            return r.choice(_PATHS)

        def slot() -> int:
            return r.randrange(4)

        calls: list[Callable[[], None]] = [
            lambda: self.write(slot(), offset(), length(), r.randrange(99)),
            lambda: self.write(slot(), offset(), length(), r.randrange(99)),
            lambda: self.write_zeros(slot(), offset(), length()),
            lambda: self.write_at_end(slot(), length(), r.randrange(99)),
            lambda: self.read(slot(), offset(), length()),
            lambda: self.truncate(slot(), offset()),
            lambda: self.truncate_by_name(path(), offset()),
            lambda: self.punch(slot(), offset(), length()),
            lambda: self.reserve(slot(), offset(), length(), r.choice([0, KEEP_SIZE])),
            lambda: self.copy(slot(), slot(), offset(), offset(), length()),
            lambda: self.sync(slot(), r.choice(["fsync", "fdatasync"])),
            lambda: self.open_file(path(), slot(), r.choice(_FLAGS)),
            lambda: self.open_file(path(), slot(), os.O_RDWR | os.O_CREAT),
            lambda: self.mkdir(path(), 0o755),
            lambda: self.rmdir(path()),
            lambda: self.unlink(path()),
            lambda: self.rename(path(), path()),
            lambda: self.rename(path(), path()),
            lambda: self.link(path(), path()),
            lambda: self.attribute(
                path(), r.randrange(400), r.choice(["user.a", "user.b"]), r.random() < 0.3
            ),
        ]
        for _ in range(12):
            r.choice(calls)()

    # --- what must be the same

    @invariant()
    def same_open_files(self) -> None:
        for slot in getattr(self, "open", {}):
            self.on_open(slot, size_and_links, f"stat of file {slot}")

    @precondition(lambda self: hasattr(self, "roots"))
    @rule()
    def same_trees(self) -> None:
        trees = [tree(root) for root in self.roots]
        assert sorted(trees[0]) == sorted(trees[1])
        for name, facts in trees[0].items():
            for key, value in facts.items():
                wanted = trees[1][name][key]
                said = f"{value!r:.300} on the mount, {wanted!r:.300} on the reference"
                assert value == wanted, f"{key} of {name}: {said}"
        for fds in self.open.values():
            data = [whole(fd) for fd in fds]
            assert data[0] == data[1], "contents of an open file"


class Restarted(Pair):
    """The same, with the mount stopped and started again in between."""

    @precondition(lambda self: hasattr(self, "roots"))
    @rule()
    def restart(self) -> None:
        self.close_all()
        before = tree(self.roots[0])
        self.ground.restart()
        assert tree(self.roots[0]) == before
        self.same_trees()


def size_and_links(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    # A directory's size is each file system's own.
    return 0 if stat.S_ISDIR(found.st_mode) else found.st_size, found.st_nlink


def whole(fd: int) -> bytes | int:
    try:
        return os.pread(fd, os.fstat(fd).st_size + 10, 0)
    except OSError as error:  # opened for writing only
        return error.errno or 0


def tree(root: Path) -> dict[str, dict[str, object]]:
    """Return what a program can know of all that is below ``root``."""
    found: dict[str, dict[str, object]] = {}
    links: dict[int, list[str]] = {}
    for folder, dirs, files in os.walk(root):
        for name in [*dirs, *files]:
            path = Path(folder, name)
            said = str(path.relative_to(root))
            s = path.lstat()
            facts: dict[str, object] = {"mode": s.st_mode, "links": s.st_nlink}
            if stat.S_ISREG(s.st_mode):
                facts |= {"size": s.st_size, "content": path.read_bytes()}
                links.setdefault(s.st_ino, []).append(said)
            elif stat.S_ISLNK(s.st_mode):
                facts |= {"size": s.st_size, "target": os.readlink(path)}
            else:
                facts["names"] = sorted(os.listdir(path))
            if not stat.S_ISLNK(s.st_mode):
                names = [name for name in os.listxattr(path) if name.startswith("user.")]
                facts["attributes"] = {name: os.getxattr(path, name) for name in sorted(names)}
            found[said] = facts
    for same in links.values():
        for name in same:
            found[name]["same file"] = sorted(same)
    return found


@pytest.fixture
def reference() -> Iterator[Path]:
    """Below /var/tmp: tmpfs of older kernels has no attributes of users."""
    path = Path(tempfile.mkdtemp(prefix="ztune-mount-reference-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


def run(machine: type[Pair], ground: Ground, top: Path, reference: Path, examples: int, steps: int) -> None:
    made = type(machine.__name__, (machine,), {"ground": ground, "top": top, "reference": reference})
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=examples < 100,  # the short ones are the same each time
        report_multiple_bugs=False,
        # Making an example smaller takes minutes when each has restarts in it.
        phases=[Phase.generate] if issubclass(machine, Restarted) else [Phase.generate, Phase.shrink],
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    with contextlib.ExitStack() as stack:
        mask = os.umask(0o022)
        stack.callback(os.umask, mask)
        run_state_machine_as_test(made, settings=how)


def test_the_mount_behaves_as_the_reference(ground: Ground, each: Path, reference: Path) -> None:
    run(Pair, ground, each, reference, 30, 40)


def test_the_mount_behaves_as_the_reference_over_restarts(
    ground: Ground, place: Path, reference: Path
) -> None:
    run(Restarted, ground, place, reference, 4, 30)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_mount_behaves_as_the_reference_for_long(ground: Ground, each: Path, reference: Path) -> None:
    run(Pair, ground, each, reference, 500, 80)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_mount_behaves_as_the_reference_over_many_restarts(
    ground: Ground, each: Path, reference: Path
) -> None:
    run(Restarted, ground, each, reference, 30, 60)
