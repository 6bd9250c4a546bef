"""The code of docs/adding-a-workload.md, as it stands there."""

from __future__ import annotations

import re
import shutil
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ztune.databases import registry
from ztune.databases.workload import JobWorkload, running
from ztune.errors import ZtuneError
from ztune.onhost.host.workdir import WorkDir
from ztune.places import bundle
from ztune.runs.plan import workload_job

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-workload.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = {match[1]: match[2] for match in re.finditer(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL)}
[POINT] = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[JobWorkload]:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    for name, text in FILES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    [(name, value)] = tomllib.loads(POINT)["project"]["entry-points"][registry.GROUP].items()
    points = [EntryPoint(name, value, registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.GROUP else [])
    found = registry.get(name)
    assert issubclass(found, JobWorkload)
    return found


def test_it_is_short() -> None:
    assert sorted(FILES) == ["csvload/job.py", "csvload/workload.py"]
    assert sum(text.count("\n") for text in FILES.values()) < 100


def test_it_does_its_job(theirs: type[JobWorkload], needs_postgres: None, parent: Path) -> None:
    with running(theirs({"rows": 5000}), parent=parent) as workload:
        result = workload.verify(workload.run())
        assert result.operations == 5000 and [check.ok for check in result.checks] == [True]
        workload.job.server.sql("DELETE FROM rows WHERE id = 7;")
        with pytest.raises(
            ZtuneError, match="csv-load: the job was not done: rows should be 5000 but is 4999"
        ):
            workload.verify(result)
    assert list(parent.iterdir()) == []


def test_it_can_be_run_in_trials(theirs: type[JobWorkload], needs_postgres: None, parent: Path) -> None:
    job = workload_job(theirs({"rows": 300}))
    assert job.roles == ("data", "wal", "source") and job.modules == ("csvload.job",)
    assert bundle.build(job.modules).is_file()
    saved, places = ({role: parent / when / role for role in job.roles} for when in ("saved", "trial"))
    for path in (*saved.values(), *places.values()):
        path.mkdir(parents=True)
        path.parent.chmod(0o755)
    first, second = theirs({"rows": 300}), theirs({"rows": 300})
    first.prepare(WorkDir.create("csv", parent=parent), saved)
    first.load()
    first.cleanup()
    second.prepare(WorkDir.create("csv", parent=parent), places)
    try:
        for role in job.roles:
            shutil.copytree(saved[role], places[role], symlinks=True, dirs_exist_ok=True)
        second.job.adopt(places)
        second.start()
        assert second.verify(second.run()).operations == 300
        second.stop()
    finally:
        second.cleanup()


def test_the_list_names_it(theirs: type[JobWorkload], needs_postgres: None) -> None:
    entry = registry.examined(next(e for e in registry.entries() if e.name == "csv-load"))
    assert entry.roles == "data, wal, source" and entry.version.startswith("PostgreSQL")
    assert [parameter.name for parameter in entry.parameters] == ["rows"]
