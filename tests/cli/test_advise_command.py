"""``ztune advise``, ``ztune list advice`` and ``--advice``, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invoked import invoke

from ztune.trace.reader import Trace

pytestmark = pytest.mark.usefixtures("home")


def test_an_answer_fits_on_a_screen_and_says_what_it_is() -> None:
    code, out, err = invoke("advise", "postgresql", "--disks", "ssd", "--memory", "64G")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert "A PRIOR, not measured on your load" in lines[0]
    assert "none of them yours" in " ".join(lines)
    assert "ztune tune postgres-oltp --profile ssd-sata" in out
    assert "what a power cut loses" in out


def test_the_same_as_json() -> None:
    code, out, _ = invoke(
        "advise", "postgres", "--disks", "hdd", "--size", "200G", "--memory", "64G", "--json"
    )
    found = json.loads(out)
    assert code == 0 and found["prior"] is True
    assert found["question"]["database"] == "postgresql" and found["question"]["size"] == 200 << 30
    assert set(found["settings"]) == {"data", "wal"}
    assert found["runs"] and all(run["layouts"] > 1 and not run["own"] for run in found["runs"])
    assert {one["name"] for one in found["in_print"]} == {"openzfs-guide", "oltp", "zfs-defaults"}
    assert not any(
        "throughput" in v or v in ("disabled", "off") for s in found["settings"].values() for v in s.values()
    )


def test_where_nothing_was_run_others_are_quoted_and_nothing_is_ours() -> None:
    code, out, _ = invoke("advise", "mongodb", "--disks", "ssd")
    assert code == 0 and "Nothing was run that would say" in out and "mongo-restore" in out
    _, out, _ = invoke("advise", "mongodb", "--disks", "ssd", "--json")
    assert json.loads(out)["settings"] == {}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("postgrs", "--disks", "ssd"), '"postgrs" is no database that ztune knows; they are postgresql, '),
        (("postgresql",), "Missing option '--disks'"),
        (("postgresql", "--disks", "floppy"), "'floppy' is not one of 'hdd', 'ssd', 'nvme'"),
        (("postgresql", "--disks", "ssd", "--memory", "much"), "--memory: 'much' is not a size"),
        (("postgresql", "--disks", "ssd", "--memory", "127M"), '--memory is "127M"; it is at least 128M'),
        (("postgresql", "--disks", "ssd", "--size", "9"), '--size is "9"; it is at least 1M'),
    ],
)
def test_a_wrong_question_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    code, out, err = invoke("advise", *words)
    assert (code, out) == (2, "")
    assert says in err


def test_sets_are_listed_with_their_sources() -> None:
    code, out, _ = invoke("list", "advice", "--json")
    assert code == 0 and "letsencrypt" in {one["name"] for one in json.loads(out)}
    code, out, _ = invoke("list", "advice", "advice:openzfs-guide")
    assert code == 0 and "data.recordsize" in out and "https://openzfs.github.io" in out
    code, _, err = invoke("list", "advice", "openzfs-gide")
    assert code == 2 and 'Did you mean "openzfs-guide"?' in err


@pytest.mark.slow
def test_a_set_is_a_layout_of_a_screening_under_its_name(stand_in_engine: Path, trace: Trace) -> None:
    screen = ("screen", str(trace.path), "--study", "postgres-oltp", "--jobs", "1", "--budget", "2")
    code, out, err = invoke(*screen, "--advice", "openzfs-guide", "--json")
    assert code == 0, err
    assert "ztune: advice:openzfs-guide: without its settings of the database (full_page_writes=off)" in err
    names = [layout["layout"] for layout in json.loads(out)["layouts"]]
    assert "advice:openzfs-guide" in names
    code, out, _ = invoke("recommend", "--all")
    assert code == 0 and "advice:openzfs-guide" in out
    code, _, err = invoke(*screen, "--advice", "letsencrypt")
    assert code == 2 and "advice:letsencrypt says nothing of postgresql, but of mariadb" in err


def test_run_and_tune_refuse_a_set_before_they_begin() -> None:
    for command in ("run", "tune"):
        code, _, err = invoke(command, "sqlite", "--advice", "percona")
        assert code == 2 and "advice:percona says nothing of sqlite, but of mariadb" in err
