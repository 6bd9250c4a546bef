"""Provides the content that replay writes: kept samples, or bytes made to compress as was measured.

What a job writes has content of its own, what it reads another, and what it does neither to, which takes
space alone, a third: where much is touched, what that leaves of all that was measured. So has each record
size: what a disk takes is whole sectors, so that not only the mean counts of what blocks compress to, and
that is another with each size.

Synthesis. A block is a string of units of 32 bytes. A unit is *fresh* (random bytes), *text* (random
characters of an alphabet of 16, which entropy coding halves but lz4 can't), or a *copy* of an earlier unit of
the block. A sixteenth of the blocks compresses as the sixteenth of those measured that compress best, and so
on. The shares are found by compressing what they produce and correcting them, a fixed number of times, from a
fixed seed: the same measurements give the same bytes. Of what is not touched as many blocks are zeros as were
found.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ztune.errors import unwritten
from ztune.onhost.host import shared_files
from ztune.onhost.words import ROLES, Role
from ztune.trace.compressibility import CHUNK, compressor
from ztune.trace.holes import filled_holes
from ztune.trace.inputs import EMBEDDED, READ_BEFORE, UNTOUCHED, content_name
from ztune.trace.manifest import (
    DEFAULT_RATIO,
    READ,
    RECORDSIZES,
    SHARES,
    WRITTEN,
    Compressibility,
    Touched,
    content_unknown,
)
from ztune.trace.reader import Trace
from ztune.trace.repeats import repeats

SYNTHESIS_VERSION = 2  # part of the file names, so that a changed recipe makes new files
POOL_BYTES = 2 << 20  # of a synthesised pool, or sixteen blocks and more
UNIT = 32  # bytes
_RUN = 32  # units; copies in it join into a long match, as in real rows
_WINDOW = (64 << 10) // UNIT - 1  # lz4 sees no further back
_LONGEST = 128 << 10  # bytes; a longer block is some of these, which lz4 hardly tells apart
_TRIAL = 64 << 10  # bytes of each sixteenth that are made and compressed in each step of the calibration
_STEPS = 10
_LEAST = 1e-3  # share of units that are not copies
_ENTROPY = "zstd-3"
_HEADER = 8  # bytes
_MUCH = 0.05
"""Of a role's bytes: where a trace touches more, what it does not touch is told from all and what it does."""
_PACKED = 0.02  # compressed / bytes: nothing that is told so compresses better

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ContentGoal:
    """How blocks are to compress."""

    lz4: tuple[float, ...]
    """Compressed bytes / bytes of each sixteenth of them."""
    zstd: tuple[float, ...] | None = None
    """zstd-3's likewise, where they are known."""
    zeros: float = 0.0
    """The share of blocks that are zeros alone; they are in neither."""


def content_pools(trace: Trace, folder: Path, warnings: list[str] | None = None) -> dict[str, Path]:
    """Return files of content, each a whole number of chunks of 1 MiB, by their ``content_name``.

    For each role of ``trace`` and each of ``RECORDSIZES`` there is what is written; by the role's name with
    ``READ_BEFORE`` what is there to be read, and with ``UNTOUCHED`` what is neither, where that was measured
    apart; and ``EMBEDDED``'s, where there are such files.

    Kept samples are used where the trace has them. Else a pool is synthesised in ``folder`` to meet what lz4
    and zstd-3 made of measured blocks (or used again if it is there already). Where nothing was measured the
    ratio is 2:1, and a sentence saying so is appended to ``warnings``; so is one for each role whose data
    repeats as no user's does, and one where a load fills many holes. Raises InputError if a sample is
    damaged, ZtuneError if ``folder`` can't be written.
    """
    pools: dict[str, Path] = {}
    used = {file.role for file in trace.manifest.files if file.role is not None}
    filled = set()  # roles whose zeros are filled by a load
    touched = _touched(trace) if any(one.touched for one in trace.manifest.compressibility) else {}
    for role in sorted(used, key=ROLES.index):
        known = _Known(trace, role)
        if not known.anything and warnings is not None:
            warnings.append(content_unknown(role))
        if not known.zeros:
            filled.add(role)
        for size in RECORDSIZES:
            for name, how in known.names.items():
                rest = name == role + UNTOUCHED
                goal = _goal(known.measured(how), size, zeros=rest)
                kept = known.kept(how, size)
                if rest and sum(touched.get(role, ())) > _MUCH and known.measured(how):
                    goal, kept = _without(goal, known, touched[role], size), None
                pools[content_name(name, size)] = kept or _pool(role, size, goal, folder)
    if any(file.embedded and file.role is not None for file in trace.manifest.files):
        pools[EMBEDDED] = _made(folder / f"{EMBEDDED}-{SYNTHESIS_VERSION}.bin", CHUNK, all_but_empty)
    if warnings is not None:
        warnings += [*repeats(trace.manifest.compressibility), *filled_holes(trace.manifest, filled)]
    return pools


class _Known:
    """What a trace tells of how the files of a role compress. ``how`` they were touched: "" is not at all."""

    def __init__(self, trace: Trace, role: Role) -> None:
        self._trace, self._role = trace, role
        # A sample is read, and its checksum compared, once.
        self._samples: dict[tuple[bool, Touched, int], Path | None] = {}
        manifest = trace.manifest
        entries = [one for one in manifest.compressibility if one.role == role]
        self._every = [one for one in entries if not one.touched]
        touched = [one for one in entries if one.touched and one.blocks]
        apart = {how: [one for one in touched if one.how == how] for how in (READ, WRITTEN)}
        # Of either, where nothing tells them apart.
        alike = [one for one in touched if not one.how]
        self._touched = {how: apart[how] or alike or touched for how in (READ, WRITTEN)}
        samples = [one for one in manifest.samples if one.role == role]
        is_apart = bool(touched) or any(one.touched for one in samples)
        self.names: dict[str, Touched] = {role: WRITTEN}
        if apart[READ] and apart[WRITTEN]:
            self.names[role + READ_BEFORE] = READ
        if is_apart:
            self.names[role + UNTOUCHED] = ""
        # A sample of all over the files has none where none of what is touched was kept beside it, and before
        # version 7 of the format.
        self.zeros = is_apart and (all(one.touched for one in samples) or any(one.how for one in samples))
        self.anything = bool(samples) or any(one.algorithm == "lz4" and one.blocks for one in entries)

    def measured(self, how: Touched) -> list[Compressibility]:
        return (self._touched[how] if how else []) or self._every

    def kept(self, how: Touched, size: int) -> Path | None:
        """Return what was kept of records of ``size`` bytes, None where it is made as was measured."""
        if not how:
            return self._sample(False)
        other: Touched = READ if how == WRITTEN else WRITTEN
        found = self._sample(True, how, size) or self._sample(True, how) or self._sample(True)
        if found is None and self._touched[how] == self._touched[other]:
            found = self._sample(True, other, size) or self._sample(True, other)
        return found or (None if self._touched[how] else self._sample(False))

    def _sample(self, touched: bool, how: Touched = "", recordsize: int = 0) -> Path | None:
        key = (touched, how, recordsize)
        if key not in self._samples:
            found = self._trace.sample(self._role, *key)
            self._samples[key] = found[1] if found is not None and found[0].chunk == CHUNK else None
        return self._samples[key]


def _goal(measured: Sequence[Compressibility], size: int, zeros: bool = False) -> ContentGoal:
    """Return how blocks of ``size`` bytes are to compress, by what was ``measured`` of blocks of that size or
    the next smaller one there is. ``zeros``: some of them, or all, are zeros."""

    def nearest(algorithm: str) -> Compressibility | None:
        found = {one.recordsize: one for one in measured if one.algorithm == algorithm and one.blocks}
        known = max((one for one in found if one <= size), default=min(found, default=None))
        return None if known is None else found[known]

    lz4, zstd = nearest("lz4"), nearest(_ENTROPY)
    if lz4 is None:
        only_zeros = zeros and any(one.holes for one in measured)
        return ContentGoal((1 / DEFAULT_RATIO,) * SHARES, zeros=float(only_zeros))
    return ContentGoal(
        _shares_of(lz4),
        None if zstd is None else _shares_of(zstd),
        lz4.holes / (lz4.holes + lz4.blocks) if zeros else 0.0,
    )


def _touched(trace: Trace) -> dict[str, tuple[float, float]]:
    """Return which shares of the bytes of a role's files, at the end, a trace only read, and wrote."""
    # Here, as what is known of a trace's content takes no Polars where nothing was touched.
    from ztune.trace.figures import PAGE
    from ztune.trace.summary import summarise

    there = {file.path: file for file in trace.manifest.files if not file.deleted}
    size, read, written = Counter[str](), Counter[str](), Counter[str]()
    for file in there.values():
        if file.role is not None:
            size[file.role] += max(file.size_end, 0)
    of = 1 if trace.manifest.sample is None else trace.manifest.sample.of
    for group in summarise(trace).files:
        if group.name in there and group.role is not None:
            page = PAGE * (of if there[group.name].sampled else 1)
            written[group.role] += group.writes.pages * page
            read[group.role] += (group.pages - group.writes.pages) * page
    return {
        role: (min(read[role] / size[role], 1.0), min(written[role] / size[role], 1.0))
        for role in size
        if size[role] > 0
    }


def _without(whole: ContentGoal, known: _Known, touched: tuple[float, float], size: int) -> ContentGoal:
    """Return how blocks compress that were not touched, where ``whole`` says how all of a role's do.

    All of them take what those that were read, those that were written and the others take together. So a
    warehouse that scans the half of its tables that compresses badly has space for what it has.
    """
    rest = 1 - sum(touched)
    read, written = (_goal(known.measured(how), size) for how in (READ, WRITTEN))
    if rest <= 0 or whole.zeros >= 1:
        return whole

    def left(every: tuple[float, ...], *theirs: tuple[float, ...]) -> tuple[float, ...]:
        mean = float(np.mean(every))
        taken = sum(share * float(np.mean(one)) for share, one in zip(touched, theirs, strict=True))
        wanted = max((mean * (1 - whole.zeros) - taken) / rest, _PACKED) / (1 - whole.zeros)
        return tuple(float(one) for one in np.clip(np.array(every) * wanted / mean, _LEAST, 1.0))

    zstd = whole.zstd
    if zstd is not None and read.zstd is not None and written.zstd is not None:
        zstd = left(zstd, read.zstd, written.zstd)
    return ContentGoal(left(whole.lz4, read.lz4, written.lz4), zstd, whole.zeros)


def _shares_of(entry: Compressibility) -> tuple[float, ...]:
    return tuple(entry.shares) or (1 / entry.ratio,) * SHARES  # before version 7 of the format


def synthesise(goal: ContentGoal, size: int, seed: int = 1) -> bytes:
    """Return at least 2 MiB and sixteen blocks of ``size`` bytes that compress as ``goal`` says: each
    sixteenth of them by lz4, and by zstd-3 as far as both can be had."""
    block = min(size, _LONGEST)
    fresh, text = _calibrated(goal, block, seed)
    blocks = _blocks_of(goal, size)
    rng = np.random.default_rng(seed)
    zero = _shared_out(np.linspace(0, goal.zeros * blocks, blocks + 1)[None, :], rng)[0] > 0
    # Each chunk has as many of each kind, if it has so many blocks: few are drawn for a small file.
    alike = CHUNK // size if CHUNK // size >= SHARES else blocks
    content = np.zeros((blocks, size), np.uint8)
    for first in range(0, blocks, alike):
        places = first + rng.permutation(alike)
        places = places[~zero[first : first + alike]]
        # Where there are fewer than parts another chunk has others.
        part = (np.arange(len(places)) + rng.random()) * SHARES / max(1, len(places))
        part = np.repeat(part.astype(np.int64), size // block)
        made = _blocks(fresh[part], text[part], block, rng)
        content[places] = np.frombuffer(made, np.uint8).reshape(-1, size)
    return content.tobytes()


def _blocks_of(goal: ContentGoal, size: int) -> int:
    """Return of how many blocks a pool is: so many that up to half may be zeros, and each part of the others
    is there."""
    few = min(round(SHARES / max(1 - goal.zeros, 0.5)), 2 * SHARES)
    return max(POOL_BYTES // size, -(-few * size // CHUNK) * CHUNK // size)


def _calibrated(goal: ContentGoal, block: int, seed: int) -> tuple[Floats, Floats]:
    """Return the shares of units that are no copies, for each sixteenth, and how much of these is text."""
    wanted = np.array(goal.lz4)
    fresh, text = wanted.copy(), np.full(SHARES, 0.0 if goal.zstd is None else 0.5)
    each = max(1, _TRIAL // block)
    best: tuple[float, Floats, Floats] | None = None
    for _ in range(_STEPS):
        content = _blocks(np.repeat(fresh, each), np.repeat(text, each), block, np.random.default_rng(seed))
        got = _shares(content, "lz4", block).reshape(SHARES, each).mean(axis=1)
        # What is left after compression is what costs space, so errors are relative to that.
        error = float(np.mean(np.abs(np.log(got / wanted))))
        now = text
        if goal.zstd is not None:
            zstd = _shares(content, _ENTROPY, block).reshape(SHARES, each).mean(axis=1)
            # Less weight: lz4 is what most layouts use, and some pairs of ratios can't both be met.
            error += 0.3 * float(np.mean(np.abs(np.log(zstd / goal.zstd))))
            text = np.clip(text + (zstd - goal.zstd) / np.maximum(0.05, got), 0.0, 1.0)
        if best is None or error < best[0]:
            best = error, fresh, now
        fresh = np.clip(fresh + (wanted - got), _LEAST, 1.0)
    assert best is not None
    return best[1], best[2]


def _blocks(fresh: Floats, text: Floats, block: int, rng: np.random.Generator) -> bytes:
    """Return blocks of ``block`` bytes, of ``fresh`` the shares of units that are no copies, and of ``text``
    how many of these are text."""
    runs = block // UNIT // _RUN  # of each block: units that are no copies, then copies that join
    units = np.arange(runs * _RUN + 1)
    own = _shared_out(fresh[:, None] * units[::_RUN], rng)
    copied = units[:-1:_RUN] + own
    back = 1 + (rng.random(own.shape) * np.minimum(copied, _WINDOW)).astype(np.int64)

    place = np.arange(len(fresh) * runs * _RUN)
    first = place - place % (runs * _RUN)
    is_copy = place % _RUN >= np.repeat(own, _RUN)
    source = np.maximum(place - np.where(is_copy, np.repeat(back, _RUN), 0), first)
    is_text = _shared_out(text[:, None] * units, rng).ravel() > 0
    # A copy's original may be a copy: follow the chain by doubling until each unit knows its fresh one.
    while True:
        further = source[source]
        if np.array_equal(further, source):
            break
        source = further
    noise = rng.integers(0, 256, (len(place), UNIT), np.uint8)
    alphabet = np.frombuffer(b"etaoinshrdlu 012", np.uint8)
    noise[is_text] = alphabet[noise[is_text] & 15]
    made: npt.NDArray[np.uint8] = noise[source]
    return made.tobytes()


def _shared_out(owed: Floats, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return whole numbers whose sums along each row are as near as can be to ``owed``, which grows."""
    whole: npt.NDArray[np.int64] = np.diff(np.floor(owed + rng.random((len(owed), 1)))).astype(np.int64)
    return whole


def _shares(content: bytes, algorithm: str, size: int) -> Floats:
    compress = compressor(algorithm)
    blocks = (content[start : start + size] for start in range(0, len(content), size))
    return np.array([min(len(compress(block)), size) / size for block in blocks])


def _pool(role: str, size: int, goal: ContentGoal, folder: Path) -> Path:
    key = [SYNTHESIS_VERSION, size, goal.lz4, goal.zstd, goal.zeros]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return _made(
        folder / f"{role}-{name}.bin",
        _blocks_of(goal, size) * size,
        lambda: synthesise(goal, size, seed=1 + ROLES.index(role)),
    )


def all_but_empty() -> bytes:
    """Return a chunk of zeros that begins with 8 bytes of noise.

    A file of up to 20 KiB of it fits in a pointer, compressed, and is no hole.
    """
    return np.random.default_rng(1).bytes(_HEADER) + bytes(CHUNK - _HEADER)


def _made(path: Path, size: int, make: Callable[[], bytes]) -> Path:
    """Return the file at ``path``, made if it is not there with ``size`` bytes. Raises ZtuneError."""
    try:
        if path.is_file() and path.stat().st_size == size:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with shared_files.replacing(path) as partial:
            partial.write_bytes(make())
    except OSError as error:
        raise unwritten(path, error) from error
    return path
