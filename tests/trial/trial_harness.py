"""Runs the trial program with the small job and no probes, and kills it where a test says.

``python3 trial_harness.py run [--kill N]`` reads the spec as ``run`` does. With ``--kill N`` the process ends
by SIGKILL at record N // 2 of the journal: before it is written for an even N, after it for an odd one. So
both an act that was announced and not begun and one that was done and not noted are met.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
for _path in (os.environ.get("ZTUNE_TRIAL"), Path(__file__).parents[2] / "src"):
    if _path and Path(_path).exists():
        sys.path.append(str(_path))
        break

from trial_job import Writer  # noqa: E402

from ztune.trial import lifecycle, main  # noqa: E402
from ztune.trial.context import Context  # noqa: E402
from ztune.trial.journal import Journal  # noqa: E402


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


if __name__ == "__main__":
    words = sys.argv[1:]
    if "--kill" in words:
        at = words.index("--kill")
        kill_at(int(words[at + 1]))
        del words[at : at + 2]
    parts = lifecycle.Parts(lambda _name: Writer, lambda _context: NoProbe(), Window)
    lifecycle.Parts.standard = classmethod(lambda _cls: parts)  # type: ignore[method-assign,assignment]
    sys.exit(main.main(words))
