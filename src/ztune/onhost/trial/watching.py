"""Interrupts a trial whose pools are lost: whatever waits for them may wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ztune.onhost.host import interrupt

_LOOK_S = 0.2
_GRACE_S = 2.0
"""What the loss breaks fails by itself within this, mostly, and says more."""


class LossWatch:
    """Looks from its making on; interrupts once, after a moment, when the pools are lost."""

    def __init__(self, lost: Callable[[], bool]) -> None:
        """``lost`` is asked again and again in a thread; it must not wait for the pools itself."""
        self._lost = lost
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._look, daemon=True, name="loss watch")
        self._thread.start()

    def end(self) -> None:
        """Watch no more; nothing is interrupted after this."""
        with self._lock:
            self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            if self._lost():
                if not self._over.wait(_GRACE_S):
                    with self._lock:
                        if not self._over.is_set():
                            interrupt.ring()
                return
