"""Real samples with one value changed for a bad one: an observation that can be shown, or one line of text.

The bytes are changed by test_observe_sources_fuzz; here the structure stays, and what a field says changes.
"""

from __future__ import annotations

import copy
import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from observations import observation

from ztune.advice.findings import findings, undecided
from ztune.errors import InputError
from ztune.observe.model import Observation
from ztune.observe.sources import READERS, read_files
from ztune.output import Console
from ztune.report import observed_html, observed_terminal

DATA = Path(__file__).parent / "data"
TEXTS = {
    path.name: path.read_bytes()[:4000] for path in sorted(DATA.iterdir()) if path.suffix in (".txt", ".json")
}
_NUMBER = re.compile(rb"\d+(?:[.,]\d+)*")
_BAD_NUMBERS = [
    *(b"9" * n for n in (19, 24, 40, 400, 5000)), *(b"1e308", b"1e400", b"-1", b"NaN", b"Infinity", b"0"),
    *(b"1.5", b"18446744073709551616", b"null", b"true", b"[]", b'"\\ud800"', b'"a\\nb\\u001b[31m"', b"\xff"),
]  # fmt: skip
_BAD_VALUES: list[Any] = [
    *(10**19, 10**24, 10**400, 2**63, 2**64, -1, -(10**400), 0, 1.5, 1e308, 5e-324, True, None, [], {}),
    *("", "x", "\ud800", "a\nb\x1b[31m", "nan", "1e400", "9" * 30, "-5", "3.5x", float("inf"), float("nan")),
]
SHOWN = 12  # of those that are read, every so many are shown in full


@pytest.fixture
def inputs(request: pytest.FixtureRequest) -> int:
    """How many of each kind of file; the first are always the same."""
    return 250 if request.config.getoption("--long") else 60


def whole() -> dict[str, Any]:
    """An observation with something in every part."""
    series = {"t": [0.0, 1.0], "columns": {"busy_share": [0.5, 0.6]}, "whole": {"busy_share": 0.5}}
    role = {"role": "data", "count": 3, "bytes": 10**9, "allocated": 10**9, "sizes": {"8192": 3},
            "record_sizes": {"131072": 3}, "sector": 4096,
            "compressed": [{"recordsize": 131072, "algorithm": "lz4", "blocks": 3, "ratio": 2.0,
                            "stored_ratio": 1.8, "low": 1.5, "high": 2.1}]}  # fmt: skip
    return observation(
        files=[role], series={"cpu": series, "disk:sda": series}, interrupts={"x": 1}, cpu_seconds=1.0
    ).to_json()


def fio() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "fio-disk.json").read_text())
    return found


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Give the path of every value in a document."""
    if path:
        yield path
    for key, one in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield from places(one, (*path, key))


def with_value(document: Any, path: tuple[str | int, ...], value: Any, *, as_key: bool) -> Any:
    """Return the document with ``value`` at ``path``; as the key there, where it has one."""
    changed = copy.deepcopy(document)
    node = changed
    for part in path[:-1]:
        node = node[part]
    if as_key and isinstance(node, dict):
        node[str(value)] = node.pop(path[-1])
    else:
        node[path[-1]] = value
    return changed


def check(path: Path, shown: bool) -> None:
    """Read the file; what is read can be shown and kept, what is refused is refused in one line."""
    try:
        seen = read_files([path])
    except InputError as error:
        text = str(error)
        assert text and text.isprintable(), text
        return
    if not shown:
        return
    assert Observation.model_validate_json(seen.model_dump_json()) == seen
    found, left = findings(seen), undecided(seen)
    json.dumps([one.model_dump(mode="json") for one in (*found, *left)]).encode()
    json.dumps(seen.to_json(), ensure_ascii=False).encode()
    observed_html.render(seen, found, left).encode()
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    for everything in (False, True):
        observed_terminal.show(Console(file=out, width=100), seen, found, left, everything=everything)
    out.flush()


@pytest.mark.parametrize("name", TEXTS)
def test_numbers_changed(name: str, inputs: int, tmp_path: Path) -> None:
    sample, dice, path = TEXTS[name], random.Random(name), tmp_path / "out.txt"
    spots = list(_NUMBER.finditer(sample))
    for n in range(inputs // 2):
        changed = sample
        for spot in sorted(dice.sample(spots, dice.choice((1, 1, 3))), key=lambda m: -m.start()):
            changed = changed[: spot.start()] + dice.choice(_BAD_NUMBERS) + changed[spot.end() :]
        path.write_bytes(changed)
        check(path, shown=n % SHOWN == 0)


@pytest.mark.parametrize("make", [whole, fio], ids=["own", "fio"])
def test_values_and_keys_changed(make: Any, inputs: int, tmp_path: Path) -> None:
    document, dice, path = make(), random.Random(7), tmp_path / "out.json"
    spots = list(places(document))
    for n in range(6 * inputs):
        value, as_key = dice.choice(_BAD_VALUES), dice.random() < 0.15
        path.write_text(json.dumps(with_value(document, dice.choice(spots), value, as_key=as_key), indent=1))
        check(path, shown=n % SHOWN == 0)


BIG = b"9" * 24
TABLE = b"""% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.100000          10       %s           pwrite64
 10.00    0.010000          10       100           fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.110000                   200           total
"""


def test_counts_beyond_any_counter(tmp_path: Path) -> None:
    path = tmp_path / "strace.txt"
    path.write_bytes(TABLE.replace(b"%s", BIG))
    check(path, shown=True)
    seen = read_files([path])
    assert [call.name for call in seen.calls] == ["fsync"] and any("not understood" in x for x in seen.limits)
    own = whole()
    own["groups"][0]["writes"]["bytes"] = 10**400
    path.write_text(json.dumps(own))
    with pytest.raises(InputError, match=r"groups\[0\]\.writes\.bytes is larger than 2\^64 - 1"):
        read_files([path])
    own["groups"][0]["writes"]["bytes"] = 1
    own["subject"] = "half \ud800"
    path.write_text(json.dumps(own))
    with pytest.raises(InputError, match=r"subject holds half a character"):
        read_files([path])


@pytest.mark.parametrize("reader", [reader.name for reader in READERS])
def test_bytes_that_are_not_utf_8(reader: str, tmp_path: Path) -> None:
    for name, sample in TEXTS.items():
        path = tmp_path / name
        path.write_bytes(sample[:200] + b"\xff\xfe\x80 \xc3(" + sample[200:])
        try:
            seen = read_files([path], format=reader)
        except InputError as error:
            assert str(error).isprintable()
        else:
            json.dumps(seen.to_json(), ensure_ascii=False).encode()


def test_a_series_with_more_or_fewer_values_than_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for times in ([], [0.0], [0.0, 1.0, 2.0]):
        document = whole()
        document["series"]["disk:sda"]["t"] = times
        path.write_text(json.dumps(document))
        with pytest.raises(InputError, match=rf"busy_share has 2 values at {len(times)} times"):
            read_files([path])


def test_a_series_of_nothing_but_negative_values_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    document = whole()
    document["series"]["disk:sda"]["columns"]["busy_share"] = [-1.0, 0.0]
    path.write_text(json.dumps(document))
    check(path, shown=True)
