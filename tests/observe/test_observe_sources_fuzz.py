"""Cut, mixed up and damaged files: an InputError or an observation, never anything else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ztune.errors import InputError
from ztune.observe.model import Observation
from ztune.observe.sources import MEANINGS, READERS, read_files

DATA = Path(__file__).parent / "data"
DTRACE = (
    b"\n  wal_write                                         \n"
    b"           value  ------------- Distribution ------------- count    \n"
    b"           32768 |                                         0        \n"
    b"           65536 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 102876   \n"
    b"          131072 |                                         0        \n"
    b"\n#ztune write-bytes call path\n  write  /a/b.db  777\n#ztune seconds 12.5\n#ztune end\n"
)
SAMPLES = [p.read_bytes()[:9000] for p in sorted(DATA.iterdir()) if p.suffix != ".toml"] + [DTRACE]
SAMPLES.append(
    read_files([DATA / "strace-fT.txt", DATA / "fio-disk.json"]).model_dump_json(indent=1).encode()
)
FORMATS = [None, *(reader.name for reader in READERS)]
SPACES = b" " * 200_000
ODD = [
    b"[" * 100_000,
    b"{" * 100_000,
    b'{"jobs":' * 50_000,
    b"\0" * 5000,
    b"1\t" * 9000,
    b"\n" * 100_000 + b"x",
    *(
        start + SPACES + b"x\n"
        for start in (b"", b"a", b"1 |", b"1", b"write(", b"@a[", b"-" * 12, b"  8,0 ")
    ),
    DTRACE + b"1 |" + SPACES + b"x\n" + b"a" + SPACES + b"7 x\n",
    b'{"type": "hist", "data": {"@a": [{"min": 3, "max": ' + b"9" * 400 + b', "count": 1}]}}\n',
    b'{"format": "ztune-observation", "version": 1, "seconds": 1e999}',
]
SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def fine(content: bytes, form: str | None, meaning: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.txt"
        path.write_bytes(content)
        try:
            seen = read_files([path], format=form, meaning=meaning)
        except InputError as error:
            assert str(error)
            return
    assert Observation.model_validate_json(seen.model_dump_json()) == seen
    for group in seen.groups:
        for side in (group.reads, group.writes):
            assert side.calls >= sum(side.sizes.values())
            assert all(low == 0 or low & (low - 1) == 0 for low in side.sizes)


@SETTINGS
@given(st.sampled_from(SAMPLES), st.data())
def test_cut_anywhere(sample: bytes, data: st.DataObject) -> None:
    fine(sample[: data.draw(st.integers(0, len(sample)))], None)


@SETTINGS
@given(st.sampled_from(SAMPLES), st.data())
def test_lines_out_of_order_and_lost(sample: bytes, data: st.DataObject) -> None:
    lines = sample.splitlines(keepends=True)
    indexes = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=40))
    fine(b"".join(lines[i] for i in indexes), data.draw(st.sampled_from(FORMATS)))


@SETTINGS
@given(st.sampled_from(SAMPLES), st.data())
def test_bytes_changed(sample: bytes, data: st.DataObject) -> None:
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(sample) - 1))
        changed[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from([b"-1", b"9" * 30, b"\n", b"null", b"[", b"1e999", b"0"]),
            )
        )
    fine(bytes(changed), data.draw(st.sampled_from(FORMATS)), data.draw(st.sampled_from([None, *MEANINGS])))


@SETTINGS
@given(st.binary(max_size=300), st.sampled_from(FORMATS))
def test_anything(content: bytes, form: str | None) -> None:
    fine(content, form)


@pytest.mark.parametrize("form", FORMATS[1:])
@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
@pytest.mark.timeout(20)
def test_deep_and_odd(content: bytes, form: str) -> None:
    fine(content, form)
