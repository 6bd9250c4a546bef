"""Data that repeats at a distance, as no user's does: none of ours does, and what does is warned of."""

from __future__ import annotations

import gzip
import io
import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trace_builder import build, files

from ztune.databases.http.onhost.documents import Documents
from ztune.databases.ldap.onhost import subscribers
from ztune.databases.mongodb.onhost import documents
from ztune.databases.rocksdb.onhost import client as rocksdb_client
from ztune.databases.sqlite.onhost import client as sqlite_client
from ztune.errors import MissingError
from ztune.onhost.jobs import filler, triples
from ztune.onhost.jobs.client_program import Values
from ztune.output import Console
from ztune.trace.compressibility import ALGORITHMS, CHUNK, sample_files
from ztune.trace.content import content_pools
from ztune.trace.inputs import content_name
from ztune.trace.manifest import Compressibility
from ztune.trace.reader import Trace
from ztune.trace.repeats import SHORT_SIGHTED, repeats
from ztune.trace.summary import summarise
from ztune.trace.view import show_roles

SIZES = tuple(4096 << n for n in range(9))
MUCH = 8 << 20
NEIGHBOURS = 1.1
"""The most that one algorithm may gain on another from one record size to the next."""


def sqlite_rows(_: Path) -> bytes:
    notes = (sqlite_client.note(list(filler.PHRASES), 1, key) for key in itertools.count())
    return b"".join(f"{key}|{note}".encode() for key, note in zip(range(MUCH // 100), notes, strict=False))


def web_documents(_: Path) -> bytes:
    made = Documents(MUCH, 16384, 1)
    return b"".join(made.text(n) for n in range(made.count))


def ldif(_: Path) -> bytes:
    return b"".join(subscribers.entries(4000, 5, 1))


def dumped(tmp_path: Path) -> bytes:
    documents.write("debian", tmp_path / "dump.gz", 8000, 1)
    return gzip.decompress((tmp_path / "dump.gz").read_bytes())


def triple_file(tmp_path: Path) -> bytes:
    triples.write("debian", tmp_path / "triples", 80_000)
    return (tmp_path / "triples").read_bytes()


def rocksdb_values(_: Path) -> bytes:
    values = Values(400, filler.fresh_share(0.5), list(filler.PHRASES), 1)
    return b"".join(rocksdb_client.key_of(k) + values.of(k, 0) for k in range(MUCH // 416))


def fio_blocks(tmp_path: Path) -> bytes:
    if shutil.which("fio") is None:
        pytest.skip("no fio here")
    # As the job's own options say it, block after block.
    subprocess.run(
        [
            *("fio", "--name=x", f"--filename={tmp_path / 'f'}", f"--size={MUCH}", "--rw=write", "--bs=8k"),
            *("--buffer_compress_percentage=50", "--refill_buffers=1", "--output=/dev/null"),
        ],
        check=True,
        cwd=tmp_path,
    )
    return (tmp_path / "f").read_bytes()


def entry(algorithm: str, size: int, ratio: float, role: str = "data") -> Compressibility:
    return Compressibility(role=role, recordsize=size, algorithm=algorithm, ratio=ratio, blocks=8)  # type: ignore[arg-type]


def table(path: Path) -> list[Compressibility]:
    return sample_files({str(path): "data"}, SIZES)[0]


@pytest.mark.parametrize(
    "made",
    [sqlite_rows, web_documents, ldif, dumped, triple_file, rocksdb_values, fio_blocks],
    ids=lambda made: made.__name__,
)
def test_no_generator_repeats_itself_at_a_distance(made: Callable[[Path], bytes], tmp_path: Path) -> None:
    try:
        content = made(tmp_path)
    except MissingError as error:
        pytest.skip(str(error))
    assert len(content) > MUCH // 2
    (tmp_path / "content").write_bytes(content)
    measured = table(tmp_path / "content")
    assert repeats(measured) == []
    ratios = {name: [e.ratio for e in measured if e.algorithm == name] for name in ALGORITHMS}
    for name in ALGORITHMS:
        beside = [a / b for a, b in zip(ratios[name], ratios[SHORT_SIGHTED], strict=True)]
        for now, larger in itertools.pairwise(beside):
            assert larger < NEIGHBOURS * now, (made.__name__, name, ratios)


def repeating(distance: int, size: int = MUCH) -> bytes:
    """Return values as ``db_bench`` makes them: pieces of one buffer of ``distance`` bytes, over and over."""
    rng = np.random.default_rng(1)
    buffer = b"".join(2 * rng.integers(32, 127, 50, np.uint8).tobytes() for _ in range(distance // 100))
    out = io.BytesIO()
    for key in range(size // 416):
        at = key * 400 % (len(buffer) - 400)
        out.write(int(rng.integers(1 << 62)).to_bytes(16, "big") + buffer[at : at + 400])
    return out.getvalue()


@pytest.mark.parametrize(
    "distance, said", [(48 << 10, "32K to 64K"), (200 << 10, "128K to 256K"), (700 << 10, "512K to 1M")]
)
def test_data_that_repeats_is_told_with_its_distance(distance: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(repeating(distance))
    [sentence] = repeats(table(tmp_path / "f"))
    assert f"role data repeat at a distance of about {said}" in sentence
    # With the record sizes that a recording measures too.
    assert len(repeats(sample_files({str(tmp_path / "f"): "data"})[0])) == 1


def db_bench() -> list[Compressibility]:
    """What was measured of the tables of ``db_bench`` 7.8.3 with snappy."""
    sizes = (4096, 8192, 16384, 32768, 65536, 131072, 1 << 20)
    found = {
        "lz4": (1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07),
        "zstd-3": (1.23, 1.26, 1.28, 1.29, 1.32, 1.39, 2.39),
        "gzip-6": (1.22, 1.24, 1.26, 1.27, 1.29, 1.30, 1.31),
    }
    return [entry(name, s, r) for name, ratios in found.items() for s, r in zip(sizes, ratios, strict=True)]


def test_screening_and_the_trace_s_own_page_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace: Trace = build(tmp_path / "a.trace", [], files(("/d", "data", 0)), compressibility=db_bench())
    warnings: list[str] = []
    content_pools(trace, tmp_path / "pools", warnings)
    [sentence] = warnings
    assert "128K to 1M: zstd-3 shrinks them 2.39:1" in sentence and "gzip-6 1.31 and 1.30" in sentence
    show_roles(Console(width=400), summarise(trace))
    assert "repeat at a distance of about 128K to 1M" in capsys.readouterr().out


def test_records_of_zeros_do_not_repeat() -> None:
    """As measured of InfluxDB: files of 4 MiB with a few bytes, where smaller blocks are all zeros."""
    zstd = [entry("zstd-3", s, r) for s, r in ((131072, 2.05), (1 << 20, 1187.5))]
    gzip_6 = [entry("gzip-6", s, r) for s, r in ((131072, 2.18), (1 << 20, 554.7))]
    assert repeats([*zstd, *gzip_6]) == []


def test_logs_repeat_by_nature() -> None:
    """Images of the same pages, again and again: what SQLite's WAL really measured."""
    sizes = (65536, 131072, 1 << 20)
    zstd = [entry("zstd-3", s, r, "wal") for s, r in zip(sizes, (3.03, 3.43, 6.35), strict=True)]
    gzip_6 = [entry("gzip-6", s, r, "wal") for s, r in zip(sizes, (2.92, 3.07, 3.19), strict=True)]
    assert repeats([*zstd, *gzip_6]) == []


def test_content_too_short_for_a_chunk_is_not_filled_up_with_itself(tmp_path: Path) -> None:
    """What is kept is replayed: twice the same 600 KiB would halve in records of 1 MiB."""
    (tmp_path / "f").write_bytes(np.random.default_rng(1).bytes(600 << 10))
    measured, samples = sample_files({str(tmp_path / "f"): "data"}, keep=tmp_path / "samples")
    assert samples == []
    trace = build(tmp_path / "a.trace", [], files(("/d", "data", 0)), compressibility=measured)
    pool = content_pools(trace, tmp_path / "pools")[content_name("data", CHUNK)]
    [entry_] = sample_files({str(pool): "data"}, [CHUNK], ["zstd-3"])[0]
    assert entry_.ratio < 1.05
