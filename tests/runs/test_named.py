"""What a word of the user's means, and the one sentence for one that means something else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.errors import InputError
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
