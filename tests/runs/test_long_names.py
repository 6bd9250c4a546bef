"""A layout of a screening is called by all that it changes."""

from __future__ import annotations

from pathlib import Path

from ztune.onhost.words import ROLES
from ztune.runs.space import changed
from ztune.store.db import Store
from ztune.study.generic import build


def test_a_layout_that_changes_everything_of_all_roles_can_be_stored(home: Path) -> None:
    """With five roles a name was longer than the store read: the run failed, and none was shown any more."""
    study = build(ROLES)
    own = study.layout.settings()
    changes = {
        key: next(value for value in values if str(value) != own.get(key))
        for key, values in study.axes.items()
    }
    layout = changed(study.layout, changes)
    assert len(layout.name) > 300
    with Store.open() as store:
        run = store.create_run(
            study=study, environment={}, seed=1, versions={"openzfs": "2.3.2"}, kind="screen"
        )
        store.add_trial(run.id, layout)
        (trial,) = store.trials(run.id)
        assert trial.layout == layout
