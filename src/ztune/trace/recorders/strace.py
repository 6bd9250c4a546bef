"""placeholder while ebpf is tried"""

from ztune.trace.recorders.base import Session, Start


class StraceRecorder:
    """x."""

    name = "strace"

    def unavailable(self) -> str | None:
        """x."""
        return "not yet"

    def start(self, start: Start) -> Session:
        """x."""
        raise NotImplementedError
