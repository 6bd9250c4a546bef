"""Screenings of real databases as they were stored, with what a recommendation reads of them.

``postgres-hdd-7200``: `ztune tune postgres-oltp -p rate=30 --budget 20 --profile hdd-7200`.
``postgres-four-roles``: that recording on a study with a dataset for each role, on ssd-sata.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ztune.store.records import Run, Trial
from ztune.study import Study
from ztune.study.layout import with_settings

FOLDER = Path(__file__).parent.parent / "report" / "data"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def kept(name: str, **options: Any) -> tuple[Run, list[Trial]]:
    """Return the run and its trials; ``options``: of the run."""
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    study = Study.model_validate(raw["study"])
    run = Run(
        id="y5svpc", kind="tune", name=study.name, created="2026-11-23T04:42:43Z", status="done", pid=None,
        study=raw["study"], trace_path="/gone.trace", trace_sha="0" * 64, environment={},
        versions=raw["versions"], seed=1, objective=study.objective, command=[], options=options,
        warnings=raw["warnings"],
    )  # fmt: skip
    trials = []
    for number, one in enumerate(raw["trials"], start=1):
        layout = with_settings(study.layout, one["changes"], one["name"])
        trials.append(
            Trial(
                id=number,
                run_id=run.id,
                number=number,
                round=1,
                layout_name=one["name"],
                layout_hash=layout.hash,
                layout=layout,
                target="replay",
                status="ok",
                error=None,
                spec_json=None,
                result={"measure": one["measure"], "warnings": one["warnings"]},
                engine_version=raw["versions"]["engine"],
                openzfs_version=raw["versions"]["openzfs"],
                started=None,
                wall_s=1.0,
                is_baseline=number == 1,
            )
        )
    return run, trials
