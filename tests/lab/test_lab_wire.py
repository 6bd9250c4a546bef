"""The host's end of the guest's port, with an agent of ours at the other end: no guest is started."""

from __future__ import annotations

import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from ztune.lab import guest, wire
from ztune.lab.guest import GuestChannel
from ztune.lab.wire import Frame, Frames, GuestLost, Port, pack


class Agent:
    """Takes frames, and answers nothing but what a test says."""

    def __init__(self) -> None:
        ours, self.stream = socket.socketpair()
        self.port = Port(ours)
        self._frames = Frames()

    def heard(self, count: int) -> list[tuple[Frame, bytes]]:
        found: list[tuple[Frame, bytes]] = []
        while len(found) < count:
            found += [(kind, payload) for kind, _, payload in self._frames.feed(self.stream.recv(1 << 16))]
        return found

    def say(self, frame: Frame, payload: bytes) -> None:
        self.stream.sendall(pack(frame, 1, payload))


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.stream.close()
    made.port.close()


@pytest.mark.timeout(30)
def test_a_program_that_outlives_its_kill_is_waited_for_no_more(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits in the guest's kernel for a disk does: the guest must go, and take it along."""
    monkeypatch.setattr(guest, "_CLOSE_S", 0.2)
    monkeypatch.setattr(guest, "_KILL_S", 0.2)
    channel = GuestChannel(agent.port.start(["python3", "trial.pyz"], {}))
    agent.say(Frame.STDOUT, b"begun\n")
    lines = channel.lines()
    assert next(lines) == "begun"
    threading.Thread(target=channel.close, daemon=True).start()
    with pytest.raises(GuestLost, match="outlived SIGKILL"):
        next(lines)
    with pytest.raises(GuestLost, match="outlived SIGKILL"):
        channel.wait()
    kinds = [kind for kind, _ in agent.heard(4)]
    assert kinds == [Frame.RUN, Frame.CREDIT, Frame.EOF, Frame.SIGNAL]


@pytest.mark.timeout(30)
def test_one_that_is_killed_has_its_code(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "_CLOSE_S", 0.2)
    channel = GuestChannel(agent.port.start(["sleep"], {}))
    closing = threading.Thread(target=channel.close, daemon=True)
    closing.start()
    assert agent.heard(3)[-1] == (Frame.SIGNAL, struct.pack("<I", signal.SIGKILL))
    agent.say(Frame.EXIT, struct.pack("<I", 128 + signal.SIGKILL))
    assert list(channel.lines()) == [] and channel.wait() == 128 + signal.SIGKILL
    closing.join(10)


@pytest.mark.timeout(30)
def test_a_reader_that_is_interrupted_goes_on_where_it_was(agent: Agent) -> None:
    """As by Ctrl-C, after which a run reads on to the trial's end: its result may be among what has come."""
    channel = GuestChannel(agent.port.start(["python3", "trial.pyz"], {}))
    agent.say(Frame.STDOUT, b"one\ntwo\nthr")
    assert next(channel.lines()) == "one"
    assert next(channel.lines()) == "two"
    agent.say(Frame.STDOUT, b"ee\nfo")
    agent.say(Frame.STDOUT, b"ur")
    agent.say(Frame.EXIT, struct.pack("<I", 0))
    assert list(channel.lines()) == ["three", "four"]


@pytest.fixture
def watched(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> GuestChannel:
    """A command of a guest that may be silent for half a second."""
    monkeypatch.setattr(wire, "_ASK_S", 0.05)
    monkeypatch.setattr(wire, "_SILENT_S", 0.5)
    channel = GuestChannel(agent.port.start(["python3", "trial.pyz"], {}))
    agent.port.watch()
    return channel


@pytest.mark.timeout(30)
def test_a_guest_that_answers_nothing_is_lost(agent: Agent, watched: GuestChannel) -> None:
    """As one whose kernel is stuck, but runs: the trial must not wait for hours."""
    with pytest.raises(GuestLost, match="its kernel is stuck"):
        list(watched.lines())
    assert Frame.HELLO in [kind for kind, _ in agent.heard(3)]


@pytest.mark.timeout(30)
def test_a_guest_that_answers_is_not(agent: Agent, watched: GuestChannel) -> None:
    answers = 0
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        for kind, payload in agent.heard(1):
            if kind is Frame.HELLO:
                agent.stream.sendall(pack(Frame.HELLO, 0xFFFFFFFF, payload))
                answers += 1
    assert answers > 3
    agent.say(Frame.STDOUT, b"still there\n")
    assert next(watched.lines()) == "still there"
