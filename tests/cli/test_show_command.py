"""``ztune show`` of a screening: its first rows unless all are asked for, and the one to take."""

from __future__ import annotations

import itertools
from pathlib import Path

import evidence as ev
import pytest
from click.testing import CliRunner

from ztune.cli.main import ztune
from ztune.report.terminal import TOP
from ztune.store.db import Store
from ztune.study import Study
from ztune.study.layout import with_settings

STUDY = Study.model_validate({k: v for k, v in ev.run().study.items() if k != "profiles"})
SIZES, COMPRESSIONS = ("4K", "8K", "16K", "32K", "64K", "256K", "1M"), ("off", "lz4", "zstd-3")


@pytest.fixture
def screened(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A screening of the base layout and twenty-one others."""
    monkeypatch.setenv("COLUMNS", "160")
    base = STUDY.layout
    others = [
        with_settings(base, {"data.recordsize": size, "data.compression": how}, f"{size}/{how}")
        for size, how in itertools.product(SIZES, COMPRESSIONS)
    ]
    with Store.open() as store:
        run = store.create_run(
            kind="screen", trace_path=Path("/nowhere/x.trace"), trace_sha="0" * 64, study=STUDY,
            environment={"kernel": "6.1"}, versions={"engine": "0.1.0"}, seed=1,
        )  # fmt: skip
        for layout in (base, *others):
            trial = store.add_trial(run.id, layout, is_baseline=layout is base)
            store.start_trial(trial.id, {})
            found = {"engine": {"version": "0.1.0"}, "measure": ev.toy_measure(layout), "warnings": []}
            store.finish_trial(trial.id, result=found, wall_s=1.0)
        store.finish_run(run.id, "done")
    return run.id


def _rows(*words: str) -> list[str]:
    done = CliRunner().invoke(ztune, ["show", *words])
    assert done.exit_code == 0, done.output
    return [line for line in done.output.splitlines() if line.split()[:1] and line.split()[0].isdecimal()]


def test_show_prints_the_first_rows_and_all_of_them_when_asked(screened: str) -> None:
    first, every = _rows(screened), _rows(screened, "--all")
    assert len(every) == 1 + len(SIZES) * len(COMPRESSIONS)
    # The base layout is a row wherever it stands.
    assert TOP <= len(first) <= TOP + 2 and first[:TOP] == every[:TOP]
    assert any("base" in row for row in first)
    said = CliRunner().invoke(ztune, ["show", screened]).output
    assert f"{len(every)} layouts in all; --all shows the rest" in said
