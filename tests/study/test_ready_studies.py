"""What the ready studies for real runs promise: their layouts are there, and the disk can be chosen."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from ztune.databases import registry
from ztune.databases.workload import JobWorkload
from ztune.onhost.jobs.job import JobBase
from ztune.onhost.trial.spec import parse
from ztune.runs.space import first_round
from ztune.study import DurabilityClass, load_study, ready
from ztune.study.adjust import adjusted
from ztune.study.durability import judge

KINDS = Path(__file__).parent / "good" / "filesystems.toml"
REAL = ("postgres-recordsize", "postgres-wal-pool", "postgres-slog", "postgres-filesystems",
        "accuracy-postgres", "accuracy-fio")  # fmt: skip


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("profile", ["hdd-7200", "ssd-sata"])
def test_the_disk_can_be_chosen(name: str, profile: str) -> None:
    study = adjusted(ready.find(name), profile=profile)
    layouts = first_round(study)
    assert len(layouts) == len(first_round(ready.find(name)))
    other = {"hdd-7200": "ssd-sata", "ssd-sata": "hdd-7200"}[profile]
    for layout in layouts:
        assert {v.profile for v in layout.pool("tank").vdevs if v.class_ == "data"} == {profile}
        # Only a log device may be of another kind on purpose.
        assert all(v.class_ == "log" for p in layout.pools for v in p.vdevs if v.profile == other)


@pytest.mark.parametrize("name", REAL)
def test_no_ready_layout_gives_up_durability(name: str) -> None:
    assert {judge(layout).klass for layout in first_round(ready.find(name))} == {DurabilityClass.NOTHING}


@pytest.mark.parametrize("name", REAL)
def test_parameters_are_the_workload_s(name: str) -> None:
    study = ready.find(name)
    assert study.workload is not None
    workload = registry.get(study.workload)
    workload.Parameters.model_validate(study.parameters)


@pytest.mark.parametrize("name", ["accuracy-postgres", "accuracy-fio"])
def test_accuracy_studies_are_balanced(name: str) -> None:
    layouts = first_round(ready.find(name))
    factors = ("data.recordsize", "slog", "data.logbias", "data.compression")
    rows = [tuple(layout.settings()[f] for f in factors) for layout in layouts]
    assert len(set(rows)) == 16
    # Any two factors meet equally often in all their values, so that no effect hides behind another.
    for a, b in itertools.combinations(range(4), 2):
        assert len(set(Counter((row[a], row[b]) for row in rows).values())) == 1
    assert {row[0] for row in rows} == {"8K", "32K", "128K", "1M"}


def test_wal_pool_study_spends_one_disk_each() -> None:
    layouts = {layout.name: layout for layout in first_round(ready.find("postgres-wal-pool"))}
    disks = {
        name: sum(v.disks for p in layout.used_pools() for v in p.vdevs) for name, layout in layouts.items()
    }
    assert disks["base"] == disks["WAL on the data's pool, throughput"] == 1
    assert {n for name, n in disks.items() if n != 1 and name in layouts} == {2}


def test_filesystems_study_holds_all_kinds() -> None:
    layouts = first_round(ready.find("postgres-filesystems"))
    kinds = {layout.pool("tank").filesystem for layout in layouts}
    assert kinds == {"zfs", "ext4", "xfs"}
    assert {d.properties.get("encryption") for f in layouts for d in f.datasets} == {None, "aes-256-gcm"}
    assert any(d.volume for f in layouts for d in f.datasets)


@pytest.mark.parametrize("path", [*sorted(ready.files().values()), KINDS], ids=lambda p: p.stem)
def test_the_trial_program_takes_every_layout(path: Path) -> None:
    """What a study may say, the program beside the pool reads: the two check a layout each on its own."""
    study = load_study(path)
    for layout in first_round(study):
        disks = {
            pool.name: {
                class_: [["8G"] * v.disks for v in pool.vdevs if v.class_ == class_]
                for class_ in {v.class_ for v in pool.vdevs}
            }
            for pool in layout.used_pools()
        }
        raw = {
            "format": "ztune-trial", "version": 1, "run": "r-abc234", "trial": "r-abc234-0001",
            "state": "/var/tmp/ztune", "place": {"kind": "files", "dir": "/var/tmp/disks", "disks": disks},
            "layout": layout.to_json(), "job": {"name": "fio"},
        }  # fmt: skip
        spec = parse(json.dumps(raw))
        assert {p.name: p.filesystem for p in spec.layout.pools} == {
            p.name: p.filesystem for p in layout.used_pools()
        }
        for ours, theirs in zip(layout.datasets, spec.layout.datasets, strict=True):
            assert (theirs.name, theirs.roles, theirs.volume) == (ours.name, ours.roles, ours.volume)
            assert dict(theirs.properties) == ours.properties
            assert theirs.volume is None or theirs.filesystem == ours.filesystem


@pytest.mark.parametrize("name", ready.files())
def test_no_ready_layout_has_a_setting_that_its_database_refuses(name: str) -> None:
    study = ready.find(name)
    workload = study.workload or (name if name in registry.names() else None)
    if workload is None or workload == "command":
        return
    made = registry.make(workload, study.parameters)
    assert isinstance(made, JobWorkload)
    for layout in first_round(study):
        job = made.job_class(made.resolved(), layout.database)
        assert isinstance(job, JobBase)
        job.check_settings()
