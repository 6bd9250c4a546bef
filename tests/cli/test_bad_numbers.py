"""Numbers that are none, sizes that nothing has, hosts without their bracket: one sentence each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ztune.cli.main import ztune
from ztune.databases import registry
from ztune.errors import InputError, ZtuneError
from ztune.places.placing import Placing
from ztune.places.ssh import Ssh
from ztune.study import load_study, ready
from ztune.study.adjust import adjusted
from ztune.units import parse_size

BAD = [
    "inf",
    "-inf",
    "nan",
    "1e400",
    "-1e400",
    "9" * 30,
    "9" * 400,
    "9" * 5000,
    "1e30",
    "\ud800",
    "a\nb\x1b[3m",
]


def sentence(error: ZtuneError) -> str:
    text = str(error)
    assert text and text.isprintable() and len(text) < 600, text[:700]
    return text


def everything() -> list[tuple[str, str]]:
    found = []
    for entry in registry.entries():
        if entry.source == "ztune":
            found += [
                (entry.name, p.name) for p in entry.parameters if p.type in ("number", "whole number", "size")
            ]
    return found


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
def test_no_parameter_takes_it(value: str) -> None:
    every = everything()
    assert ("postgres-oltp", "rate") in every and len(every) > 60
    for workload, name in every:
        with pytest.raises(InputError) as caught:
            registry.make(workload, {name: value})
        assert name in sentence(caught.value)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, 2**64, -(10**30)])
def test_nor_from_a_studys_toml(value: float) -> None:
    for workload, name in everything():
        with pytest.raises(InputError) as caught:
            registry.make(workload, {name: value})
        sentence(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        *(["screen", "x.trace", "--timeout", v] for v in ("inf", "nan")),
        *(["record", "--seconds", v, "--out", "x", "true"] for v in ("inf", "nan")),
        *(["observe", "--seconds", v] for v in ("inf", "nan")),
        *(["crashtest", "sqlite", "--window", v] for v in ("inf", "nan")),
        *(["run", "sqlite", "--dilation", v] for v in ("inf", "nan")),
        *(["run", "sqlite", "--time-limit", v] for v in ("inf", "nan", "infh", "1e400")),
        *(["run", "sqlite", "--resolution", v] for v in ("inf", "nan", "nan%")),
        *(["recommend", "--within", v] for v in ("inf", "nan", "1e400%")),
    ],
    ids=" ".join,
)
def test_no_option_takes_it(words: list[str], home: Path) -> None:
    found = CliRunner().invoke(ztune, words)
    assert found.exception is None or isinstance(found.exception, SystemExit | ZtuneError), found.exception
    said = found.output if isinstance(found.exception, SystemExit) else str(found.exception)
    if words[0] == "recommend":  # there is no run; it is refused all the same
        return
    assert words[-2 if words[-1] != "true" else 2] in said or words[1 if words[0] == "record" else -2] in said


def options(group: click.Group, *words: str) -> Iterator[tuple[list[str], click.Parameter]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from options(found, *words, name)
            continue
        for parameter in found.params:
            yield [*words, name], parameter


def test_every_number_has_a_most() -> None:
    """Python's numbers have none, and what they are handed to does: islice, SQLite, the kernel, a clock."""
    numbers = click.types.IntParamType | click.types.FloatParamType
    found = [(words, one) for words, one in options(ztune) if isinstance(one.type, numbers)]
    assert len(found) > 20
    for words, one in found:
        assert isinstance(one.type, click.IntRange | click.FloatRange), (words, one.name)
        assert one.type.min is not None and one.type.max is not None, (words, one.name)
        done = CliRunner().invoke(ztune, [*words, one.opts[-1], "9" * 23])
        assert isinstance(done.exception, SystemExit) and done.exit_code == 2, (words, done.exception)
        assert "is not in the range" in done.output


@pytest.mark.parametrize("flag", ["--every", "--for"])
def test_a_time_is_a_year_at_most(flag: str) -> None:
    words = {"--every": "1h", "--for": "1m", flag: "9" * 23}
    done = CliRunner().invoke(ztune, ["record", "--pid", "1", *(w for pair in words.items() for w in pair)])
    assert isinstance(done.exception, InputError)
    assert sentence(done.exception).endswith("such as 90m; a year at most")


@pytest.mark.parametrize(
    "url",
    ["ssh://[::1", "ssh://::1]", "ssh://[", "ssh://[]", "ssh://[x]y", "ssh://h:99999", "ssh://h:x", "ssh://u@[::1:22",
     "ssh://", "ssh://[v1.x", "ssh://h\u2100", "ssh://a b", "ssh://-oProxyCommand=x"],
)  # fmt: skip
def test_a_host_that_is_none(url: str) -> None:
    with pytest.raises(InputError, match=r"is not a host; write ssh://HOST"):
        Ssh(url, Placing())


@pytest.mark.parametrize("arc", ["44M", "16M", "63M", "17T", "9" * 30, "1e400", "inf", "-5", ""])
def test_an_arc_that_no_place_takes(arc: str, tmp_path: Path, home: Path) -> None:
    with pytest.raises(
        ValueError, match=r"64M is the least|is not a size|too large|negative|below 16 EiB"
    ) as caught:
        adjusted(ready.find("sqlite"), arc=arc)
    assert "\n" not in str(caught.value).strip() or "validation error" in str(caught.value)
    for words in (["mount", "sqlite", str(tmp_path / "m"), "--arc", arc], ["run", "sqlite", "--arc", arc]):
        found = CliRunner().invoke(ztune, words)
        assert isinstance(found.exception, InputError), (words, found.output, found.exception)
        assert "--arc" in sentence(found.exception)
        assert not (tmp_path / "m").exists()


STUDY = """
name = "small"
[layout]
arc = "64M"
[[layout.pool]]
name = "tank"
[[layout.pool.vdev]]
profile = "nvme"
[[layout.dataset]]
name = "tank/data"
roles = ["data"]
[axes]
arc = ["64M", "128M"]
[[layouts]]
name = "more"
set = { arc = "256M" }
"""


@pytest.mark.parametrize(
    "old, new, said",
    [
        (
            'arc = "64M"\n[[',
            'arc = "44M"\n[[',
            "4: layout.arc: 44M is too small for an ARC; 64M is the least",
        ),
        ('["64M", "128M"]', '["64M", "32M"]', "axes.arc[1]: 32M is too small for an ARC"),
        ('{ arc = "256M" }', '{ arc = "17T" }', "layouts[0].set.arc: 17T is too large for an ARC"),
    ],
)
def test_an_arc_in_a_study(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY)
    load_study(path)
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_study(path)
    assert said in sentence(caught.value)


def test_sizes_that_nothing_has() -> None:
    for text in ("16E", "9" * 61, "9" * 5000, "9" * 25, 2**64, "1.5", "1e5"):
        with pytest.raises(ValueError) as caught:
            parse_size(text)
        assert len(str(caught.value)) < 200 and "digits" not in str(caught.value)
    assert parse_size("15E") == 15 << 60


_SPOT = r"\"[^\"\n]*\"|(?<![\w.\"])-?\d+(?:\.\d+)?(?![\w.\"])"
_VALUES = [
    *("9" * 19, "9" * 40, "9" * 400, "9" * 5000, "inf", "-inf", "nan", "1e400", "-1", "0", "1.5", "true"),
    *("[]", "{}", '""', '"x"', '"1e400"', '"nan"', '"-1"', '"16E"', '"128K"', '"\\u001b[31m"', '"a\\nb"'),
]  # fmt: skip


@pytest.mark.parametrize("name", ["everything.toml", "ready"])
def test_values_of_a_study_changed(name: str, tmp_path: Path) -> None:
    import re

    here = Path(__file__).parents[1] / "study/good"
    texts = [p.read_text() for p in (ready.files().values() if name == "ready" else [here / name])]
    dice, path = random.Random(5), tmp_path / "s.toml"
    for extra in (*here.glob("*.toml"),):
        (tmp_path / extra.name).write_text(extra.read_text())
    for _ in range(500):
        text = dice.choice(texts)
        spot = dice.choice(list(re.finditer(_SPOT, text)))
        path.write_text(text[: spot.start()] + dice.choice(_VALUES) + text[spot.end() :])
        try:
            load_study(path)
        except InputError as error:
            shown = str(error)
            assert shown.isprintable(), shown[:500]
