"""Which calls of a trace wait for which of other threads, alone, under sanitizers."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from engine_build import (
    CREATE,
    FSYNC,
    PLAIN,
    READ,
    RENAME,
    SYNC,
    TRUNCATE,
    UNLINK,
    WRITE,
    Ops,
)


def ask(tmp_path: Path, ops: Ops, questions: list[str], how: str = "loose") -> list[int]:
    """Return what each "waits" of the questions is answered; -1: the call can begin."""
    (tmp_path / "ops.bin").write_bytes(ops.bytes())
    done = subprocess.run(
        [str(PLAIN), "order", str(tmp_path / "ops.bin"), str(ops.files), how],
        input="".join(f"{q}\n" for q in questions),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [int(x) for x in done.stdout.split()]


def test_reads_and_writes_of_one_file_go_side_by_side(tmp_path: Path) -> None:
    ops = Ops()
    for thread, op in enumerate((WRITE, READ, WRITE, READ)):
        ops.add(op, offset=0, size=512, thread=thread)
    assert ask(tmp_path, ops, [f"waits {i}" for i in range(4)]) == [-1] * 4
    assert ask(tmp_path, ops, [f"waits {i}" for i in range(4)], "strict") == [-1, 0, 0, 0]


def test_a_name_is_there_before_its_file_is_used_and_until_it_no_longer_is(tmp_path: Path) -> None:
    ops = Ops()
    ops.add(CREATE, 0, thread=0)
    ops.add(WRITE, 0, offset=0, size=512, thread=1)
    ops.add(TRUNCATE, 0, size=0, thread=0)
    ops.add(READ, 0, offset=0, size=512, thread=1)
    ops.add(READ, 1, offset=0, size=512, thread=2)
    ops.add(RENAME, 0, file2=1, thread=0)
    ops.add(UNLINK, 1, thread=1)
    every = [f"waits {i}" for i in range(7)]
    assert ask(tmp_path, ops, every) == [-1, 0, 0, 0, -1, 0, 1]
    assert ask(tmp_path, ops, ["done 0", *every]) == [-1, -1, 0, 0, -1, 0, 1]
    assert ask(tmp_path, ops, ["done 0", "done 1", *every])[2:] == [-1, 0, -1, 0, 1]
    # What it replaces must have been left alone by then.
    assert ask(tmp_path, ops, [f"done {i}" for i in range(4)] + ["waits 5", "done 4", "waits 5"]) == [1, -1]


def test_a_sync_waits_for_writes_but_neither_for_reads_nor_for_a_sync_under_way(tmp_path: Path) -> None:
    ops = Ops()
    ops.add(WRITE, offset=0, size=512, thread=0)
    ops.add(FSYNC, thread=1, dur=5_000_000)
    ops.add(READ, offset=0, size=512, thread=2)
    ops.add(FSYNC, thread=3, dur=5_000_000)
    ops.add(SYNC, -1, thread=4)
    assert ask(tmp_path, ops, ["waits 1", "waits 3", "waits 4", "done 0", "waits 1", "waits 3"]) == [
        *(0, 0, -1),
        *(-1, -1),
    ]


def test_threads_that_share_a_log_wait_for_each_others_syncs(tmp_path: Path) -> None:
    ops = Ops(step=1_000_000, dur=100_000)
    for thread in (0, 1):  # 0 to 3
        ops.add(WRITE, offset=0, size=512, thread=thread)
        ops.add(FSYNC, thread=thread)
    ops.add(WRITE, offset=0, size=512, thread=2)  # 4: never syncs it, has no lock for it
    ops.add(READ, 1, offset=0, size=512, thread=0)  # 5: did nothing while 3 was written
    ops.add(READ, 1, offset=0, size=512, thread=2)  # 6: does not commit to this log
    ops.add(READ, 1, offset=0, size=512, thread=0)  # 7: nothing ended since 5
    first = ["done 0"]
    assert ask(tmp_path, ops, [*first, "waits 2", "waits 3", "waits 4", "done 1", "waits 2", "waits 3"]) == [
        *(0, 0, -1),
        *(-1, 0),
    ]
    assert ask(tmp_path, ops, [f"after {i}" for i in range(8)]) == [-1, -1, 1, -1, -1, 3, -1, -1]
    # Thread 1 had nothing before: it is not known since when. Thread 0 was free since 1 ended.
    assert ask(tmp_path, ops, [f"waited {i}" for i in range(8)]) == [0, 0, 100_000, 0, 0, 100_000, 0, 0]


def test_whom_threads_waited_for_is_as_the_trace_tells(tmp_path: Path) -> None:
    ops = Ops(step=1_000_000, dur=100_000)
    for thread in (0, 1, 2):  # 0 to 5; the syncs end at 1.1, 3.1 and 5.1 ms
        ops.add(WRITE, offset=0, size=512, thread=thread)
        ops.add(FSYNC, thread=thread)
    ops.add(READ, 1, offset=0, size=512, thread=0, since_sync=2_900_000, waited=500_000)  # 6, at 6 ms: for 3
    ops.add(READ, 1, offset=0, size=512, thread=1, since_sync=1_900_000)  # 7: for 5
    ops.add(READ, 1, offset=0, size=512, thread=2)  # 8: for none, though it did nothing
    ops.add(READ, 1, offset=0, size=512, thread=1, since_sync=7_900_000)  # 9: for 1, before its last call
    ops.add(READ, 1, offset=0, size=512, thread=0, since_sync=1_234_567, waited=7)  # 10: for what is no sync
    ops.add(WRITE, offset=0, size=512, thread=0, waited=9)  # 11: for the log
    ops.add(WRITE, 1, offset=0, size=512, thread=1, waited=11)  # 12: for what nobody waits for here
    asked = [f"{what} {i}" for what in ("after", "waited") for i in range(6, 13)]
    assert ask(tmp_path, ops, asked, "told") == [
        *(3, 5, -1, -1, -1, -1, -1),
        *(500_000, 0, 0, 0, 0, 9, 0),
    ]


def test_calls_come_to_a_log_as_they_come(tmp_path: Path) -> None:
    ops = Ops(step=1_000_000, dur=100_000)
    for thread in (0, 1):  # 0 to 3
        ops.add(WRITE, offset=0, size=512, thread=thread)
        ops.add(FSYNC, thread=thread)
    ops.add(TRUNCATE, size=0, thread=2)
    ops.add(FSYNC, thread=1)
    every = [f"waits {i}" for i in range(6)]
    assert ask(tmp_path, ops, every) == [-1, 0, 0, 0, 0, 0]
    # Its size is another matter.
    assert ask(tmp_path, ops, ["arrives 0", *every]) == [-1, -1, -1, -1, 0, 0]


def test_a_thread_waited_while_any_sync_of_its_log_was_on(tmp_path: Path) -> None:
    ops = Ops(step=0, dur=0)
    ops.add(WRITE, offset=0, size=512, thread=0)  # at 0
    ops.add(FSYNC, thread=1, dur=400, step=100)  # 0 to 400
    ops.add(FSYNC, thread=2, dur=600, step=900)  # 100 to 700: one second sync's 300 on top
    ops.add(FSYNC, thread=1, dur=500, step=1000)  # 1000 to 1500
    ops.add(FSYNC, thread=0, dur=100)  # at 2000, after 700 and 500 with a sync on
    assert ask(tmp_path, ops, ["after 4", "waited 4"]) == [3, 1200]


def test_whatever_ends_first_all_can_go_on(tmp_path: Path) -> None:
    """Calls wait for earlier ones only: with any order of what can begin, every call begins."""
    r = random.Random(4)
    ops = Ops()
    kinds = [WRITE, READ, FSYNC, CREATE, UNLINK, RENAME, TRUNCATE]
    for _ in range(60):
        op = r.choice(kinds)
        ops.add(
            op,
            r.randrange(3),
            offset=0 if op in (WRITE, READ) else -1,
            size=512 if op in (WRITE, READ, TRUNCATE) else -1,
            file2=r.randrange(3) if op == RENAME else -1,
            thread=r.randrange(4),
        )
    left, done = list(range(60)), list[int]()
    while left:
        past = [f"done {i}" for i in done]
        answers = ask(tmp_path, ops, past + [f"waits {i}" for i in left])
        free = [i for i, waits in zip(left, answers, strict=True) if waits < 0]
        assert left[0] in free
        done.append(r.choice(free))
        left.remove(done[-1])
