"""What a word of the user's means, and the one sentence for one that means something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoked import invoke

from ztune.errors import InputError
from ztune.runs import plan
from ztune.runs.asked import layout_of, study_named
from ztune.runs.named import meanings, resolve
from ztune.store.db import Store
from ztune.study import ready


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    with Store.open() as opened:
        opened.create_run(
            kind="screen", study=ready.find("sqlite"), trace_path=None, trace_sha="", environment={},
            versions={}, seed=1,
        )  # fmt: skip
        yield opened


def test_a_run_by_its_id_the_beginning_of_one_or_last(store: Store) -> None:
    run = store.runs()[0]
    for word in (run.id, run.id[:4], "last", "latest"):
        assert resolve(word, "run", store=store).id == run.id


def test_a_study_by_file_name_or_workload(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "odd:name.toml"
    file.write_text(ready.files()["sqlite"].read_text())
    assert study_named("sqlite").workload == "sqlite"
    assert study_named("postgres-recordsize").study.name == "postgres-recordsize"
    assert study_named(str(file)).layout is None
    assert study_named(f"{file}:data.recordsize=8K").layout == "data.recordsize=8K"
    made = study_named("fio")  # has no ready study
    assert made.workload == "fio" and {r for d in made.study.layout.datasets for r in d.roles} == {"data"}
    study, layout = layout_of("postgres-oltp:data.recordsize=8K", None, None, "1G")
    data = layout.dataset_of("data")
    assert data is not None and data.properties["recordsize"] == "8K" and study.layout.arc == 1 << 30
    with pytest.raises(InputError, match="names a layout, and so does --layout"):
        layout_of("postgres-oltp:data.recordsize=8K", "base", None, None)


def test_what_is_something_else_is_said_to_be_that(store: Store, tmp_path: Path) -> None:
    trace = tmp_path / "my.trace"
    trace.mkdir()
    (trace / "trace.json").write_text("{}")
    run = store.runs()[0].id
    for word, wanted, said in (
        ("postgres-oltp", "run", '^"postgres-oltp" is a study or a workload, not a run; '),
        (str(trace), "run", 'my.trace" is a trace, not a run; '),
        ("last", "study", '^"last" is a run, not a study or a workload; '),
        (str(trace), "study", 'my.trace" is a trace, not a study or a workload; '),
        ("sqlite", "trace", '^"sqlite" is a study or a workload, not a trace; '),
        ("/etc/passwd", "trace", "^/etc/passwd is not a trace: "),
    ):
        with pytest.raises(InputError, match=said) as raised:
            resolve(word, wanted, store=store)  # type: ignore[call-overload]
        assert "\n" not in str(raised.value)
    assert meanings(run, store) == ["run"]
    for wanted in ("run", "study", "trace"):
        with pytest.raises(InputError) as raised:
            resolve("nothing-of-the-kind", wanted, store=store)  # type: ignore[call-overload]
        assert "not a" not in str(raised.value)


def test_a_layout_that_a_study_names_keeps_its_name_where_an_axis_has_the_same(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        ready.files()["sqlite"].read_text()
        + '\n[[layouts]]\nname = "small pages"\nset = { "data.recordsize" = "8K" }\n'
    )
    by_axis = layout_of(f"{file}:data.recordsize=8K", None, None, None)[1]
    assert layout_of(str(file), "small pages", None, None)[1].hash == by_axis.hash
    # So it does of a run of the study.
    study = ready.find(str(file))
    run = store.create_run(
        kind="screen", study=study, trace_path=None, trace_sha="", environment={}, versions={}, seed=1
    )
    for layout in (study.layout, by_axis):
        store.add_trial(run.id, layout)
    assert [one.hash for one in plan.chosen(run, store.trials(run.id), ["small pages"])][-1] == by_axis.hash
    with pytest.raises(InputError, match='has no layout "small"'):
        layout_of(str(file), "small", None, None)


def test_layouts_are_listed_by_both_names_and_judged_as_of_a_database_that_nobody_knows(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\n[layout]\narc = "64M"\n'
        '[[layout.pool]]\nname = "tank"\n[[layout.pool.vdev]]\nprofile = "nvme"\n'
        '[[layout.dataset]]\nname = "tank/data"\nroles = ["data"]\n'
        '[axes]\n"data.recordsize" = ["16K"]\n'
        '[[layouts]]\nname = "r16"\nset = { "data.recordsize" = "16K" }\n'
    )
    code, out, err = invoke("list", "layouts", str(file))
    assert code == 0 and "data.recordsize=16K = r16" in out
    assert out.count("not-known") == 2 and "nothing-acknowledged" not in out and "names no workload" in err
    listed = json.loads(invoke("list", "layouts", str(file), "--json")[1])
    assert [(one["name"], one["also"]) for one in listed] == [("base", []), ("data.recordsize=16K", ["r16"])]
    assert "nothing-acknowledged" in invoke("list", "layouts", "postgres-oltp")[1]
