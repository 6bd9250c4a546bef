"""What all tests need."""

import contextlib
import fcntl
import gc
import io
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import mount_commands
import own_mounts
import pytest
from hypothesis import HealthCheck, settings
from synthetic_traces import STAND_IN, make_trace
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from ztune.databases.postgresql.onhost.server import find_binaries
from ztune.errors import ZtuneError
from ztune.places import bundle
from ztune.trace.reader import Trace

# A shell that starts pytest in the background has it ignore interrupts, nohup hang-ups, and with it all that
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A `python3` that a version manager puts first on the PATH is a shell script, four times as slow to
# start. Programs that stand in for others are started by that name thousands of times.
_PYTHON = Path(sys.base_prefix, "bin", "python3")
if _PYTHON.exists() and os.path.realpath(shutil.which("python3") or "") != os.path.realpath(_PYTHON):
    os.environ["PATH"] = f"{_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"

# How long an example takes says how busy this machine is.
settings.register_profile("ztune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ztune")


NEEDS = {
    # Programs of ours that are compiled, or a compiler.
    "native": (
        "engine", "native", "recorders", "test_claims_native", "test_disk_measure", "test_disk_model",
        "test_disk_server", "test_disk_vhost", "test_frames", "test_memory_bound", "test_observe_live",
        "test_screening_engine", "test_workload_fingerprints",
    ),
    # A database, or another server that somebody else wrote.
    "server": (
        "crash", "test_full_dataset", "test_http_load",
        "test_ldap_import", "test_mariadb_job", "test_mongo_restore", "test_observe_settings",
        "test_orientdb_files", "test_orientdb_graph", "test_pgbench", "test_postgres_backup",
        "test_postgres_oltp", "test_postgres_places", "test_rocksdb_job", "test_workload_postgres",
        "valkey",
    ),
    "mount": ("mount", "test_mount_target"),
    # Root's rights: to mount, for a disk of its own.
    "root": (
        "test_memory_group", "test_no_room", "test_probes_running", "test_rack_faults", "test_store_disk",
        "test_trial_attack", "test_trial_devices", "test_trial_door_disks", "test_trial_full_disk",
    ),
    # Whole commands or trials in processes of their own, or long computations: seconds each.
    "slow": (
        "test_apply_perform", "test_claims_measured", "test_command_job", "test_database_facts",
        "test_fio_job", "test_fleet_faults", "test_fleet_replays", "test_hosts_metrics", "test_hosts_ssh",
        "test_http_service", "test_look", "test_mongod", "test_new_database", "test_observe_command",
        "test_layout_search", "test_output", "test_process", "test_rack_faults", "test_repeats",
        "test_runner", "test_screening", "test_search_grids", "test_several_hosts", "test_sqlite_job",
        "test_ssh", "test_stop", "test_studies_command", "test_third_party",
        "test_trial_baseline", "test_trial_mount", "test_versions",
    ),
}  # fmt: skip
"""What tests need besides Python, by folder or file; `make check` runs those that are not named here."""

NEEDED_FIXTURES = {
    "lab": {"lab_image", "user_mode_image"},
    "root": {"stand_in_mount"},
    "server": {"needs_postgres"},
}
"""What tests need by the fixtures that they use, wherever they lie."""

LONGEST = (
    "lab",
    "databases/orientdb/test_orientdb_files.py", "databases/ldap/test_ldap_import.py",
    "databases/http/test_http_load.py", "native/test_installed.py", "engine/test_known_cases.py",
    "runs/test_rack_faults.py",
    "runs/test_screening.py", "databases/orientdb/test_orientdb_graph.py", "engine/test_footprint.py",
    "trace/recorders/test_record.py",
    "onhost/trial/test_trial_baseline.py", "mount/test_mount_databases.py",
    "onhost/trial/test_trial_mount.py", "databases/test_full_dataset.py",
    "onhost/trial/test_trial_attack.py", "runs/test_runner.py", "cli/test_stop.py",
    "places/test_mount_target.py", "mount/test_mount_sanitized.py", "disk/test_disk_model.py",
    "engine/test_partial_loads.py", "runs/test_screening_engine.py", "runs/test_several_hosts.py",
    "trace/recorders/test_sample_and_windows.py", "trace/test_repeats.py",
)  # fmt: skip
"""Groups of tests that take the longest, in the order in which they start: none is left at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes each, too")
    parser.addoption("--rounds", type=int, default=20, help="with --long: how often each fault is tried")
    parser.addoption("--seed", default="", help="a word: faults at other moments than without")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        own_mounts.take()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without a look for garbage: there is none, and each look goes through all tests so far."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # nor are they looked at while the tests run
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Load each file of tests in one process first: the others take the bytecode that it leaves.

    In a new clone there is none, and all processes load the same files at the same time: each would rewrite
    all assertions, fifteen seconds of work.
    """
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    _check_needs(here)
    for item in items:
        where = {item.path.stem, *item.path.relative_to(here).parts}
        for need, places in NEEDS.items():
            if where.intersection(places):
                item.add_marker(need)
        fixtures = set(getattr(item, "fixturenames", ()))
        for need, names in NEEDED_FIXTURES.items():
            if fixtures & names:
                item.add_marker(need)
    order = {group: place for place, group in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(_group(item.nodeid), len(LONGEST)))
    if config.getoption("--long"):
        return
    skipped = pytest.mark.skip(reason="takes minutes: `make test-all` runs it")
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(skipped)


class _ByGroup(LoadFileScheduling):  # type: ignore[misc]
    """Hands tests to processes by the groups below; ``--dist loadgroup`` has no effect with pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _ByGroup:
    return _ByGroup(config, log)


def _group(nodeid: str) -> str:
    """Return what shares the fixtures of a file, or the lab's guest: it runs in one process."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    return "lab" if path.startswith("lab/") else path


def _check_needs(here: Path) -> None:
    there = {name for path in here.rglob("test_*.py") for name in (path.stem, *path.relative_to(here).parts)}
    gone = {place for places in NEEDS.values() for place in places} - there
    gone |= {group for group in LONGEST if not (here / group).exists()}
    if gone:
        raise pytest.UsageError(
            f"tests/conftest.py: NEEDS or LONGEST names what is not there: {', '.join(sorted(gone))}"
        )


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of the tests that need nothing but Python and have none of their own."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(autouse=True)
def not_the_users_state(
    request: pytest.FixtureRequest, shared_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep tests away from the user's state; those with needs find programs and images in its cache."""
    if not any(request.node.get_closest_marker(need) for need in NEEDS):
        monkeypatch.setenv("ZTUNE_HOME", str(shared_home))


_PACKED: dict[tuple[tuple[str, bytes], ...], bytes] = {}


@pytest.fixture
def packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial program is packed for the first of the tests that are not about it: the state directory of
    each of them has none yet."""
    pack = bundle._archive

    def archive(file: BinaryIO, files: Mapping[str, bytes]) -> None:
        key = tuple(sorted(files.items()))
        if key not in _PACKED:
            made = io.BytesIO()
            pack(made, files)
            _PACKED[key] = made.getvalue()
        file.write(_PACKED[key])

    monkeypatch.setattr(bundle, "_archive", archive)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a test's own."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ZTUNE_HOME", str(folder))
    return folder


@pytest.fixture
def stand_in_engine(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the engine's place, which misbehaves as ``$STAND_IN`` says."""
    monkeypatch.setenv("ZTUNE_ENGINE", str(STAND_IN))
    monkeypatch.delenv("STAND_IN", raising=False)
    monkeypatch.delenv("STAND_IN_VERSION", raising=False)
    return STAND_IN


@pytest.fixture
def stand_in_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program in the mount's place, which misbehaves as ``$STAND_IN`` says, and is unmounted."""
    reason = mount_commands.fuse_problem()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("ZTUNE_MOUNT", str(mount_commands.STAND_IN))
    yield mount_commands.STAND_IN
    mount_commands.end_all(tmp_path)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """A small trace of two roles, made without recording."""
    return make_trace(tmp_path / "t.trace")


@pytest.fixture(scope="session")
def needs_postgres() -> None:
    try:
        find_binaries()
    except ZtuneError as error:
        pytest.skip(f"no PostgreSQL here: {error}")


@pytest.fixture(scope="session")
def open_parent() -> Iterator[Path]:
    """A directory that every user may pass through; pytest's own are closed to a database's user."""
    path = Path(tempfile.mkdtemp(prefix="wl-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def parent(open_parent: Path) -> Iterator[Path]:
    """An empty directory below ``open_parent``."""
    path = Path(tempfile.mkdtemp(dir=open_parent))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
