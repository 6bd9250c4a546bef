"""Runs the trial program with the small job and no probes, and kills it where a test says.

``python3 trial_harness.py run [--kill N]`` reads the spec as ``run`` does. With ``--kill N`` the process ends
by SIGKILL at record N // 2 of the journal: before it is written for an even N, after it for an odd one. So
both an act that was announced and not begun and one that was done and not noted are met.

``serve`` does the same many times, each in a fork, as starting Python takes longer than most of a trial: it
reads lines of JSON (number, words, input) and answers each with another (number, rc, out, err).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from forked import forked
from trial_job import Writer

from ztune.onhost import main
from ztune.onhost.jobs.beside import NAME, TwoJobs
from ztune.onhost.probes.context import Context
from ztune.onhost.trial import lifecycle
from ztune.onhost.trial.journal import Journal


class NoProbe:
    def freeze(self) -> None:
        return None

    def stop(self) -> dict[str, Any]:
        return {}

    def abandon(self) -> None:
        return None


class Window:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.seconds = -time.monotonic()

    def close(self) -> None:
        self.seconds += time.monotonic()

    def end(self) -> dict[str, Any]:
        pools = [[p.name, p.filesystem, [d.class_ for d in p.devices]] for p in self.context.pools]
        datasets = [[d.name, d.filesystem] for d in self.context.datasets]
        return {"pools": pools, "datasets": datasets, "seconds": self.seconds}


def kill_at(number: int) -> None:
    append = Journal.append
    seen = 0

    def killing(self: Journal, do: str, **fields: Any) -> None:
        nonlocal seen
        seen += 1
        if number == 2 * seen:
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, do, **fields)
        if number == 2 * seen + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    Journal.append = killing  # type: ignore[method-assign]


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        done = forked(run, order["words"], order["input"])
        said = {"rc": done.returncode, "out": done.stdout, "err": done.stderr}
        print(json.dumps({"number": order["number"], **said}), flush=True)


def run(words: list[str]) -> int:
    if "--kill" in words:
        at = words.index("--kill")
        kill_at(int(words[at + 1]))
        del words[at : at + 2]
    return main.main(words)


if __name__ == "__main__":
    parts = lifecycle.Parts(
        lambda name: TwoJobs if name == NAME else Writer, lambda _context: NoProbe(), Window
    )
    lifecycle.Parts.standard = classmethod(lambda _cls: parts)  # type: ignore[method-assign,assignment]
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        sys.exit(run(sys.argv[1:]))
