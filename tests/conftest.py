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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes each, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        # What shares a guest, or the fixtures of a module, runs in one process.
        folder, *rest = item.path.relative_to(here).parts
        item.add_marker(pytest.mark.xdist_group(folder if folder == "lab" else "/".join((folder, *rest))))
    if config.getoption("--long"):
        return
    skipped = pytest.mark.skip(reason="takes minutes: `make test-all` runs it")
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(skipped)
