"""``ztune recommend`` and ``ztune apply`` on a measured run: what was measured says so, to the end."""

from __future__ import annotations

import json

import evidence as ev
import pytest
import yaml
from click.testing import CliRunner, Result
from zfs_machine import Machine

from ztune.analysis.verdict import outcome
from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.runs.options import TrialOptions
from ztune.runs.stopping import judge
from ztune.store.db import Store
from ztune.study import Study
from ztune.study.layout import with_settings

pytestmark = pytest.mark.usefixtures("answered_here")
WHERE = ("--dataset", "data=tank/pg", "--dataset", "wal=tank/pg/wal")


def stored(accel: str = "kvm", kind: str = "local") -> str:
    """Store a measured run in which records of 16K win clearly; return its id."""
    study = Study.model_validate({k: v for k, v in ev.run().study.items() if k != "profiles"})
    base = study.layout
    layouts = [base, with_settings(base, {"data.recordsize": "16K"}, "16K")]
    with Store.open() as store:
        run = store.create_run(
            kind="run", study=study, environment={"kernel": "6.1"}, seed=1,
            versions={"ztune": "0.1.0", "openzfs": "2.3.2"},
            target={"kind": kind, "name": kind, "accel": accel},
            job={"workload": "postgres-oltp", "params": {}}, options={"resolution": 0.02},
        )  # fmt: skip
        for block in range(1, 5):
            for i, layout in enumerate(layouts):
                trial = store.add_trial(run.id, layout, target=kind, is_baseline=i == 0, block=block)
                store.start_trial(trial.id, {})
                cost = (1.0, 0.4)[i] * (1 + block / 500)
                measure = {
                    "seconds": 20 * cost, "operations": 1000,
                    "physical": {"reads": 500 * cost, "read_bytes": 4e6 * cost, "writes": 4000 * cost,
                                 "write_bytes": 9e7 * cost, "flushes": 1000},
                    "space": {"allocated": 1e8, "by_dataset": []},
                }  # fmt: skip
                job = {"operations": 1000, "per_second": 50 / cost}
                result = {"measure": measure, "job": job, "warnings": []}
                store.finish_trial(trial.id, result=result, wall_s=1.0, openzfs="2.3.2")
        trials = store.trials(run.id)
        found = judge(store.run(run.id), trials, TrialOptions())
        assert found is not None
        store.note_run(run.id, outcome=outcome(*found, "settled", {t.arm: t.layout_name for t in trials}))
        store.finish_run(run.id, "done")
    return run.id


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, list(words), standalone_mode=False)


@pytest.mark.parametrize(
    ("accel", "said"),
    [("kvm", "measured: the real database on OpenZFS 2.3.2, 4 trials"),
     ("tcg", "measured in an emulated lab: the real database on OpenZFS 2.3.2, 4 trials")],
)  # fmt: skip
def test_apply_goes_by_what_was_measured(machine: Machine, accel: str, said: str) -> None:
    stored(accel, "lab" if accel == "tcg" else "local")
    shown = call("apply", *WHERE)
    assert shown.exception is None, shown.exception
    text = " ".join(shown.output.split())
    assert f"Its numbers are {said}" in text
    assert "modelled" not in text.split("Durability:")[0]
    # 2.5 times as much at 128K, from the pair that differs in nothing else.
    assert ("Emulated over 4 blocks, back at 128K" if accel == "tcg" else "Measured over 4 blocks") in text
    assert "×2.50" in text
    assert call("apply", *WHERE, "--yes").exception is None
    assert machine.local("tank/pg")["recordsize"] == "16384"


def test_exports_carry_it(machine: Machine) -> None:
    stored("tcg", "lab")
    tasks = call("apply", *WHERE, "--export", "ansible").stdout
    assert "its seconds are not those of any machine" in " ".join(tasks.replace("#", " ").split())
    compared = ["is the dataset that was compared" in task["name"] for task in yaml.safe_load(tasks)]
    assert (compared.count(False), compared.count(True)) == (4, 4)
    data = json.loads(call("apply", *WHERE, "--export", "json").stdout)
    assert data["evidence"].startswith("measured in an emulated lab")


def test_recommend_shows_it(machine: Machine) -> None:
    stored("tcg", "lab")
    shown = call("recommend", "--why")
    assert shown.exception is None, shown.exception
    text = " ".join(shown.output.split())
    assert "Measured in an emulated lab" in text and "How sure: limited" in text
    data = json.loads(call("recommend", "--json").stdout)
    assert data["recommendation"]["basis"] == "emulated" == data["evidence"]
    assert data["recommendation"]["layout_name"] == data["recommended"]["layout"] == "16K"


def test_scripts_and_objectives(machine: Machine) -> None:
    stored()
    done = call("apply", "--export", "sh")
    assert done.exception is None and "zfs create" in done.stdout
    assert call("apply", *WHERE, "--objective", "space").exception is None
    assert call("recommend", "--objective", "space").exception is None
    assert isinstance(call("apply", *WHERE, "--objective", "beauty").exception, InputError)
    assert isinstance(call("recommend", "--objective", "beauty").exception, InputError)
