"""Measures how well files compress, by sampling blocks at several record sizes.

ZFS compresses each record on its own, so a ratio means nothing without the record size. Pieces of up to 1 MiB
are drawn evenly over all bytes of a role's files; blocks of each record size are then drawn from these
pieces. That tells what space the files take. What a job moves are the blocks that it touches, so these are
measured beside them. The work is bounded: 66 MiB are compressed per role and algorithm, and as much each of
what is read and of what is written, whatever the database's size.

The mean alone does not tell what a disk takes, which is whole sectors: of InnoDB's pages of 16 KiB those of
8.2 KiB and those of 7.9 differ by a third. So the sizes of the blocks are told in sixteen parts.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import lz4.block
import numpy as np
import numpy.typing as npt
import zstandard

from ztune.errors import InputError, naming
from ztune.onhost.host import noatime
from ztune.onhost.words import ROLES
from ztune.trace.manifest import RECORDSIZES, SHARES, Compressibility, Sample, Touched, TraceFile
from ztune.units import is_power_of_two

ALGORITHMS = ("lz4", "zstd-3", "gzip-6")
CHUNK = 1 << 20  # unit of kept content, see Sample
READ_BUDGET = 32 << 20  # bytes read per role ...
KEPT_BUDGET = 16 << 20  # ... and at most kept
BLOCK_BUDGET = 2 << 20  # bytes compressed per role, record size and algorithm ...
LEAST_BLOCKS = 8  # ... but at least so many blocks, if there are
MEASURED = {size: min(max(BLOCK_BUDGET // size, 128), (32 << 20) // size) for size in RECORDSIZES}
"""How many blocks are compressed, by their size. InnoDB's of 128 KiB have a standard deviation of about a
quarter, so 128 give a mean within 2 or 3 %. Of tables that pack 2:1 and 5:1, 32 of 1 MiB are within some 5 %,
where 8 had been a quarter off."""
TOUCHED = {size: 2 * count for size, count in MEASURED.items()}
"""How many are to be at hand: some are gone by then."""
_KEPT = 128 << 10
"""Bytes of the blocks of what is touched that are kept; of smaller records those that were measured, too."""
MOST_EXTENTS = 10_000  # of one sparse file
POINTER_BYTES = 112 - 4
"""So much of a block fits in the pointer to it, compressed: BPE_PAYLOAD_SIZE of OpenZFS's include/sys/spa.h,
less the length that its lz4 puts in front."""
_LARGEST_EMBEDDED = 255 * POINTER_BYTES  # lz4 takes a byte for each 255 that repeat
MOST_SMALL = 8192
"""How many small files are looked at, each read whole: 8 KiB in the mean, so 64 MiB in all."""
_GOLDEN = (5**0.5 - 1) / 2
_HOLE = 64 << 10  # bytes of runs of zeros that are not kept, where nothing tells what is touched

Compressor = Callable[[bytes], bytes]
Places = Mapping[str, Mapping[Touched, Mapping[int, Sequence[tuple[str, int]]]]]
"""Blocks that a job touched (path, offset in bytes), by role, how, and their size in bytes."""


def compressor(algorithm: str) -> Compressor:
    """Return the function that compresses a block as ZFS's ``lz4``, ``zstd-N`` or ``gzip-N`` would.

    Made with the same libraries' ordinary versions; ZFS's own copies differ by less than a per cent.
    Raises InputError for another name.
    """
    name, _, level_text = algorithm.partition("-")
    level = int(level_text) if level_text.isascii() and level_text.isdecimal() else 0
    if algorithm == "lz4":
        return lambda block: bytes(lz4.block.compress(block, store_size=False))
    if name == "zstd" and 1 <= level <= 19:
        # A new context for each block would cost more than the compression of 4 KiB.
        context = zstandard.ZstdCompressor(level=level, write_content_size=False, write_checksum=False)
        return context.compress
    if name == "gzip" and 1 <= level <= 9:
        return lambda block: zlib.compress(block, level)
    raise InputError(
        f"unknown compression {algorithm!r}; it should be lz4, zstd-1 to zstd-19 or gzip-1 to gzip-9"
    )


@dataclass(frozen=True)
class _Extent:
    """A run of data in a file: bytes ``start`` to ``end``."""

    path: str
    start: int
    end: int


def sample_files(
    files: Mapping[str, str],
    recordsizes: Sequence[int] = RECORDSIZES,
    algorithms: Sequence[str] = ALGORITHMS,
    seed: int = 1,
    keep: Path | None = None,
    touched: Places | None = None,
    passing: Mapping[str, Sequence[bytes]] | None = None,
) -> tuple[list[Compressibility], list[Sample]]:
    """Sample ``files`` (path → role) and return how they compress, by role, record size and algorithm.

    A file shorter than the record size is one block of its own length, as in ZFS. Blocks of zeros alone,
    which ZFS stores as holes when compression is on, are counted in ``holes`` and left out of ``ratio``.
    Files that are gone, empty, unreadable or not regular are skipped; a role with nothing to read is left
    out. The same ``seed`` and files give the same blocks.

    ``touched``: blocks in random order, which are measured too. ``passing``: role → pieces of its files that
    were read while these were there, which stand for them.

    With ``keep`` (a folder, usually ``TraceWriter.samples_dir``) up to 16 MiB of content per role are written
    to ``keep/ROLE.bin``, as much of what was read and of what was written to ``keep/ROLE-read.bin`` and
    ``keep/ROLE-written.bin``, and the blocks of these that were measured in smaller records to
    ``keep/ROLE-read-BYTES.bin`` …; the second result describes them.
    Raises InputError for an unknown role or algorithm, or a record size that is not a power of two.
    """
    compressors = {algorithm: compressor(algorithm) for algorithm in algorithms}
    for size in recordsizes:
        if size < 512 or not is_power_of_two(size):
            raise InputError(f"the record size {size} should be a power of two from 512")
    by_role: dict[str, list[str]] = {role: [] for role in passing or {}}
    for path, role in files.items():
        if role not in ROLES:
            raise InputError(f"{role!r} is not a role; it should be one of {', '.join(ROLES)}")
        by_role.setdefault(role, []).append(path)
    piece_size = max(CHUNK, *recordsizes) if recordsizes else CHUNK
    measured: list[Compressibility] = []
    samples: list[Sample] = []
    for role in sorted(by_role, key=ROLES.index):
        # A stream of its own per role: that one role appears must not change another's blocks.
        rng = np.random.default_rng([seed, ROLES.index(role)])
        seen = (passing or {}).get(role)
        pieces = list(seen) if seen else list(_draw_pieces(sorted(by_role[role]), piece_size, rng))
        if not pieces:
            continue
        for size in recordsizes:
            blocks = _draw_blocks(pieces, size, rng)
            measured += [_measure(role, size, name, run, blocks) for name, run in compressors.items()]
        kept: list[Sample | None] = []
        for how, places in (touched or {}).get(role, {}).items():
            for size in recordsizes:
                blocks = _blocks_at(places.get(size, ()), size, MEASURED.get(size, 0))
                if not blocks:
                    continue
                measured += [
                    _measure(role, size, name, run, blocks, how) for name, run in compressors.items()
                ]
                if keep is not None and size <= _KEPT:
                    long = size == _KEPT
                    content = _apart(blocks) if long else [one for one in blocks if len(one) == size]
                    kept.append(_keep(role, content, keep, size, how, 0 if long else size))
        if keep is not None:
            kept.insert(0, _keep(role, pieces, keep, None if any(kept) else _HOLE))
            samples += [sample for sample in kept if sample is not None]
    return measured, samples


def with_embedded(files: Sequence[TraceFile]) -> list[TraceFile]:
    """Return ``files`` with what of the small ones with a role is ``embedded``.

    A database has many that are all but empty, PostgreSQL two of five: an index without entries, a map of
    free space. To read one costs no I/O of its own, where the content of its role's large files would. Those
    that are gone or can't be read, and what is beyond ``MOST_SMALL``, are left as they are.
    """
    small = (f for f in files if f.role is not None and 0 < f.size_end <= _LARGEST_EMBEDDED and not f.deleted)
    found = {file.id for file in itertools.islice(small, MOST_SMALL) if _embeds(file.path)}
    return [file.model_copy(update={"embedded": True}) if file.id in found else file for file in files]


def _embeds(path: str) -> bool:
    content = noatime.part(path, 0, _LARGEST_EMBEDDED + 1)
    if not 0 < len(content) <= _LARGEST_EMBEDDED:
        return False
    return len(lz4.block.compress(content, store_size=False)) <= POINTER_BYTES


def _extents(path: str) -> Iterator[_Extent]:
    """Yield the runs of data in ``path``; the whole file unless it is sparse."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return
        # Half, since compression below (ZFS, btrfs) also makes fewer blocks than bytes.
        if status.st_blocks * 512 >= status.st_size // 2:
            yield _Extent(path, 0, status.st_size)
            return
        fd = noatime.open_regular(path, os.O_NOFOLLOW)
    except OSError:
        return
    try:
        end = 0
        for _ in range(MOST_EXTENTS):
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
            yield _Extent(path, start, end)
    except OSError:  # ENXIO: no more data
        pass
    finally:
        os.close(fd)


def _draw_pieces(paths: Iterable[str], piece_size: int, rng: np.random.Generator) -> Iterator[bytes]:
    """Yield aligned pieces of up to ``piece_size``, about ``READ_BUDGET`` bytes of them, as ``_spread`` has
    them over the files in the order of their paths.

    Each piece is equally likely, be it a small file or a part of a large one, and so is each byte of data.
    """
    extents, firsts, counts = [], [], []
    for path in paths:
        last = -1
        for extent in _extents(path):
            # Two runs of data in one piece are read together.
            first = max(extent.start // piece_size, last + 1)
            last = max(last, (extent.end - 1) // piece_size)
            if first <= last:
                extents.append(extent)
                firsts.append(first)
                counts.append(last + 1 - first)
    if not extents:
        return
    ends = np.cumsum(counts)
    budget = max(READ_BUDGET, piece_size)
    most = budget // 4096  # pieces; smaller files are rarely a role's bulk
    for number in _spread(int(ends[-1]), most, rng):
        index = int(np.searchsorted(ends, number, "right"))
        nth = firsts[index] + int(number) - int(ends[index] - counts[index])
        if piece := noatime.part(extents[index].path, nth * piece_size, min(piece_size, budget)):
            yield piece
            budget -= len(piece)
        if budget < 4096:
            return


def _spread(total: int, most: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return up to ``most`` of the numbers below ``total``, each once and each as likely, so that however
    many of the first are taken lie evenly over all: a table has its share of them, where chance alone would
    give it twice that or none.

    Steps of the golden ratio round a circle are the most even there are (Knuth, TAOCP 3, 6.4, theorem S).
    """
    steps = (rng.random() + np.arange(min(total, most)) * _GOLDEN) % 1.0
    numbers, first = np.unique(np.minimum((steps * total).astype(np.int64), total - 1), return_index=True)
    found = numbers[np.argsort(first)]
    left = min(total, most) - len(found)
    if left <= 0:
        return found
    others = np.setdiff1d(np.arange(total), numbers) if total <= 2 * most else np.empty(0, np.int64)
    return np.concatenate([found, rng.permutation(others)[:left]])


def _draw_blocks(pieces: list[bytes], size: int, rng: np.random.Generator) -> list[bytes]:
    """Return blocks of ``size`` bytes (shorter if the piece is) at places spread evenly over all bytes.

    A block is the likelier the longer it is; see ``_measure``. Where blocks are few, all are taken.
    """
    starts = [(i, at) for i, piece in enumerate(pieces) for at in range(0, len(piece), size)]
    lengths = [min(size, len(pieces[i]) - at) for i, at in starts]
    ends = np.cumsum(lengths)
    wanted = min(len(starts), MEASURED.get(size, max(LEAST_BLOCKS, BLOCK_BUDGET // size)))
    places = (rng.random() + np.arange(wanted)) * (int(ends[-1]) / wanted)
    found = (starts[int(n)] for n in np.searchsorted(ends, places, "right"))
    return [pieces[i][at : at + size] for i, at in found]


def _blocks_at(places: Iterable[tuple[str, int]], size: int, most: int) -> list[bytes]:
    """Return the first ``most`` blocks of ``size`` bytes at ``places`` that are still there."""
    return list(itertools.islice(filter(None, (noatime.part(path, at, size) for path, at in places)), most))


def _apart(blocks: Sequence[bytes]) -> list[bytes]:
    """Return ``blocks`` with those that are there several times as far from each other as can be: a record of
    1 MiB has several, and zstd would find the second. Short ones are last: what follows one begins where no
    record does.
    """
    seen: Counter[bytes] = Counter()
    turns = []
    for block in blocks:
        turns.append(seen[block])
        seen[block] += 1
    order = sorted(range(len(blocks)), key=lambda n: (-len(blocks[n]), turns[n]))
    return [blocks[n] for n in order]


def _measure(
    role: str, size: int, algorithm: str, compress: Compressor, blocks: list[bytes], how: Touched = ""
) -> Compressibility:
    full = [block for block in blocks if block != bytes(len(block))]
    before = np.array([len(block) for block in full], np.int64)
    # A block that would grow is stored as it is.
    after = np.minimum([len(compress(block)) for block in full], before)
    # Blocks drawn by their bytes weigh alike, whatever their length; each that was touched was as likely.
    weight = np.ones(len(full)) if how else 1 / before
    return Compressibility(
        role=role,  # type: ignore[arg-type]  # checked against ROLES
        recordsize=size,
        algorithm=algorithm,
        ratio=round(float((before * weight).sum() / (after * weight).sum()), 4) if full else 1.0,
        stdev=round(float(np.std(before / after)), 4) if full else 0.0,
        blocks=len(full),
        holes=len(blocks) - len(full),
        touched=bool(how),
        how=how,
        shares=_parts(after / before, before * weight) if full else [],
    )


def _parts(shares: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]) -> list[float]:
    """Return the means of sixteen parts of sorted ``shares`` that weigh alike; there may be fewer shares."""
    order = np.argsort(shares)
    sums = np.concatenate([[0.0], np.cumsum((shares * weight)[order])])
    place = np.concatenate([[0.0], np.cumsum(weight[order])]) / weight.sum()
    edges = np.interp(np.linspace(0, 1, SHARES + 1), place, sums / weight.sum())
    return [round(float(part), 5) for part in np.diff(edges) * SHARES]


def _keep(
    role: str, pieces: list[bytes], folder: Path, hole: int | None, how: Touched = "", size: int = 0
) -> Sample | None:
    """Write the pieces' content to a file in ``folder`` in whole chunks; None if it does not fill one.

    Filled up with itself it would repeat within a record of 1 MiB, as the files do not.
    ``hole``: aligned runs of so many zeros are left out, where what a job moves is replayed by the content:
    they come from space allocated ahead (new WAL segments), which the database writes once, and would make
    everything that is replayed look too compressible. Of blocks it is all of one, or the next would not begin
    where records do. ``size``: of the pieces, if they are for records of that size.
    """
    content = bytearray()
    for piece in pieces:
        step = hole or len(piece)
        for start in range(0, len(piece), step):
            run = piece[start : start + step]
            if hole is None or run != bytes(len(run)):
                content += run
        # The next piece starts at its own alignment, else its pages would straddle blocks.
        while gap := -len(content) % 4096:
            content += piece[:gap]
    if len(content) < CHUNK:
        return None
    del content[KEPT_BUDGET:]
    real = bytes(content)
    while missing := -len(content) % CHUNK:
        content += real[:missing]
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{role}{f'-{how}' if how else ''}{f'-{size}' if size else ''}.bin"
    with naming(folder / name):
        (folder / name).write_bytes(content)
    return Sample(
        role=role,  # type: ignore[arg-type]
        file=f"samples/{name}",
        chunk=CHUNK,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        touched=bool(how),
        how=how,
        recordsize=size,
    )
