"""Provides the content that replay writes: kept samples, or bytes made to compress as was measured.

What a job touches has content of its own, and what it does not touch, which takes space alone, another.

Synthesis. Content is a string of units of 32 bytes, in runs. A unit is *fresh* (random bytes), *text* (random
characters of an alphabet of 16, which entropy coding halves but lz4 can't), or a *copy* of the unit some
distance back. A copy helps a compressor only if its original lies in the same record, so copies at several
distances make the ratio grow with the record size as measured. The shares are found by compressing what
they produce and correcting them, a fixed number of times, from a fixed seed: the same measurements give the
same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ztune.errors import unwritten
from ztune.onhost.host import shared_files
from ztune.onhost.words import ROLES
from ztune.trace.compressibility import CHUNK, compressor
from ztune.trace.holes import filled_holes
from ztune.trace.inputs import EMBEDDED, UNTOUCHED
from ztune.trace.manifest import DEFAULT_RATIO, Compressibility, content_unknown
from ztune.trace.reader import Trace
from ztune.trace.repeats import repeats

SYNTHESIS_VERSION = 1  # part of the file names, so that a changed recipe makes new files
POOL_CHUNKS = 16  # chunks of 1 MiB per synthesised pool
UNIT = 32  # bytes
_TRIAL_CHUNKS = 2  # made and compressed in each step of the calibration
_STEPS = 20
_GAIN = 0.8
_MOST_COPIES = 0.995
_LONGEST_RUN = 64  # units, on average
_WINDOW = 64 << 10  # lz4 sees no further back
_ENTROPY = "zstd-3"
_HEADER = 8  # bytes


@dataclass(frozen=True)
class ContentRecipe:
    """Shares of units: ``copies[i]`` from up to ``distances[i]`` units back; ``text`` of the rest is text."""

    distances: tuple[int, ...]
    copies: tuple[float, ...]
    text: float


def content_pools(trace: Trace, folder: Path, warnings: list[str] | None = None) -> dict[str, Path]:
    """Return a file of content for each role of ``trace``: a whole number of chunks of 1 MiB; and one by the
    role's name with ``UNTOUCHED``, where that was measured apart; ``EMBEDDED``'s, where there are such files.

    Kept samples are used where the trace has them. For other roles a pool is synthesised in ``folder`` to
    meet the measured lz4 and zstd-3 ratios (or used again if it is there already). Where nothing was measured
    the ratio is 2:1, and a sentence saying so is appended to ``warnings``; so is one for each role whose data
    repeats as no user's does, and one where a load fills many holes. Raises InputError if a sample is
    damaged, ZtuneError if ``folder`` can't be written.
    """
    pools: dict[str, Path] = {}
    used = {file.role for file in trace.manifest.files if file.role is not None}
    for role in sorted(used, key=ROLES.index):
        measured = trace.manifest.compresses(role)
        apart = any(entry.touched for entry in measured)
        kept, kept_touched = _kept(trace, role), _kept(trace, role, touched=True)
        # Content that is kept is truer than what is made like it.
        pool = kept_touched or kept
        if kept_touched or (apart and not kept):
            every = [
                e for e in trace.manifest.compressibility if e.role == role and e.blocks and not e.touched
            ]
            pools[role + UNTOUCHED] = kept or _pool(role, every, folder)
        if pool is not None:
            pools[role] = pool
            continue
        if not any(entry.algorithm == "lz4" for entry in measured) and warnings is not None:
            warnings.append(content_unknown(role))
        pools[role] = _pool(role, measured, folder)
    if any(file.embedded and file.role is not None for file in trace.manifest.files):
        pools[EMBEDDED] = _made(folder / f"{EMBEDDED}-{SYNTHESIS_VERSION}.bin", CHUNK, all_but_empty)
    if warnings is not None:
        warnings += [*repeats(trace.manifest.compressibility), *filled_holes(trace.manifest)]
    return pools


def _kept(trace: Trace, role: str, touched: bool = False) -> Path | None:
    found = trace.sample(role, touched)
    return found[1] if found is not None and found[0].chunk == CHUNK else None


def synthesise(measured: Sequence[Compressibility], chunks: int = POOL_CHUNKS, seed: int = 1) -> bytes:
    """Return ``chunks`` MiB whose lz4 (and, as far as can be, zstd-3) ratios are those of ``measured``."""
    lz4 = {entry.recordsize: entry.ratio for entry in measured if entry.algorithm == "lz4" and entry.blocks}
    zstd = {
        entry.recordsize: entry.ratio for entry in measured if entry.algorithm == _ENTROPY and entry.blocks
    }
    return generate(calibrate(lz4 or {16384: DEFAULT_RATIO}, zstd, seed), chunks, seed)


def calibrate(lz4: dict[int, float], zstd: dict[int, float], seed: int = 1) -> ContentRecipe:
    """Return the recipe whose content compresses by ``lz4`` and ``zstd`` (record size in bytes → ratio).

    lz4 is met first: its ratios at all record sizes up to 128 KiB; then zstd-3's mean over the same sizes.
    """
    sizes = sorted(size for size in lz4 if size <= 2 * _WINDOW) or sorted(lz4)[:1]
    # A copy counts from the record size on that holds both it and its original; the first kind always counts.
    distances = tuple(max(2, min(size, _WINDOW) * 3 // 4 // UNIT) for size in [sizes[0] // 16, *sizes[1:]])
    saved = np.array([1 - 1 / max(1.0, lz4[size]) for size in sizes])
    wanted = np.diff(np.maximum.accumulate(saved), prepend=0.0)
    zstd_sizes = [size for size in sizes if size in zstd]
    zstd_saved = np.mean([1 - 1 / max(1.0, zstd[size]) for size in zstd_sizes]) if zstd_sizes else None

    best: tuple[float, ContentRecipe] | None = None
    copies, text = wanted.copy(), 0.0 if zstd_saved is None else 0.5
    for _ in range(_STEPS):
        recipe = ContentRecipe(distances, tuple(float(share) for share in copies), float(text))
        content = generate(recipe, _TRIAL_CHUNKS, seed)
        got = np.array([1 - 1 / _ratio(content, "lz4", size) for size in sizes])
        # What is left after compression is what costs space, so errors are relative to that.
        error = float(np.max(np.abs(np.log((1 - got) / (1 - saved)))))
        missing = np.diff(saved - got, prepend=0.0)
        if zstd_saved is not None:
            zstd_got = np.mean([1 - 1 / _ratio(content, _ENTROPY, size) for size in zstd_sizes])
            # Less weight: lz4 is what most layouts use, and some pairs of ratios can't both be met.
            error += 0.3 * float(abs(np.log((1 - zstd_got) / (1 - zstd_saved))))
            text = float(np.clip(text + 1.5 * (zstd_saved - zstd_got) / max(0.05, 1 - copies.sum()), 0, 1))
        if best is None or error < best[0]:
            best = error, recipe
        copies = _corrected(copies, _GAIN * missing)
    assert best is not None
    return best[1]


def _corrected(copies: npt.NDArray[np.float64], change: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ``copies + change`` within bounds: what would make one kind negative is taken from the next."""
    corrected = copies + change
    debt = 0.0
    for index, share in enumerate(corrected):
        corrected[index], debt = max(share + debt, 0.0), min(share + debt, 0.0)
    corrected *= min(1.0, _MOST_COPIES / max(float(corrected.sum()), 1e-9))
    return corrected


def generate(recipe: ContentRecipe, chunks: int, seed: int) -> bytes:
    """Return ``chunks`` MiB made by ``recipe``."""
    rng = np.random.default_rng(seed)
    count = chunks * CHUNK // UNIT
    # Runs, so that neighbouring copies join into long matches, as in real rows.
    shares = np.array(recipe.copies)
    fresh = max(1e-3, 1 - float(shares.sum()))
    run = min(max(2.0, 1.0 / fresh), _LONGEST_RUN)
    lengths = rng.geometric(1 / run, int(count / run * 1.5) + 64)
    kinds = rng.choice(
        len(shares) + 2,
        len(lengths),
        p=_normal([*shares, fresh * recipe.text, fresh * (1 - recipe.text)]),
    )
    backs = np.array([*recipe.distances, 0, 0])[kinds]
    spread = rng.uniform(2 / 3, 1.0, len(kinds))
    backs = np.ceil(backs * spread).astype(np.int64)
    kind = np.repeat(kinds, lengths)[:count]
    back = np.repeat(backs, lengths)[:count]
    kind = np.resize(kind, count)
    back = np.resize(back, count)

    place = np.arange(count)
    source = np.maximum(place - back, 0)
    # A copy's original may be a copy: follow the chain by doubling until each unit knows its fresh one.
    while True:
        further = source[source]
        if np.array_equal(further, source):
            break
        source = further
    noise = rng.integers(0, 256, (count, UNIT), np.uint8)
    text_units = kind[source] == len(shares)
    alphabet = np.frombuffer(b"etaoinshrdlu 012", np.uint8)
    units: npt.NDArray[np.uint8] = noise[source]
    units[text_units] = alphabet[units[text_units] & 15]
    return units.tobytes()


def _normal(shares: list[float]) -> npt.NDArray[np.float64]:
    array = np.array(shares, np.float64)
    normal: npt.NDArray[np.float64] = array / array.sum()
    return normal


def _ratio(content: bytes, algorithm: str, size: int) -> float:
    compress = compressor(algorithm)
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    return len(content) / sum(min(len(compress(block)), len(block)) for block in blocks)


def _pool(role: str, measured: list[Compressibility], folder: Path) -> Path:
    key = [[entry.algorithm, entry.recordsize, entry.ratio] for entry in measured]
    name = hashlib.sha256(json.dumps([SYNTHESIS_VERSION, POOL_CHUNKS, sorted(key)]).encode()).hexdigest()[:16]
    return _made(
        folder / f"{role}-{name}.bin",
        POOL_CHUNKS * CHUNK,
        lambda: synthesise(measured, seed=1 + ROLES.index(role)),
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
