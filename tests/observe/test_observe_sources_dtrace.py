"""DTrace's output: the published histograms in its form, odd forms of it, and our own scripts' headers."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from ztune.errors import InputError
from ztune.observe.model import Group, Observation
from ztune.observe.sources import read_files
from ztune.observe.sources.dtrace import FACTS, HISTOGRAMS, KEYS, SUMS
from ztune.trace.roles import RoleRules

DATA = Path(__file__).parent / "data"
SCRIPTS = sorted((Path(__file__).parents[2] / "dtrace").glob("*.d"))
STUDIES = tomllib.loads((DATA / "studies.toml").read_text("utf-8"))
TITLE = "           value  ------------- Distribution ------------- count    "


def quantize(key: str, buckets: Mapping[int, int], number: str = "d") -> str:
    """Print a histogram as dtrace does: one empty row before and after, bars of 40 columns."""
    low, high = min(b for b in buckets if b), max(buckets)
    rows = [0] if low == 1 else [low // 2]
    while rows[-1] < 2 * high:
        rows.append(rows[-1] * 2 or 1)
    total = sum(buckets.values())
    lines = [f"  {key:<50}", TITLE] if key else [TITLE]
    for row in rows:
        n = buckets.get(row, 0)
        lines.append(f"{row:>16} |{'@' * (40 * n // total):<40} {format(n, number):<8}")
    return "\n" + "\n".join(lines) + "\n"


def read(tmp_path: Path, text: str, name: str = "out.txt", **options: object) -> Observation:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return read_files([path], **options)  # type: ignore[arg-type]


def group(observation: Observation, kind: str, name: str, role: str | None = None) -> Group:
    (found,) = [g for g in observation.of_kind(kind) if g.name == name and (role is None or g.role == role)]
    return found


def whole(buckets: Mapping[str, int]) -> dict[int, int]:
    return {int(low): n for low, n in buckets.items()}


@pytest.mark.parametrize("study", STUDIES)
def test_published_histograms_come_back_exactly(study: str, tmp_path: Path) -> None:
    histograms = {key: whole(buckets) for key, buckets in STUDIES[study].items()}
    seen = read(tmp_path, "".join(quantize(key, buckets) for key, buckets in histograms.items()))
    roles: dict[str, Counter[int]] = {}
    for key, buckets in histograms.items():
        role = {"all": "none", "lucene": "index"}.get(key.split("_")[0], key.split("_")[0])
        roles.setdefault(role, Counter()).update(buckets)
        if "_" in key and role != "none":
            assert group(seen, "call", key.split("_")[1], role).writes.sizes == buckets
    assert {g.name: g.writes.sizes for g in seen.of_kind("role")} == roles
    assert {g.name: g.writes.calls for g in seen.of_kind("role")} == {r: c.total() for r, c in roles.items()}
    assert not any(g.reads.calls or g.syncs.calls for g in seen.groups)
    assert any("taken for sizes of writes" in sentence for sentence in seen.limits)


def test_a_role_rule_overrides_the_name(tmp_path: Path) -> None:
    text = quantize("lucene_write", {8192: 5})
    assert read(tmp_path, text, rules=RoleRules.parse(["lucene*=temp"])).of_kind("role")[0].role == "temp"
    assert read(tmp_path, text, rules=RoleRules.parse(["lucene*=-"])).of_kind("role")[0].role is None


def test_paths_and_calls_as_keys(tmp_path: Path) -> None:
    seen = read(
        tmp_path,
        "dtrace: description 'syscall::*write:entry' matched 2 probes\n^C\n"
        + quantize("pwrite  /srv/pg/base/5/16384", {8192: 7})
        + quantize("write  /srv/pg/pg_wal/000000010000000000000001", {8192: 3, 16384: 1}),
    )
    assert group(seen, "file", "/srv/pg/base/5/16384").role == "data"
    assert group(seen, "role", "wal").writes.sizes == {8192: 3, 16384: 1}
    assert group(seen, "call", "pwrite", "data").writes.calls == 7


def test_a_block_without_key_is_named_by_the_file(tmp_path: Path) -> None:
    assert group(read(tmp_path, quantize("", {4096: 35}), "wal.txt"), "role", "wal").writes.sizes == {
        4096: 35
    }


def test_as_says_what_it_is(tmp_path: Path) -> None:
    text = quantize("wal", {64: 2, 128: 1})
    seen = group(read(tmp_path, text, meaning="sync-latency-us"), "role", "wal")
    # 64 to 127 µs is 64000 to 127999 ns: most of it in the bucket of 65536.
    assert seen.syncs.latency == {65536: 2, 131072: 1}
    assert group(read(tmp_path, text, meaning="read-sizes"), "role", "wal").reads.sizes == {64: 2, 128: 1}
    with pytest.raises(InputError, match="write-sizes"):
        read(tmp_path, text, meaning="sizes")


def test_fsync_is_taken_for_time(tmp_path: Path) -> None:
    seen = read(tmp_path, quantize("fsync", {1048576: 4}))
    assert seen.of_kind("role")[0].syncs.latency == {1048576: 4}
    assert any("time in ns" in sentence for sentence in seen.limits)


@pytest.mark.parametrize("separator", [",", ".", "'", "_", "\u202f"])
def test_thousands_separators(separator: str, tmp_path: Path) -> None:
    text = quantize("wal", {65536: 1234567}, ",d").replace(",", separator)
    assert read(tmp_path, text).of_kind("role")[0].writes.sizes == {65536: 1234567}


def test_a_cut_histogram_is_kept_and_said(tmp_path: Path) -> None:
    text = quantize("wal", {4096: 9}) + quantize("data", {8192: 35, 65536: 120})
    cut = text[: text.index("65536 |") + len("65536 |@@@@@@@@@")]
    seen = read(tmp_path, cut)
    assert group(seen, "role", "wal").writes.sizes == {4096: 9}
    assert group(seen, "role", "data").writes.sizes == {8192: 35}
    assert any("'data' is cut" in sentence for sentence in seen.limits)
    gap = text[: text.index("65536 |")]  # ends with an empty row, as a whole histogram would
    assert any("'data' is cut" in sentence for sentence in read(tmp_path, gap).limits)
    half = text[: text.index("120 ") + 2]  # the count 120 lost its last digit: "12"
    assert any("'data' is cut" in sentence for sentence in read(tmp_path, half).limits)
    assert not any("cut" in sentence for sentence in read(tmp_path, text).limits)


def test_failed_calls_and_linear_histograms(tmp_path: Path) -> None:
    text = (
        f"\n  wal\n{TITLE}\n"
        "              -2 |                                         0\n"
        f"              -1 |{'@' * 32}         4\n"
        f"               0 |{'@' * 8}                                 1\n"
        "               1 |                                         0\n"
        f"\n  data\n{TITLE}\n"
        "            3000 |                                         0\n"
        f"            5000 |{'@' * 30}           6\n"
        f"         >= 9000 |{'@' * 10}                               2\n"
    )
    seen = read(tmp_path, text)
    assert group(seen, "role", "wal").writes.sizes == {0: 1}
    assert group(seen, "role", "data").writes.sizes == {4096: 6, 8192: 2}
    assert any("4 values below zero" in sentence for sentence in seen.limits)
    assert any("lquantize" in sentence for sentence in seen.limits)
    assert not any("cut" in sentence for sentence in seen.limits)


def test_aggpack_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="aggpack"):
        read(
            tmp_path, "\n              key  min .------------------. max    | count\n  a  1 : ▁▂▃ : 8 | 35\n"
        )


def test_counts_of_calls(tmp_path: Path) -> None:
    seen = read(
        tmp_path, quantize("wal", {1: 1}) + "\n  fsync                          1,204\n  mmap      7\n"
    )
    assert {call.name: call.calls for call in seen.calls} == {"fsync": 1204}


# ---- our own scripts ----


def headers(script: Path) -> list[str]:
    return re.findall(r'printf\("#ztune ([^"\\]*)', script.read_text("utf-8"))


def test_there_are_scripts() -> None:
    assert [script.name for script in SCRIPTS] == [
        "observe-freebsd.d",
        "observe-illumos.d",
        "observe-macos.d",
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_reader_knows_what_the_scripts_print(script: Path) -> None:
    kinds = {}
    for header in headers(script):
        kind, *words = header.split()
        kinds[kind] = words
        assert kind in FACTS or kind in HISTOGRAMS or kind in SUMS
        assert kind in FACTS or KEYS.issuperset(words)
    assert set(kinds) == FACTS | set(HISTOGRAMS) | SUMS
    assert headers(script)[-1] == "end"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_each_header_stands_above_its_own_aggregation(script: Path) -> None:
    text = script.read_text("utf-8")
    pairs = re.findall(r'"#ztune (\S+)((?: \w+)*)\\n"\);\n\tprinta\("([^"]*)", @(\w+)\);', text)
    assert {name.replace("_", "-") for *_, name in pairs} == set(HISTOGRAMS) | SUMS
    for kind, words, form, name in pairs:
        assert name == kind.replace("-", "_")
        filled = re.search(rf"@{name}\[([^\]]*)\] = (quantize|sum|count)\(", text)
        assert filled is not None
        assert len(filled[1].split(",")) == len(words.split()) == form.count("%s")
        assert (filled[2] == "quantize") == (kind in HISTOGRAMS)
    assert text.count("{") == text.count("}")


def printed(script: Path, seconds: str = "12.345") -> str:
    """Print what a script would for two files, by its own printf and printa formats."""
    keys = [("pwrite", "/srv/pg/base/5/16384"), ("write", "/srv/pg/pg_wal/00000001  0000000000000001")]
    body = script.read_text("utf-8")
    out = ""
    for header, form, name in re.findall(
        r'printf\("(#ztune[^"]*)".*?\);(?:\n\tprinta\("([^"]*)", @(\w+)\);)?', body, re.DOTALL
    ):
        out += header.replace("\\n", "\n").replace("%d.%03d", seconds)
        for number, key in enumerate(keys if name else ()):
            values = key if form.count("%s") == 2 else key[:1]
            value = (
                quantize("", {4096 << number: 3 + number}) if "sizes" in name or "latency" in name else "777"
            )
            text = form.replace("\\n", "\n").replace("%@d", value)
            for part in values:
                text = text.replace("%s", part, 1)
            out += text
    return out


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_script_prints_is_read(script: Path, tmp_path: Path) -> None:
    seen = read(tmp_path, printed(script))
    assert seen.platform == script.stem.removeprefix("observe-")
    assert seen.seconds == 12.345
    data, wal = group(seen, "role", "data"), group(seen, "role", "wal")
    assert data.writes.sizes == {4096: 3} and wal.writes.sizes == {8192: 4}
    assert data.writes.latency == {4096: 3} and wal.syncs.latency == {8192: 4}
    assert data.writes.calls == 3 and data.writes.bytes == 777 and wal.reads.bytes == 777
    assert group(seen, "file", "/srv/pg/pg_wal/00000001  0000000000000001").role == "wal"
    (call,) = [call for call in seen.calls if call.name == "pwrite"]
    assert (call.calls, call.seconds, call.errors) == (777, 777e-9, 777)
    assert not any("cut" in sentence or "taken for" in sentence for sentence in seen.limits)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_cut_output_of_a_script_says_so(script: Path, tmp_path: Path) -> None:
    text = printed(script)
    seen = read(tmp_path, text[: text.index("#ztune read-sizes")])
    assert group(seen, "role", "wal").writes.calls == 4
    assert any("it is cut" in sentence for sentence in seen.limits)


def test_an_unknown_header_leaves_out_what_follows(tmp_path: Path) -> None:
    text = (
        "#ztune observe.d 9\n#ztune write-colours call path\n"
        + quantize("write  /a.db", {1: 5})
        + "#ztune write-sizes call path\n"
        + quantize("write  /a.db", {2: 6})
        + "#ztune end\n"
    )
    seen = read(tmp_path, text)
    assert seen.of_kind("role")[0].writes.sizes == {2: 6}
    assert any("write-colours" in sentence for sentence in seen.limits)
    assert any("another version" in sentence for sentence in seen.limits)
