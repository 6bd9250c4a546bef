"""Screening with the real engine; what the engine itself computes is tested in tests/engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import numpy as np
import psutil
import pytest
from synthetic_traces import make_trace

from ztune.analysis import sampled
from ztune.analysis.standing import standing
from ztune.cli.show import trial_json
from ztune.errors import InputError, MissingError
from ztune.onhost.tunables import TUNABLES
from ztune.places import engine as engines
from ztune.places.engine import Engine
from ztune.places.replay import Replay
from ztune.places.rerun import rerun
from ztune.runs import screening
from ztune.runs.options import ScreenOptions
from ztune.runs.refine import back_to_default
from ztune.runs.replays import RunReplays
from ztune.runs.search import stopped
from ztune.store.db import Store
from ztune.study import Layout, Study, generic
from ztune.study.adjust import adjusted
from ztune.study.hardware import bought
from ztune.study.layout import with_settings
from ztune.study.loader import resolve_profiles
from ztune.trace.manifest import Compressibility, RegionSample
from ztune.trace.rate import Rate
from ztune.trace.reader import Trace
from ztune.trace.regions import REGION, kept
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return engines.check()
    except MissingError as error:
        pytest.skip(str(error))


def run(target: Replay, study: Study, layout: Layout) -> dict[str, object]:
    outcome = target.run(target.spec(study, layout, 1), None, Event())
    assert outcome.error is None
    assert outcome.result is not None
    measure = outcome.result["measure"]
    assert isinstance(measure, dict)
    return measure


def test_stored_trial_runs_again_with_the_same_bytes(engine: Engine, trace: Trace) -> None:
    with Store.open() as store:
        done = screening.start(store, trace, generic.build({"data", "wal"}), engine, ScreenOptions(budget=2))
        trials = store.trials(done.id)
        assert [t.status for t in trials] == ["ok", "ok"]
        record = json.loads(json.dumps(trial_json(done, trials[1])))
    again = rerun(record, trace, engine).result
    assert again is not None
    stored = record["trial"]["result"]
    written = stored["measure"]["physical"]["write_bytes"]
    assert again["measure"]["physical"]["write_bytes"] == pytest.approx(written, rel=0.01) and written > 0
    assert again["measure"]["logical"] == stored["measure"]["logical"]
    same_space(again["measure"]["space"], stored["measure"]["space"])


def test_a_search_with_the_real_engine(engine: Engine, trace: Trace) -> None:
    """It varies every role, stops by itself or at the budget, proves its layout, and tries what is bought."""
    study = generic.build({"data", "wal"})
    with Store.open() as store:
        done = screening.start(store, trace, study, engine, ScreenOptions(budget=8, jobs=2))
        trials = store.trials(done.id)
    assert done.status == "done" and all(t.ok for t in trials)
    end = stopped(done.outcome)
    assert end is not None and end.reason in ("enough", "budget") and end.cells == 576
    assert len({t.layout_hash for t in trials}) == len(trials)
    searched = trials[: end.tried]
    for key in ("data.recordsize", "data.compression", "wal.recordsize", "wal.logbias"):
        assert len({t.layout.settings()[key] for t in searched}) > 1, key
    own = [t for t in trials if not bought(study.layout, t.layout)]
    chosen = standing(done, own).chosen
    assert chosen is not None
    tried = {t.layout_hash for t in trials}
    assert {one.hash for one in back_to_default(study.layout, chosen.layout)} <= tried
    assert with_settings(chosen.layout, {"slog": "nvme"}).hash in tried
    assert trials[-1].layout.settings()["slog"] == "nvme"


def same_space(one: dict[str, object], other: dict[str, object]) -> None:
    """Files and datasets to the byte; what the pool keeps for itself (space maps) goes with threads."""
    assert one.pop("allocated") == pytest.approx(other.pop("allocated"), rel=0.01)
    assert one == other


def test_memory_and_file_backing_agree(engine: Engine, trace: Trace, home: Path) -> None:
    study = generic.build({"data", "wal"})
    spaces = [run(Replay(trace, engine, backing=k), study, study.layout)["space"] for k in ("memory", "file")]
    assert isinstance(spaces[0], dict) and isinstance(spaces[1], dict)
    same_space(spaces[0], spaces[1])
    assert not list((home / "scratch").iterdir())


def test_engine_takes_every_tunable_and_property(engine: Engine, trace: Trace) -> None:
    study = generic.build({"data", "wal"})
    changes: dict[str, object] = {}
    for t in (t for t in TUNABLES.values() if t.replayed):
        value = 256 << 20 if t.default is None else 1 - t.default if t.unit == "flag" else t.default + 1
        changes[f"tunable.{t.name}"] = value
    changes |= {
        "data.recordsize": "16K", "data.compression": "zstd-fast-10", "data.checksum": "sha256",
        "data.logbias": "throughput", "data.sync": "always", "data.primarycache": "metadata",
        "data.secondarycache": "none", "data.redundant_metadata": "most", "data.copies": 2,
        "special": "mirror 2 nvme", "data.special_small_blocks": "4K", "l2arc": "ssd-sata",
        "slog": "mirror 2 nvme",
        "pool.tank.data": "raidz1 3 hdd-7200", "pool.tank.ashift": 13,
    }  # fmt: skip
    layout = with_settings(study.layout, changes, "everything")
    whole = resolve_profiles(study.model_copy(update={"layout": layout}))
    measure = run(Replay(trace, engine), whole, layout)
    space = measure["space"]
    assert isinstance(space, dict) and space["allocated"] > space["logical"]  # two copies on raidz1


def test_two_pools(engine: Engine, trace: Trace) -> None:
    study = Study.model_validate(
        {
            "name": "two pools",
            "layout": {
                "pool": [
                    {"name": n, "vdev": [{"profile": p}]} for n, p in (("slow", "hdd-7200"), ("fast", "nvme"))
                ],
                "dataset": [{"name": "slow/data", "roles": ["data"]}, {"name": "slow/wal", "roles": ["wal"]}],
            },
            "axes": {"wal.pool": ["slow", "fast"]},
        }
    )
    study = resolve_profiles(study)
    target = Replay(trace, engine)
    one = run(target, study, study.layout)
    two = run(target, study, with_settings(study.layout, {"wal.pool": "fast"}, "x"))
    pools = [{v["pool"] for v in m["by_vdev"]} for m in (one, two)]  # type: ignore[attr-defined]
    assert pools == [{"slow"}, {"slow", "fast"}]  # a pool that nothing lives on is not made
    assert two["model"]["modelled_s"] < one["model"]["modelled_s"]  # type: ignore[index]


def test_a_killed_engine_s_layout_is_tried_once_more(engine: Engine, tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "long.trace", size=8 << 20, writes=600)
    process = subprocess.Popen(
        [sys.executable, "-c", "from ztune.cli.main import main; main()", "screen", str(trace.path),
         "--budget", "3", "--jobs", "1", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    killed = False
    while not killed and time.monotonic() < deadline and process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                if "replay" in child.cmdline() and child.name().startswith("ztune-engine"):
                    child.kill()
                    killed = True
                    break
            except psutil.Error:
                continue
        time.sleep(0.02)
    out, err = process.communicate(timeout=120)
    assert killed
    assert process.returncode == 0, err
    layouts = json.loads(out)["layouts"]
    assert sum(entry["status"] == "ok" for entry in layouts) == len(layouts) >= 3


def test_a_part_of_the_data_stands_for_all(engine: Engine, tmp_path: Path) -> None:
    from ztune.cli.show import trial_json

    trace = make_trace(tmp_path / "a.trace", size=64 << 20, writes=300)
    study = adjusted(generic.build({"data", "wal"}), arc="256M")
    options = ScreenOptions(budget=1, jobs=2, only=True, sample=4)
    with Store.open() as store:
        done = screening.start(store, trace, study, engine, options)
        trials = store.trials(done.id)
        record = json.loads(json.dumps(trial_json(done, trials[1])))
        # It goes on with the sample that it began with, whatever suits now.
        again = screening.resume(store, done, trace, engine, ScreenOptions(budget=1, jobs=2, only=True))
        assert len(store.trials(again.id)) == len(trials)
    assert [(t.status, t.condition) for t in trials] == [
        ("ok", ""), ("ok", "part 1"), ("ok", "part 2"), ("ok", "part 3"),
    ]  # fmt: skip
    assert done.options["sample"] == 4
    whole = run(Replay(trace, engine), study, study.layout)
    logical, space = whole["logical"], whole["space"]
    assert isinstance(logical, dict) and isinstance(space, dict)
    # The samples are all of it together, and the log is in each.
    assert sum(t.measure["logical"]["writes"] for t in trials) == 4 * logical["writes"]
    assert {t.measure["logical"]["syncs"] for t in trials} == {logical["syncs"]}
    for trial in trials:
        assert trial.measure["space"]["files"] == space["files"]
        assert trial.measure["space"]["allocated"] == pytest.approx(space["allocated"], rel=0.03)
    found = sampled.error(done, trials)
    assert found is not None and found.samples == 4 and set(found.within) >= {"modelled_s", "written"}
    assert found.times is None  # the base alone was tried
    said = sampled.sentence(done, trials)
    assert said.startswith("1/4 of the data is replayed: modelled time ±")
    assert "A sample has one region of 1M in 4" in said
    assert "Sample by sample" not in said
    # The right part again.
    result = rerun(record, trace, engine).result
    assert result is not None
    assert result["measure"]["logical"] == record["trial"]["result"]["measure"]["logical"]


def test_rows_by_an_index_count_in_samples_on_hard_disks(engine: Engine, tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "a.trace", size=64 << 20, writes=30)

    def kept_of(profile: str, sample: int) -> dict[str, float]:
        study = adjusted(generic.build({"data", "wal"}, profile=profile), arc="256M")
        options = ScreenOptions(budget=1, jobs=1, sample=sample)
        return RunReplays(study, trace, {}, engine, options, seed=1).rows_by_index()

    assert kept_of("hdd-7200", 4) == {sampled.ROWS: 0.0}
    assert kept_of("ssd-sata", 4) == kept_of("hdd-7200", 1) == {}


def test_what_is_not_touched_has_its_own_space_in_samples_too(engine: Engine, tmp_path: Path) -> None:
    made = make_trace(tmp_path / "a.trace", size=256 << 20, writes=400)
    measured = [
        Compressibility(
            role="data", recordsize=size, algorithm="lz4", ratio=ratio, blocks=9, touched=ratio < 2
        )
        for ratio in (4.0, 1.0)
        for size in (8192, 16384, 32768, 65536, 131072)
    ]
    text = made.manifest.model_copy(
        update={"compressibility": measured, "samples": [s for s in made.manifest.samples if s.role == "wal"]}
    ).to_json()
    (made.path / "trace.json").write_text(text)
    trace = Trace.open(made.path)
    study = adjusted(generic.build({"data", "wal"}), arc="256M")
    layout = with_settings(study.layout, {"data.recordsize": "16K", "data.compression": "lz4"})
    whole = run(Replay(trace, engine), study, layout)
    part = run(Replay(trace, engine, rate=Rate(4, 1)), study, layout)
    # 400 of 16,384 records are written and don't shrink; each other one takes a sector or two for four.
    spaces = [measure["space"]["datasets"][0]["allocated"] for measure in (whole, part)]  # type: ignore[index]
    assert 64 << 20 < spaces[0] < 128 << 20
    assert spaces[1] == pytest.approx(spaces[0], rel=0.05)
    writes = whole["by_cause"]["data"]["write_bytes"], part["by_cause"]["data"]["write_bytes"]  # type: ignore[index]
    assert writes[1] == pytest.approx(writes[0], rel=0.1)


def test_samples_of_one_length_do_not_begin_from_each_others_image(engine: Engine, tmp_path: Path) -> None:
    """Their specs are the same, what they load is not: a record that was not loaded is read without I/O."""
    trace = make_trace(tmp_path / "a.trace", size=256 << 20, writes=400)
    study = adjusted(generic.build({"data", "wal"}), arc="256M")
    layout = with_settings(study.layout, {"data.recordsize": "16K"})
    targets = [Replay(trace, engine, rate=Rate(4, part)) for part in (0, 3)]
    specs = [target.spec(study, layout, 1) for target in targets]
    assert specs[0] == specs[1]
    assert targets[0].work(specs[0]).key != targets[1].work(specs[1]).key
    for target, spec in zip(targets, specs, strict=True):
        result = target.run(spec, None, Event()).result
        assert result is not None and result["load"]["missed"] == 0
        # Each write of half a record reads it.
        assert result["measure"]["by_cause"]["data"]["reads"] > 300


def recorded_by_sample(trace: Trace, path: Path, of: int) -> Trace:
    """Return ``trace`` as it would be if one region in ``of`` of its data had been recorded."""
    inode = 7
    manifest = trace.manifest
    columns = trace.columns()
    rows = np.zeros(manifest.events, EVENT_DTYPE)
    for name, values in columns.items():
        rows[name] = values
    data = next(file for file in manifest.files if file.role == "data")
    with TraceWriter(path) as writer:
        writer.add_rows(rows[kept(rows, {data.id: inode}, of)])
        for sample in manifest.samples:
            shutil.copy(trace.path / sample.file, writer.samples_dir)
        writer.finish(
            duration_ns=manifest.duration_ns,
            recorder=manifest.recorder,
            files=[
                file.model_copy(update={"sampled": file.id == data.id, "ino": inode})
                for file in manifest.files
            ],
            samples=manifest.samples,
            page_size=manifest.page_size,
            sample=RegionSample(of=of, region=REGION),
        )
    return Trace.open(path)


def test_a_recording_by_sample_stands_for_all(engine: Engine, tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "a.trace", size=64 << 20, writes=400)
    part = recorded_by_sample(trace, tmp_path / "part.trace", 4)
    assert part.manifest.events < 0.8 * trace.manifest.events
    study = adjusted(generic.build({"data", "wal"}), arc="256M")
    with Store.open() as store:
        done = screening.start(store, part, study, engine, ScreenOptions(budget=1, jobs=2, only=True))
        [trial] = store.trials(done.id)
        assert (trial.status, done.options["sample"]) == ("ok", 4), trial.error
        record = json.loads(json.dumps(trial_json(done, trial)))
    whole = run(Replay(trace, engine), study, study.layout)
    logical, space = whole["logical"], whole["space"]
    assert isinstance(logical, dict) and isinstance(space, dict)
    # Every call of the log is there, and what is there of the data counts four times.
    assert trial.measure["logical"]["syncs"] == logical["syncs"]
    assert trial.measure["logical"]["writes"] == pytest.approx(logical["writes"], rel=0.2)
    assert trial.measure["space"]["files"] == space["files"]
    assert trial.measure["space"]["allocated"] == pytest.approx(space["allocated"], rel=0.05)
    assert "no other sample of it, so how far off" in sampled.sentence(done, [trial])
    result = rerun(record, part, engine).result
    assert result is not None
    assert result["measure"]["logical"] == record["trial"]["result"]["measure"]["logical"]


@pytest.mark.parametrize(
    ("arc", "options", "said"),
    [
        (
            "256M",
            ScreenOptions(sample=1),
            "was recorded with --sample 1/4, so --sample 1/1 is not there; write",
        ),
        ("256M", ScreenOptions(sample=6), "so --sample 1/6 is not there; write 1/4, or 1/8 for half of it"),
        ("256M", ScreenOptions(sample=8), "leaves 32M of the smallest ARC"),
        (
            "128M",
            ScreenOptions(),
            "was recorded with --sample 1/4, which leaves 32M of the smallest ARC .* --arc 256M is the least",
        ),
        ("256M", ScreenOptions(ages=("used",)), "and --age needs all; leave it out, or record without"),
        ("256M", ScreenOptions(load="all"), "and --load all needs all"),
    ],
)
def test_what_a_recording_by_sample_can_not_answer(
    engine: Engine, tmp_path: Path, arc: str, options: ScreenOptions, said: str
) -> None:
    trace = make_trace(tmp_path / "a.trace", size=64 << 20, writes=30)
    part = recorded_by_sample(trace, tmp_path / "part.trace", 4)
    study = adjusted(generic.build({"data", "wal"}), arc=arc)
    with Store.open() as store:
        with pytest.raises(InputError, match=said):
            screening.start(store, part, study, engine, options)
        assert store.runs() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ScreenOptions(sample=8), r"leaves 32M of the smallest ARC of the study \(256M\).* 1/4 is the least"),
        (ScreenOptions(sample=4, ages=("used",)), "can't be replayed with --age"),
        (ScreenOptions(sample=4, load="all"), "--load all loads no sample"),
    ],
)
def test_a_sample_that_can_not_be_is_said_before_anything_runs(
    engine: Engine, tmp_path: Path, options: ScreenOptions, said: str
) -> None:
    trace = make_trace(tmp_path / "a.trace", size=64 << 20, writes=30)
    study = adjusted(generic.build({"data", "wal"}), arc="256M")
    with Store.open() as store:
        with pytest.raises(InputError, match=said):
            screening.start(store, trace, study, engine, options)
        assert store.runs() == []
