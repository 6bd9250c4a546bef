"""``ztune run``, ``clean``, ``runs``, ``show``, ``recommend`` and ``report`` on measured runs, with a
stand-in trial.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_place import FakePlace

from ztune.cli import clean
from ztune.cli.main import ztune
from ztune.errors import InputError, ZtuneError
from ztune.onhost.fields import from_json
from ztune.onhost.trial import saved
from ztune.places import named as places
from ztune.places.placing import Placing
from ztune.runs import prepared
from ztune.store.db import Store
from ztune.study import ready
from ztune.study.layout import with_settings

STUDY = """
name = "two"
workload = "fio"
[layout]
[[layout.pool]]
name = "main"
[[layout.pool.vdev]]
profile = "ssd-sata"
[[layout.dataset]]
name = "main/data"
roles = ["data", "wal", "temp", "index", "backup", "archive", "source"]
recordsize = "128K"
[axes]
"data.recordsize" = ["8K", "16K"]
"""


@pytest.fixture
def place(tmp_path: Path, packed_once: None, monkeypatch: pytest.MonkeyPatch) -> FakePlace:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(STUDY)
    fake = FakePlace(tmp_path / "there", of={"*": {"spread": 0.01}, "data.recordsize=8K": {"seconds": 0.004}})
    monkeypatch.setattr(places, "make", lambda *_: fake)
    monkeypatch.setattr(places, "again", lambda _: fake)
    return fake


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, list(words), standalone_mode=False, catch_exceptions=True)


def ok(*words: str) -> str:
    done = call(*words)
    if done.exception is not None:
        raise done.exception
    assert done.return_value in (0, None), done.output
    return done.stdout


def test_from_a_study_to_a_report(place: FakePlace, tmp_path: Path) -> None:
    out = ok("run", "two.toml", "--on", "local", "--blocks", "3:6")
    assert "Run " in out and "data.recordsize=8K has the least time per op" in out.replace("\n", " ")
    (row,) = json.loads(ok("runs", "--json"))
    assert (row["kind"], row["target"], row["layouts"], row["status"]) == ("run", "fake", 3, "done")
    assert "fake" in ok("runs")
    run = row["id"]
    shown = json.loads(ok("show", run, "--json"))
    assert shown["job"]["workload"] == "fio" and shown["outcome"]["verdict"] == "resolved"
    assert {t["block"] for t in shown["trials"]} >= {1, 2, 3}
    assert "recordsize=8K" in ok("show", run)
    one = json.loads(ok("show", run, "--trial", "1", "--json"))
    assert one["trial"]["spec"]["format"] == "ztune-trial" and one["trial"]["series"][0]["probe"] == "arc"
    assert "measure.physical.write_bytes" in ok("show", run, "--trial", "1")
    advice = json.loads(ok("recommend", run, "--json"))
    assert advice["recommended"]["layout"] == "data.recordsize=8K" and advice["evidence"] == "measured"
    assert advice["effects"][0]["factor"] == "data.recordsize"
    assert "data.recordsize = 8K" in ok("recommend", run, "--why")
    ok("report", run, "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (
        "Every run" in page and "written per transaction" in page and "http" not in page.split("</style>")[1]
    )
    assert "&lt;" not in page.split("<main>")[0]


def test_json_is_alone_on_standard_output(place: FakePlace) -> None:
    done = json.loads(ok("run", "two.toml", "--on", "local", "--blocks", "2", "--json"))
    assert [lay["rank"] for lay in done["layouts"]] == [1, 2, 3]
    measure = done["layouts"][0]["measures"]["time"]
    assert measure["interval"] == "range" and len(measure["values"]) == 2


def test_a_run_that_left_something_ranks_all_layouts_and_ends_with_1(place: FakePlace) -> None:
    place.behave(of={"*": {"keep": True}})
    done = call("run", "two.toml", "--on", "local", "--blocks", "2", "--json")
    assert done.return_value == 1
    found = json.loads(done.stdout)
    assert found["failed"] == [] and len(found["layouts"]) == 3
    assert "it left behind: pool zt: left alone: busy" in ok("recommend", "last", "--why").replace("\n", " ")


def test_only_some_layouts(place: FakePlace) -> None:
    done = json.loads(ok("run", "two.toml", "--layouts", "data.recordsize=16K", "--blocks", "2", "--json"))
    assert {lay["layout"] for lay in done["layouts"]} == {"base", "data.recordsize=16K"}
    with pytest.raises(InputError, match=r'has no layout "7K"; it has "base"'):
        ok("run", "two.toml", "--layouts", "7K")


def test_two_jobs_from_a_run_to_a_report(place: FakePlace, tmp_path: Path) -> None:
    words = [
        "run",
        "two.toml",
        "--layouts",
        "data.recordsize=16K",
        "--blocks",
        "2",
        "--with",
        "fio:seconds=3",
    ]
    done = json.loads(ok(*words, "--json"))
    assert {lay["layout"]: len(lay["trials"]) for lay in done["layouts"]} == {
        "base": 2,
        "data.recordsize=16K": 2,
    }
    rows = [(row["layout"], row["job"], row["figure"]) for row in done["beside"]]
    assert set(rows) >= {("base", "fio (1)", "per_second"), ("data.recordsize=16K", "fio (2)", "per_second")}
    assert all(row["together_s"] == 9.0 and row["ratio"]["n"] == 2 for row in done["beside"])
    specs = place.specs()
    assert {spec["job"]["params"]["which"] for spec in specs} == {"first", "both", "neighbour"}
    assert specs[0]["job"]["params"]["neighbour"]["params"]["seconds"] == 3
    assert all(spec["layout"]["neighbour"] == ["data"] for spec in specs)
    shown = ok("show", done["run"])
    assert "Two jobs on one pool" in shown and "fio (1), 9.00 s at one time" in shown
    assert "Another job on the same pool" not in ok("recommend", done["run"], "--why")
    ok("report", done["run"], "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Two jobs on one pool: alone, and together" in page and "base, neighbour" in page
    assert "Two jobs" not in ok("run", "two.toml", "--layouts", "data.recordsize=16K", "--blocks", "1")


def test_an_emulated_lab_does_not_advise_by_time(place: FakePlace) -> None:
    place.described = {"kind": "lab", "accel": "tcg", "dilation": 20.0, "patience": 20.0}
    done = json.loads(ok("run", "two.toml", "--blocks", "3", "--json"))
    assert done["evidence"] == "emulated" and done["goals"][:2] == ["ios", "bytes"]
    assert "do not choose by the times" in done["cautions"][0]
    assert "emulated" in ok("recommend", "last")
    assert place.specs()[0]["dilation"] == 20.0 and place.specs()[0]["patience"] == 20.0


def test_a_screening_is_not_resumed_as_a_run_and_says_what_does(home: Path) -> None:
    with Store.open() as store:
        run = store.create_run(kind="screen", study=ready.find("sqlite"), environment={}, versions={}, seed=1)
        store.finish_run(run.id, "interrupted")
    with pytest.raises(InputError, match=f"run {run.id} is a replay; `ztune screen --resume {run.id}`"):
        ok("run", "--resume", run.id)


def test_resume_by_name(place: FakePlace) -> None:
    place.behave(of={"data.recordsize=8K": {"fail": "load"}})
    first = call("run", "two.toml", "--blocks", "1", "--json")
    assert first.return_value == 1
    run = json.loads(first.stdout)["run"]
    place.behave(of={})
    done = json.loads(ok("run", "--resume", run, "--json"))
    assert done["run"] == run and done["failed"] == [] and len(done["layouts"]) == 3
    # What it was begun with is kept; other words would be taken for granted, and do nothing.
    for words in (
        ["two.toml"],
        ["--blocks", "5"],
        ["--age", "used"],
        ["--on", "mount"],
        ["--aa"],
        ["--seed", "2"],
    ):
        flag = words[0] if words[0].startswith("--") else r"STUDY\|WORKLOAD"
        with pytest.raises(InputError, match=f"as it was begun; leave {flag} out"):
            ok("run", *words, "--resume", run)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run"], "what is to run"),
        (["run", "nothing"], '"nothing" is no study and no workload'),
        (["run", "fio", "-p", "blocksize"], "write NAME=VALUE"),
        (["run", "two.toml", "--blocks", "5:2"], "MIN:MAX"),
        (["run", "two.toml", "--resolution", "0"], "it is a share"),
        (["run", "two.toml", "--time-limit", "soon"], "write seconds"),
        (["run", "two.toml", "--probe", "bpf=yes"], "write bpf=on"),
        (["run", "--from", "nobody"], "there is no run"),
        (["run", "two.toml", "--with", "nosuch"], "there is no workload 'nosuch'"),
        (["run", "two.toml", "--with", "fio:seconds"], '"seconds" is no parameter of fio'),
        (["run", "two.toml", "--with", "fio", "--aa"], "not with --aa"),
        (["run", "--resume", "x", "--with", "fio", "--arc", "1G"], "leave --arc and --with out"),
        (["screen", "--resume", "x", "--no-elsewhere"], "--no-elsewhere can't be changed when a run is"),
    ],
)
def test_bad_words_are_said_in_a_sentence(place: FakePlace, words: list[str], sentence: str) -> None:
    with pytest.raises(ZtuneError, match=sentence):
        ok(*words)


def test_clean_shows_first(place: FakePlace) -> None:
    assert "nothing is left on fake" in ok("clean")
    (Path(place.state) / "made-abc-0001").touch()
    out = ok("clean")
    assert "trial abc-0001" in out and "pool:main" in out and "--yes destroys it" in out
    assert place.left() == ["made-abc-0001"]
    assert json.loads(ok("clean", "--json"))["trials"][0]["trial"] == "abc-0001"
    assert "all of it is gone" in ok("clean", "--yes")
    assert place.left() == []


def test_clean_says_what_goes_on_for_long(place: FakePlace) -> None:
    (Path(place.state) / "made-abc-0001").touch()
    place.behave(of={"clean": {"waits": "zpool destroy zt still runs, after 60 s of at most 600"}})
    assert "  zpool destroy zt still runs, after 60 s of at most 600\n" in call("clean", "--yes").stderr


def test_clean_does_not_say_that_it_would_destroy_a_trial_that_runs(
    place: FakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"state": place.state, "run": "r", "trial": "r-0001", "running": True}
    found: dict[str, Any] = {"state": place.state, "trials": [one], "datasets": []}
    monkeypatch.setattr(clean, "_look", lambda *_: ("", found))
    assert ok("clean").splitlines() == ["trial r-0001  (still runs: left alone)"]
    found["trials"].append({**one, "trial": "r-0002", "running": False})
    assert ok("clean").endswith("Nothing was changed; --yes destroys it.\n")


def test_kept_databases_are_listed_and_removed(place: FakePlace) -> None:
    state = prepared.folder() / "0123"
    (state / "data").mkdir(parents=True)
    (state / "data" / "file").write_bytes(b"x" * 1000)
    (state / saved.MARKER).write_text('{"job": "fio", "bytes": {"data": 1000}}')
    assert "fio  0.98 KiB" in ok("clean", "--prepared") or "fio  1000 B" in ok("clean", "--prepared")
    assert state.exists()
    assert "removed" in ok("clean", "--prepared", "--yes") and not state.exists()


# where pools go


def layout(**changes: Any) -> Any:
    from ztune.study import generic

    base = generic.build({"data", "wal"}).layout
    return with_settings(base, {k.replace("__", "."): v for k, v in changes.items()}) if changes else base


def check(placing: Placing, **changes: Any) -> dict[str, Any]:
    from ztune.study import generic

    study = generic.build({"data", "wal"})
    placing.check(study, layout(**changes))
    return placing.spec(layout(**changes))


def pool() -> str:
    return str(layout().used_pools()[0].name)


def test_below_a_dataset() -> None:
    assert check(Placing.parse(pool="tank/ztune")) == {"kind": "parent", "parents": {pool(): "tank/ztune"}}
    assert check(Placing.parse(parents=[f"{pool()}=fast/x"]))["parents"] == {pool(): "fast/x"}
    with pytest.raises(InputError, match="changes the disks of pool"):
        check(Placing.parse(pool="tank"), slog="nvme")
    with pytest.raises(InputError, match="for which no dataset is named"):
        check(Placing.parse(parents=["other=tank"]))


def test_on_disks() -> None:
    given = Placing.parse(disks=[f"{pool()}=/dev/a,/dev/b", f"{pool()}.log=/dev/c"])
    n = sum(v.disks for v in layout().used_pools()[0].vdevs)
    spec = check(given, slog="nvme")
    assert spec["kind"] == "disks" and spec["disks"][pool()]["log"] == [["/dev/c"]]
    assert spec["disks"][pool()]["data"][0][0] == "/dev/a" and n >= 1
    with pytest.raises(InputError, match=r"needs 1 special disk.*--disk \w+\.special=/dev/…"):
        check(given, special="nvme")
    assert from_json(Placing, given.to_json()) == given


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "say where the pools go"),
        ({"pool": "tank", "files": "/x"}, "can't go together"),
        ({"pool": "/tank"}, "names a pool or dataset"),
        ({"disks": ["main"]}, "write POOL="),
        ({"disks": ["main.journal=/dev/a"]}, "CLASS one of"),
        ({"disks": ["main=/dev/a", "main.log=/dev/a"]}, "named twice"),
        ({"disks": ["main=sda"]}, "not an absolute path"),
        ({"files": "x"}, "absolute path"),
        ({"files": "/x", "size": "big"}, "--size"),
    ],
)
def test_bad_places(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Placing.parse(**given)


@pytest.mark.parametrize("word", ["cloud", "ssh:host", "http://x"])
def test_unknown_targets(word: str) -> None:
    with pytest.raises(InputError, match="write lab, mount, local, ssh"):
        places.make(word, Placing(files="/x"))
    with pytest.raises(InputError, match="makes its own disks"):
        places.make("lab", Placing(files="/x"))
