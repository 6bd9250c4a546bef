"""Finds the cluster that `--on` names and connects to it; makes one on this machine's own cores.

Whoever may talk to a Dask scheduler has its workers run what he likes. So another machine is reached by TLS
alone, where both sides show certificates of one authority; without TLS only this machine is, and the
scheduler has to be ours.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ztune import paths
from ztune.errors import InputError, MissingError
from ztune.onhost.host import own_directory, shared_files

if TYPE_CHECKING:
    from distributed import Security

    from ztune.fleet.executor import FleetExecutor

LOCAL = "local-cluster"
SCHEMES = ("dask", "tcp", "tls")
PORT = 8786
"""Dask's own, of its schedulers."""
_CONNECT_S = 15
_DASHBOARD_S = 2
_SILENT = logging.CRITICAL + 1
"""Its scheduler calls it critical, with a traceback, that a client was gone when it was told of an end."""


@dataclass(frozen=True)
class FleetAddress:
    """What `--on` names: a scheduler, or so many workers on this machine (0: one per core)."""

    text: str
    scheme: str
    host: str = ""
    port: int = PORT
    workers: int = 0


def parse(text: str) -> FleetAddress:
    """Return the fleet that ``text`` names. Raises InputError."""
    wrong = InputError(
        f"--on {text}: layouts are replayed on {LOCAL}, {LOCAL}:N, dask://HOST:PORT or tls://HOST:PORT"
    )
    local = re.fullmatch(rf"{LOCAL}(?::([1-9]\d{{0,3}}))?", text)
    if local:
        return FleetAddress(text, LOCAL, workers=int(local[1] or 0))
    found = urlsplit(text)
    try:
        port = found.port or PORT
    except ValueError:
        raise wrong from None
    if found.scheme not in SCHEMES or not found.hostname or found.path not in ("", "/") or found.username:
        raise wrong
    return FleetAddress(text, found.scheme, found.hostname, port)


@contextlib.contextmanager
def fleet(text: str, say: Callable[[str], None]) -> Iterator[FleetExecutor]:
    """Yield what replays on the fleet that ``text`` names; ``say`` is told what a user has to know of it.

    Raises InputError for one that is no address or would not be safe; MissingError where it does not answer,
    or Dask is not installed.
    """
    address = parse(text)
    try:
        import distributed
    except ImportError:
        raise MissingError(
            f"--on {text} needs Dask, which is not installed here: pip install 'ztune[fleet]'"
        ) from None
    from ztune.fleet.executor import FleetExecutor

    # What concerns the user is said by us; the rest is Dask's talk about connections.
    logging.getLogger("distributed").setLevel(_SILENT)
    with contextlib.ExitStack() as held:
        if address.scheme == LOCAL:
            where, security = _local_cluster(address, held)
        else:
            where, security = _scheduler(address)
        try:
            client = distributed.Client(
                where, security=security, timeout=_CONNECT_S, set_as_default=False, name="ztune"
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise MissingError(
                f"no Dask scheduler answers at {where} ({type(error).__name__}); "
                "`dask scheduler` starts one, and docs/fleet.md says how"
            ) from None
        held.callback(_quietly, client.close)
        link = _dashboard(client.dashboard_link)
        say(f"fleet {where}" + (f", dashboard {link}" if link else ""))
        executor = FleetExecutor(
            client, say, f"; `ztune screen --resume last --on {shlex.quote(text)}` goes on"
        )
        held.callback(executor.close)
        yield executor


def _dashboard(link: str | None) -> str:
    """Return the address of Dask's dashboard if there is one: without bokeh a scheduler has none, and names
    it all the same."""
    if not link or not link.startswith(("http://", "https://")):
        return ""
    from urllib.request import urlopen  # here, as it takes http.client and ssl

    try:
        with urlopen(link, timeout=_DASHBOARD_S) as answer:
            return link if answer.status == 200 and b"needs bokeh" not in answer.read(4096) else ""
    except (OSError, ValueError):
        return ""


def _quietly(close: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # whom we let go of may be gone
        close()


def _local_cluster(address: FleetAddress, held: contextlib.ExitStack) -> tuple[str, Security]:
    """Start workers on this machine, and end them with ``held``."""
    import dask
    from distributed import LocalCluster, Security

    try:
        security = Security.temporary()
    except ImportError:
        raise MissingError(
            f"--on {address.text} needs cryptography, which is not installed here: pip install 'ztune[fleet]'"
        ) from None
    cores = len(os.sched_getaffinity(0))
    # Workers are begun by `python -c`, which would load what anybody put where ztune was called.
    if not os.environ.get("PYTHONSAFEPATH"):
        os.environ["PYTHONSAFEPATH"] = "1"
        held.callback(os.environ.pop, "PYTHONSAFEPATH", None)
    # Dask's own place has one name in /tmp for all users, and locks there that it empties.
    scratch = held.enter_context(shared_files.temporary(paths.scratch(), paths.ENGINE))
    scratch.mkdir(mode=own_directory.PRIVATE)
    held.enter_context(dask.config.set({"temporary-directory": str(scratch)}))
    cluster = LocalCluster(
        n_workers=address.workers or cores,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        security=security,
        silence_logs=_SILENT,
        memory_limit=0,  # engines have limits of their own
    )
    held.callback(_quietly, cluster.close)
    return str(cluster.scheduler_address), security


def _scheduler(address: FleetAddress) -> tuple[str, Security]:
    """Return the address of a scheduler as Dask takes it, and how to talk to it. Raises as ``fleet``."""
    from distributed import Security

    security = Security()
    named = {
        "ca-file": security.tls_ca_file,
        "client.cert": security.tls_client_cert,
        "client.key": security.tls_client_key,
    }
    host = f"[{address.host}]" if ":" in address.host else address.host
    lacking = [name for name, value in named.items() if not value]
    if address.scheme == "tls" or (address.scheme == "dask" and not lacking):
        if lacking:
            raise MissingError(
                f"--on {address.text} takes certificates, and Dask's configuration names no "
                f"distributed.comm.tls.{lacking[0]}; `ztune fleet certs DIR` makes them, and "
                "`export DASK_CONFIG=DIR` names them"
            )
        for path in named.values():
            _check_ours(Path(str(path)))
        security = Security(
            tls_ca_file=named["ca-file"], tls_client_cert=named["client.cert"],
            tls_client_key=named["client.key"], require_encryption=True,
        )  # fmt: skip
        return f"tls://{host}:{address.port}", security
    _check_here(address)
    return f"tcp://{host}:{address.port}", Security(require_encryption=False)


def _check_ours(path: Path) -> None:
    """Raise InputError where somebody else can write what says whom to trust, or it is not there."""
    from ztune.onhost.host import own_directory

    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"Dask's configuration names {path}: {error.strerror}") from None
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise InputError(
            f"{path} can be written by others than you (mode {found.st_mode & 0o7777:04o}), so it proves "
            f"nothing; chmod go-w {path}"
        )
    try:
        own_directory.real(path.absolute().parent)
    except own_directory.NotOursError as error:
        raise InputError(f"{path} proves nothing: {error}") from None


def _check_here(address: FleetAddress) -> None:
    """Raise InputError unless the scheduler is on this machine, and this user's or root's."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"--on {address.text}: {address.host} is no host ({error.strerror})") from None
    for *_, where in found:
        if not ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback:
            raise InputError(
                f"--on {address.text} is not encrypted, and another machine is reached by TLS alone: "
                "`ztune fleet certs DIR` makes certificates, `export DASK_CONFIG=DIR` names them, and "
                f"tls://{address.host}:{address.port} is its address then"
            )
    owners = listeners(address.port)
    if not owners:
        raise MissingError(f"nothing listens at {address.text}; `dask scheduler` starts a scheduler")
    strangers = owners - {0, os.geteuid()}
    if strangers:
        raise InputError(
            f"--on {address.text}: the scheduler there is that of user {min(strangers)}, who could have "
            "written every result; start one of your own, or use TLS"
        )


def listeners(port: int) -> set[int]:
    """Return the numbers of the users who listen on TCP ``port`` of this machine (proc_pid_net(5))."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[7]))
    return found
