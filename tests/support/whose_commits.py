"""A program in which one waits for another's commit, and what a recording tells of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ztune.trace.schema import Op

# Two that commit to "log" in this folder, each told what to do; and a lock, which one waits for.
_PROGRAM = """
import array, fcntl, os, socket, termios, time
f = os.open("log", os.O_RDWR | os.O_CREAT)
lock = os.pipe()

def connection():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    return server.accept()[0].detach(), client.detach()

told = [{connected} for _ in (0, 1)]

def commits(me):
    while (what := os.read(told[me][0], 1)) != b"e":
        if what == b"c": os.pwrite(f, b"x" * 100, me * 4096); os.fdatasync(f)
        if what == b"o": os.write(lock[1], b"o")
        if what == b"C": os.pwrite(f, b"x" * 100, me * 4096); os.fdatasync(f); os.write(lock[1], b"o")
        if what == b"w": os.read(lock[0], 1)
        if what == b"W": os.read(lock[0], 1); os.pwrite(f, b"x" * 200, me * 4096); os.fdatasync(f)
        if what == b"R": os.read(lock[0], 1); os.pread(f, 10, 0)
    os._exit(0)

pids = []
for me in (0, 1):
    pids.append(os.fork())
    if not pids[me]: commits(me)

def rests(me):
    left = array.array("i", [0])
    fcntl.ioctl(told[me][0], termios.FIONREAD, left)
    with open(f"/proc/{pids[me]}/stat") as stat:
        return left[0] == 0 and stat.read().rpartition(")")[2].split()[0] == "S"

# Until both wait, whatever a sync takes, and then as long as is to be seen.
def tell(me, what):
    os.write(told[me][1], what)
    while not (rests(0) and rests(1)): time.sleep(0.001)
    time.sleep(0.1)

tell(0, b"c"); tell(1, b"c")
{steps}
for me in (0, 1): os.write(told[me][1], b"e")
os.wait(); os.wait()
"""


def program(*steps: tuple[int, str], tcp: bool = False) -> str:
    """Return its text; ``steps``: whom to tell what. ``tcp``: by a connection, in place of a pipe."""
    text = _PROGRAM.replace("{connected}", "connection()" if tcp else "os.pipe()")
    return text.replace("{steps}", "\n".join(f"tell({who}, b{what!r})" for who, what in steps))


def last_of_second(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """Return the last call but syncs of the second that commits, of all on "log", and when the first's last
    sync had ended."""
    first, second = dict.fromkeys(row["pid"] for row in rows if row["op"] == Op.WRITE)
    (*_, last) = (row for row in rows if row["pid"] == second and row["op"] in (Op.READ, Op.WRITE))
    (*_, sync) = (row for row in rows if row["pid"] == first and row["op"] == Op.FDATASYNC)
    return last, sync["t"] + sync["dur"]
