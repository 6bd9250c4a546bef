"""Asks many hosts at once what they are and do, over the user's own ssh: ``ztune-trial look`` on each.

The program is sent over the connection and kept in memory there, so a host has nothing of ours on its disks,
neither while it is asked nor after. A host that hangs, refuses or answers nonsense costs its own row and
nothing else: each has a time limit, and is killed with its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ztune.errors import MissingError
from ztune.hosts.answer import observation
from ztune.hosts.listed import ListedHost
from ztune.observe.model import Observation
from ztune.places import bundle
from ztune.places.ssh import PYTHONS
from ztune.trace.roles import RoleRules

AT_A_TIME: Final = 20
TIMEOUT_S: Final = 60.0
"""Seconds that a host has to answer, beside the window: ssh logs in in less than one, and ``zfs get`` of a
busy host takes some."""
CONNECT_S: Final = 15
MOST_ANSWER: Final = 32 << 20
"""Bytes of one host's answer: 2,000 datasets with all their properties take 12 MB."""
_MOST_WORDS: Final = 16 << 10
_LOST, _OLD, _NONE = 255, 98, 97
# Reads the program from standard input into memory, and runs it from there. What follows is the program's.
_BOOT: Final = f"""
import os, sys
if sys.version_info < (3, 11): sys.exit({_OLD})
left = int(sys.argv[1])
fd = os.memfd_create("ztune")
while left:
    part = sys.stdin.buffer.read(min(left, 1 << 20))
    if not part: sys.exit("the program did not arrive whole")
    left -= len(part)
    while part: part = part[os.write(fd, part):]
sys.path.insert(0, f"/proc/self/fd/{{fd}}")
sys.argv = ["ztune-trial", "look"]
from ztune.onhost.main import main
sys.exit(main())
"""
# As root where that needs no password: else what others' processes do is not seen, which the answer says.
_SCRIPT: Final = """
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
s=
[ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || s="sudo -n --"
last={none}
for p in {pythons}; do
  command -v $p >/dev/null 2>&1 || continue
  $s $p -c {boot} {size}
  last=$?
  [ $last = {old} ] || exit $last
done
exit $last
"""


@dataclass(frozen=True)
class HostAnswer:
    """What came of asking one host."""

    host: ListedHost
    seen: Observation | None = None
    """None: it could not be asked."""
    why: str = ""
    """Why it could not be asked, a sentence without the host's name."""


Told = Callable[[HostAnswer], None]


def ask_all(
    hosts: Sequence[ListedHost],
    seconds: float,
    *,
    datasets: Sequence[str] = (),
    at_a_time: int = AT_A_TIME,
    timeout: float = TIMEOUT_S,
    rules: RoleRules | None = None,
    told: Told = lambda answer: None,
) -> list[HostAnswer]:
    """Ask every host for what it does in ``seconds``; return the answers in the order of ``hosts``.

    Args:
        hosts: whom to ask.
        seconds: the window on each.
        datasets: names that each host tells of, beside those of its databases.
        at_a_time: hosts that are asked at once.
        timeout: seconds that a host has beside the window.
        rules: path → role, the built-in ones by default.
        told: called after each host, in the order in which they answer.

    Raises MissingError without an ssh client. A KeyboardInterrupt ends every connection, and with it what
    runs on the hosts.
    """
    if shutil.which("ssh") is None:
        raise MissingError("the OpenSSH client `ssh` is not installed; install openssh-client")
    program = bundle.sources()
    asked = json.dumps({"seconds": seconds, "datasets": list(datasets)}).encode() + b"\n"
    script = _SCRIPT.format(
        none=_NONE, old=_OLD, pythons=" ".join(PYTHONS), boot=shlex.quote(_BOOT), size=len(program)
    )

    async def every() -> list[HostAnswer]:
        turn = asyncio.Semaphore(at_a_time)

        async def one(host: ListedHost) -> HostAnswer:
            async with turn:
                answer = await _ask(host, script, program + asked, seconds, timeout, rules)
            told(answer)
            return answer

        return list(await asyncio.gather(*(one(host) for host in hosts)))

    return asyncio.run(every())


async def _ask(
    host: ListedHost, script: str, sent: bytes, seconds: float, timeout: float, rules: RoleRules | None
) -> HostAnswer:
    # Shorter than the whole, so that ssh itself says what is wrong.
    connect = max(1, min(CONNECT_S, int(timeout / 2)))
    argv = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect}"]
    argv += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
    argv += ["-p", str(host.port)] if host.port else []
    # A session of its own: Ctrl-C is ours, and all that ssh started (a ProxyCommand) is ended with it.
    process = await asyncio.create_subprocess_exec(
        *argv,
        host.destination,
        "sh -c " + shlex.quote(script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    sending = asyncio.create_task(_send(process.stdin, sent))
    try:
        async with asyncio.timeout(seconds + timeout):
            # Standard input stays open until the answer is there: its end would end the look.
            out, words = await asyncio.gather(
                _read(process.stdout, MOST_ANSWER), _read(process.stderr, _MOST_WORDS, drop=True)
            )
            code = await process.wait()
    except TimeoutError:
        return HostAnswer(host, why=f"it did not answer within {seconds + timeout:.0f} s")
    except _TooMuch:
        return HostAnswer(host, why=f"its answer is larger than {MOST_ANSWER >> 20} MiB")
    finally:
        sending.cancel()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(process.wait())
    return _understood(host, code, out, words, rules)


class _TooMuch(Exception):
    """A host said more than an answer may have."""


async def _send(to: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # why it no longer listens, its words or exit code say
        to.write(data)
        await to.drain()


async def _read(stream: asyncio.StreamReader, most: int, *, drop: bool = False) -> bytes:
    """Return all of a stream; of more than ``most`` bytes the last with ``drop``, else raise _TooMuch."""
    parts = bytearray()
    while part := await stream.read(1 << 16):
        parts += part
        if len(parts) > most:
            if not drop:
                raise _TooMuch
            del parts[: len(parts) - most]
    return bytes(parts)


def _understood(host: ListedHost, code: int, out: bytes, words: bytes, rules: RoleRules | None) -> HostAnswer:
    lines = [line.strip() for line in words.decode(errors="replace").splitlines() if line.strip()]
    # Warnings come first, the reason last.
    reason = lines[-1].removeprefix("ssh: ").removeprefix("ztune-trial: ") if lines else ""
    if code == _NONE:
        return HostAnswer(host, why="it has no python3; install python3, 3.11 or newer, there")
    if code == _OLD:
        return HostAnswer(host, why="its python3 is older than 3.11; install a newer one beside it")
    if code == _LOST:
        return HostAnswer(host, why=f"ssh: {reason or 'the connection was lost'}")
    if code != 0:
        return HostAnswer(host, why=f"it could not look: {reason or f'exit code {code}'}")
    try:
        # A login shell may print a greeting before.
        return HostAnswer(host, observation(json.loads(out.decode().splitlines()[-1]), rules))
    except (ValueError, IndexError, RecursionError):
        return HostAnswer(host, why="it answers with something else than an observation")
