"""Clients that can't go on before what writes back has come so far, in closed replays."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import pytest
from engine_build import FSYNC, MIB, READ, WRITE, Ops, group, replay, spec

MS = 1_000_000
CLIENTS = 4
PHASES, BUSY, CLEANED = 6, 16 * MS, 20 * MS
"""In each phase clients commit for so long, and then cleaners write back."""
WRITTEN = 40  # by these, in each phase

Cleaners = Literal["none", "side by side", "by turns"]


def recorded(cleaners: Cleaners, *, clients_wait: bool = True) -> Ops:
    """Clients commit, one each 0.2 ms, and do nothing while two cleaners write and sync a file each, or
    commit on (not ``clients_wait``).
    """
    syncs: list[tuple[int, int, int, int]] = []  # begin, length, file, thread
    for phase in range(PHASES):
        began = phase * (BUSY + CLEANED)
        for at in range(0, BUSY if clients_wait else BUSY + CLEANED, MS // 5):
            syncs.append((began + at, MS // 10, 0, len(syncs) % CLIENTS))
    syncs += [(PHASES * (BUSY + CLEANED), MS // 10, 0, client) for client in range(CLIENTS)]
    for phase in range(PHASES if cleaners != "none" else 0):
        began = phase * (BUSY + CLEANED) + BUSY
        for i in range(WRITTEN):
            if cleaners == "side by side":
                at, took, cleaner = i // 2 * MS, MS, i % 2
            else:
                at, took, cleaner = i * MS // 2, MS // 2, i * 2 // WRITTEN
            syncs.append((began + at, took - 20_000, 1 + cleaner, CLIENTS + cleaner))
    calls: list[tuple[int, int, dict[str, int]]] = []
    pages = [0, 0, 0]
    for at, took, file, thread in sorted(syncs):
        where = {"file": file, "thread": thread}
        calls.append((at, WRITE, {**where, "offset": pages[file] * 8192, "size": 8192, "dur": 1000}))
        calls.append((at + 2000, FSYNC, {**where, "dur": took}))
        pages[file] += 1
    ops = Ops(step=0, dur=0)
    for at, op, call in sorted(calls, key=lambda timed: timed[0]):
        ops.t = at
        ops.add(op, **call)
    ops.add(READ, file=1, offset=0, size=512, thread=CLIENTS + 2)
    return ops


def most_s(tmp_path: Path, noise: Path, ops: Ops, profile: str = "nvme") -> float:
    """Return by when most of the clients' commits had ended, seconds."""
    s = spec(noise, size=[64 * MIB] * 3, properties={"recordsize": "8K"}, profile=profile, closed=True)
    model = replay(tmp_path, {**s, "logs": [[0]], "load": "touched"}, ops)["measure"]["model"]
    return float(model["most_s"])


@pytest.mark.parametrize("cleaners", ["side by side", "by turns"])
def test_clients_wait_for_what_had_kept_them_waiting(tmp_path: Path, noise: Path, cleaners: Cleaners) -> None:
    """On NVMe the cleaners need less than their 20 ms, so the clients wait less than when recorded; on a hard
    disk far more.
    """
    alone, waits = recorded("none"), recorded(cleaners)
    assert most_s(tmp_path, noise, waits) < 0.65 * most_s(tmp_path, noise, alone)
    # Before the last phase, and half a turn of the disk for each sync at the least.
    least = (PHASES - 1) * WRITTEN * 0.004
    assert most_s(tmp_path, noise, waits, "hdd") > most_s(tmp_path, noise, alone, "hdd") + least


@pytest.mark.parametrize("cleaners", ["side by side", "by turns"])
def test_clients_that_went_on_beside_the_cleaners_wait_for_none(
    tmp_path: Path, noise: Path, cleaners: Cleaners
) -> None:
    whose: tuple[Cleaners, ...] = ("none", cleaners)
    alone, beside = (most_s(tmp_path, noise, recorded(who, clients_wait=False)) for who in whose)
    assert beside == pytest.approx(alone, rel=0.1)


def test_long_pauses_that_mostly_have_no_cleaner_s_call_in_them_are_the_clients_own(
    tmp_path: Path, noise: Path
) -> None:
    """Each client commits every 0.8 ms, and does nothing for 5 ms in every 20, whatever the cleaner does. It
    reads ten pages in every 21 ms: a fourth of the long pauses have its calls in them, of the short ones a
    twenty-fifth. On a hard disk the cleaner would take four times as long as the clients.
    """
    r = random.Random(1)
    took = {}
    for cleans in (False, True):
        calls: list[tuple[int, int, dict[str, int]]] = []
        for client in range(CLIENTS):
            for at in range(client * MS // 5, 400 * MS, 4 * MS // 5):
                if (at + client * 5 * MS) % (20 * MS) >= 5 * MS:
                    where = {"thread": client, "offset": at // 100_000 % 1000 * 8192}
                    calls.append((at, WRITE, {**where, "size": 8192, "dur": 1000}))
                    calls.append((at + 2000, FSYNC, {"thread": client, "dur": 20_000}))
        for at in range(17 * MS, 400 * MS if cleans else 0, 21 * MS):
            for i in range(10):
                page = {"file": 1, "thread": CLIENTS, "offset": r.randrange(1 << 13) * 8192, "size": 8192}
                calls.append((at + i * 2000, READ, {**page, "dur": 1000}))
            calls.append((at + 20_000, WRITE, {**page, "dur": 1000}))
        ops = Ops(step=0, dur=0)
        for at, op, call in sorted(calls, key=lambda timed: timed[0]):
            ops.t = at
            ops.add(op, **call)
        s = spec(
            noise, size=[8 * MIB, 64 * MIB], properties={"recordsize": "8K"}, closed=True,
            vdevs=[group("data", "stripe", 1, "hdd"), group("log", "stripe", 1)],
        )  # fmt: skip
        found = replay(tmp_path, {**s, "logs": [[0]], "load": "touched"}, ops)["measure"]
        took[cleans] = found["model"]["most_s"]
    assert took[True] == pytest.approx(took[False], rel=0.1)
