"""What all tests need."""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from synthetic_traces import STAND_IN, make_trace

from ztune.databases.postgresql.onhost.server import find_binaries
from ztune.errors import ZtuneError
from ztune.trace.reader import Trace

# A shell that starts pytest in the background has it ignore interrupts, nohup hang-ups, and with it all that
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says how busy this machine is.
settings.register_profile("ztune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ztune")


NEEDS = {
    "lab": {"lab_image"},
}
"""What a test needs is marked by the fixtures that it uses."""


def fixtures_of(item: pytest.Item) -> list[str]:
    """Return the names of all fixtures that a test uses, directly or through others."""
    return list(getattr(item, "fixturenames", []))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes each, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        needed = {marker for marker, fixtures in NEEDS.items() if fixtures & set(fixtures_of(item))}
        for marker in needed:
            item.add_marker(marker)
        # What shares a guest, or the fixtures of a module, runs in one process.
        group = "lab" if "lab" in needed else str(item.path.relative_to(here))
        item.add_marker(pytest.mark.xdist_group(group))
    if config.getoption("--long"):
        return
    skipped = pytest.mark.skip(reason="takes minutes: `make test-all` runs it")
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(skipped)


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
