"""Keeps pieces of temporary files while they are there: they are gone when a recording ends.

How well a database's spills compress is known to nobody afterwards: sorts and hash joins remove their files.
So they are looked at as they are used, in the descriptors of the recorded processes. The pieces stay in
memory, to be measured with the other files.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ztune.onhost.host import noatime
from ztune.onhost.probes import procfs

PIECE = 1 << 20
MOST = 32
"""Pieces that are kept, whichever are seen later: each that was taken is as likely to be among them."""
AT_ONCE = 4
"""Pieces that one look takes."""
EVERY_S = 1.0
REST = 200
"""Times what a look took, until the next: at most half a per cent of a processor."""


class PassingFiles:
    """Looks at the temporary files of ``pids`` and their descendants, from ``start`` to ``stop``.

    ``wanted``: whether the file at a path is one.
    """

    def __init__(self, pids: Sequence[int], wanted: Callable[[str], bool], seed: int = 1) -> None:
        self.pieces: list[bytes] = []
        self._pids = list(pids)
        self._wanted = wanted
        self._random = random.Random(seed)
        self._taken = 0
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="temporary files")
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A second call does nothing."""
        self._halt.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def look(self) -> None:
        """Take pieces of some of the files that are open now."""
        there = list({(s.st_dev, s.st_ino): (link, s.st_size) for link, s in self._open()}.values())
        for link, size in self._random.sample(there, min(AT_ONCE, len(there))):
            number = self._random.randrange(-(-size // PIECE))
            # A link of the kernel's, which is to be followed.
            if piece := noatime.part(link, number * PIECE, PIECE, flags=0):
                self._keep(piece)

    def _run(self) -> None:
        pause = EVERY_S
        while not self._halt.wait(pause):
            began = time.monotonic()
            self.look()
            pause = max(EVERY_S, REST * (time.monotonic() - began))

    def _open(self) -> Iterator[tuple[str, os.stat_result]]:
        for pid in procfs.descendants(self._pids):
            folder = f"/proc/{pid}/fd"
            for name in noatime.names(folder):
                link = f"{folder}/{name}"
                with contextlib.suppress(OSError):
                    path = os.readlink(link)  # noqa: PTH115 — one that is no path stays as it is
                    if path.startswith("/") and self._wanted(path):
                        found = Path(link).stat()
                        if stat.S_ISREG(found.st_mode) and found.st_size:
                            yield link, found

    def _keep(self, piece: bytes) -> None:
        self._taken += 1
        if len(self.pieces) < MOST:
            self.pieces.append(piece)
        elif (place := self._random.randrange(self._taken)) < MOST:
            self.pieces[place] = piece
