"""Jobs run where nothing of ours is installed: from a zip file, with the standard library alone."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ztune import shipped
from ztune.databases import registry
from ztune.databases.workload import JobWorkload
from ztune.errors import InputError
from ztune.onhost.jobs import registry as jobs
from ztune.places import bundle
from ztune.runs import prepared
from ztune.runs.plan import workload_job


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))


PARTS = {
    "theirs/__init__.py": "import pydantic\n",
    "theirs/workload.py": """
from theirs.job import TheirJob
from ztune.databases import workload as base

class P(base.Parameters):
    rows: int = base.param(3, ge=1, meaning="How many.")

class Theirs(base.JobWorkload):
    name = "theirs"
    summary = "somebody's own"
    Parameters = P
    job_class = TheirJob
    job_modules = ("theirs.deep.helper",)

class Lacking(Theirs):
    job_modules = ("theirs.nothing",)
""",
    "theirs/deep/__init__.py": "raise SystemExit('not for the other machine')\n",
    "theirs/deep/helper.py": "def twice(n):\n    return 2 * n\n",
    "theirs/job.py": """
from ztune.onhost.jobs.job import JobBase

class TheirJob(JobBase):
    name = "theirs"
    ROLES = ("data",)

    def check(self):
        from theirs.deep.helper import twice
        return f"TheirDB {twice(self.params['rows'])}"

    def kill(self): ...
    def prepare(self, workdir, places=None): ...
    def load(self, progress=None): ...
    def adopt(self, places): ...
    def start(self, progress=None): ...
    def pids(self): return []
    def run(self, progress=None): ...
    def verify(self, result): return result
    def stop(self): ...
    def role_paths(self): return {}
    def page_sizes(self): return {}
""",
}


def say(archive: Path, program: str) -> str:
    # -I and -S: no installed packages, no directory of ours on the path.
    text = f"import sys; sys.path.insert(0, {str(archive)!r}); {program}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_our_jobs_need_nothing_installed() -> None:
    archive = bundle.build()
    kinds = [registry.get(entry.name) for entry in registry.entries() if entry.source == "ztune"]
    names = [kind.job_name() for kind in kinds if issubclass(kind, JobWorkload)]
    program = (
        "from ztune.onhost.jobs import registry; "
        f"made = [registry.get(name).name for name in {names}]; "
        "own = {n.partition('.')[0] for n in sys.modules} - set(sys.stdlib_module_names) - {'__main__'}; "
        "print(*made, *sorted(own))"
    )
    assert len(names) > 1 and say(archive, program) == f"{' '.join(kind.name for kind in kinds)} ztune"
    program = (
        "import pkgutil; from ztune.packages import install_command; "
        "java = pkgutil.get_data('ztune.databases.orientdb.onhost', 'OrientWork.java'); "
        "print(len(java) > 1000, install_command('postgresql', 'debian'))"
    )
    assert say(archive, program) == "True apt-get install postgresql"


def test_a_job_is_found_by_its_class_and_by_its_short_name() -> None:
    """Specs and stored runs of earlier versions say the short one."""
    for name in shipped.jobs():
        workload = registry.get(name)
        assert issubclass(workload, JobWorkload)
        assert jobs.get(name) is jobs.get(workload.job_name()) is workload.job_class
        assert jobs.shown(name) == jobs.shown(workload.job_name()) == name
    assert {"postgres-oltp", "postgres-backup", "sqlite", "http", "orientdb-lucene"} < set(shipped.jobs())
    assert jobs.shown("theirs.job:TheirJob") == "theirs.job:TheirJob"


def test_a_run_of_before_finds_its_saved_state() -> None:
    """Their names hold a hash of the job's name."""
    workload = registry.get("sqlite")
    assert issubclass(workload, JobWorkload)
    asked = ({"size": "1M"}, {"synchronous": "full"}, "SQLite 3.40.1")
    assert (
        prepared.key("sqlite", *asked) == prepared.key(workload.job_name(), *asked) == "445c808225a765428e70"
    )


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in PARTS.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # Here the package above is as they wrote it, save what would end this process.
    (tmp_path / "site/theirs/deep/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = [
        EntryPoint("theirs", "theirs.workload:Theirs", registry.GROUP),
        EntryPoint("lacking", "theirs.workload:Lacking", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.GROUP else [])


def test_a_job_of_a_third_party_is_sent_along(theirs: None) -> None:
    workload = registry.get("theirs")({"rows": "21"})
    assert workload.check() == "TheirDB 42"
    job = workload_job(workload)
    assert (job.name, job.modules) == ("theirs.job:TheirJob", ("theirs.job", "theirs.deep.helper"))
    archive = bundle.build(job.modules)
    program = (
        "from ztune.onhost.jobs import registry; "
        f"job = registry.get({job.name!r})({job.params!r}, {{}}, patience=2); print(job.check())"
    )
    assert say(archive, program) == "TheirDB 42"


def test_a_module_that_cannot_be_sent_is_named(theirs: None) -> None:
    job = workload_job(registry.get("lacking")())
    with pytest.raises(InputError, match=r"theirs\.nothing"):
        bundle.build(job.modules)


class Old:
    """A workload without a job."""

    name = "old"
    summary = "only recorded"


def test_a_workload_without_a_job_can_only_be_recorded() -> None:
    with pytest.raises(InputError, match="can be recorded but not run in trials"):
        workload_job(Old())  # type: ignore[arg-type]


def test_jobs_that_are_not_there() -> None:
    with pytest.raises(InputError, match="did you mean 'postgres-oltp'"):
        jobs.get("postgres-olt")
    with pytest.raises(InputError, match=r"can't be imported.*name every module"):
        jobs.get("no.such.module:Thing")
    with pytest.raises(InputError, match="is not a job: it has no check"):
        jobs.get("pathlib:Path")
