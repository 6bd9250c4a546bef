"""What all tests need."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts pytest in the background has it ignore interrupts, nohup hang-ups, and with it all that
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says how busy this machine is.
settings.register_profile("ztune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ztune")

NEEDS = {
    # Programs of ours that are compiled, or a compiler.
    "native": (
        "engine", "native", "recorders", "test_disk_measure", "test_disk_model", "test_disk_server",
        "test_observe_live", "test_screening_engine", "test_workload_fingerprints",
    ),
    # A database, or another server that somebody else wrote.
    "server": (
        "crash", "test_adding_a_workload", "test_full_dataset", "test_http_load",
        "test_ldap_import", "test_mariadb_job", "test_mongo_restore", "test_observe_settings",
        "test_orientdb_files", "test_orientdb_graph", "test_pgbench", "test_postgres_backup",
        "test_postgres_oltp", "test_postgres_places", "test_rocksdb_job", "test_workload_postgres",
    ),
    "mount": ("mount", "test_mount_target"),
    "lab": ("lab",),
    # Root's rights: to mount, for a disk of its own.
    "root": (
        "test_no_room", "test_probes_running", "test_store_disk", "test_trial_attack",
        "test_trial_devices", "test_trial_full_disk",
    ),
    # Whole commands or trials in processes of their own, or long computations: seconds each.
    "slow": (
        "test_aa", "test_apply_perform", "test_command_job", "test_fio_job", "test_http_service",
        "test_mongod", "test_observe_command", "test_output", "test_process", "test_repeats",
        "test_runner", "test_screening", "test_sqlite_job", "test_ssh", "test_stop",
        "test_third_party", "test_trial_baseline", "test_trial_mount",
    ),
}  # fmt: skip
"""What tests need besides Python, by folder or file; `make check` runs those that are not named here."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes each, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    _check_needs(here)
    for item in items:
        # What shares a guest, or the fixtures of a module, runs in one process.
        folder, *rest = item.path.relative_to(here).parts
        for need, places in NEEDS.items():
            if folder in places or item.path.stem in places:
                item.add_marker(need)
        item.add_marker(pytest.mark.xdist_group(folder if folder == "lab" else "/".join((folder, *rest))))
    if config.getoption("--long"):
        return
    skipped = pytest.mark.skip(reason="takes minutes: `make test-all` runs it")
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(skipped)


def _check_needs(here: Path) -> None:
    there = {path.name for path in here.iterdir() if path.is_dir()} | {
        path.stem for path in here.rglob("test_*.py")
    }
    gone = {place for places in NEEDS.values() for place in places} - there
    if gone:
        raise pytest.UsageError(
            f"tests/conftest.py: NEEDS names what is not there: {', '.join(sorted(gone))}"
        )
