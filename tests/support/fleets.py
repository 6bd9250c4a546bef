"""Starts real Dask schedulers and workers, each a process of its own, with state directories of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import dask
import psutil
import yaml
from children import environment
from synthetic_traces import STAND_IN
from waiting import until

from ztune.study import Study, generic


class StartedFleet:
    """A scheduler and its workers below ``folder``; with TLS where ``config`` is a directory of settings."""

    def __init__(self, folder: Path, config: Path | None = None) -> None:
        self.folder, self.config = folder, config
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # Without what a user's `python3` may go through first.
        self.engine = folder / "engine"
        text = STAND_IN.read_text().partition("\n")[2]
        self.engine.write_text(f"#!{Path(sys.executable).resolve()} -ISB\n{text}")
        self.engine.chmod(0o755)
        self.scheduler()

    def _start(self, name: str, command: Sequence[str], env: Mapping[str, str], before: str = "") -> None:
        more = {
            "DASK_CONFIG": str(self.config or self.folder),
            "DASK_DISTRIBUTED__WORKER__DAEMON": "true",
            **env,
        }
        line = [sys.executable, *command]
        if before:
            line = ["unshare", "--uts", "--mount", "sh", "-ec", f'{before}; exec "$@"', "sh", *line]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                line, env={**environment(), **more}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def scheduler(self) -> None:
        """Start the scheduler, and learn its address."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        self._start(
            "scheduler",
            ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
             "--no-show", "--scheduler-file", str(file)],
            {},
        )  # fmt: skip

        def address() -> str:
            with contextlib.suppress(OSError, ValueError):
                return str(json.loads(file.read_text())["address"])
            return ""

        self.address = until(address, f"a scheduler: {self.log('scheduler')}")

    def worker(self, name: str, *, port: int = 0, before: str = "", **env: str) -> Path:
        """Start a worker with the engine's stand-in; return its state directory. ``before``: shell commands
        in namespaces of its own, such as to set the host's name. ``env``: as ``STAND_IN="slow=1"``."""
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        self._start(
            name,
            ["-m", "distributed.cli.dask_worker", self.address, "--name", name, "--nthreads", "1",
             "--no-nanny", "--host", "127.0.0.1", "--worker-port", str(port), "--no-dashboard",
             "--memory-limit", "0", "--local-directory", str(home), "--death-timeout", "60"],
            {"ZTUNE_HOME": str(home), "ZTUNE_ENGINE": str(self.engine), **env},
            before,
        )  # fmt: skip
        return home

    def log(self, name: str) -> str:
        """Return what a process said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """Kill a process as the kernel does when memory is short."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def engines(self) -> list[psutil.Process]:
        """Return the engines that run on the workers."""
        return engines_below(self.folder)

    def end(self) -> None:
        """End all of it."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def engines_below(folder: Path) -> list[psutil.Process]:
    """Return the engines whose spec lies below ``folder``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "replay" in words and any(word.startswith(f"{folder}/") for word in words):
                found.append(process)
    return found


@contextlib.contextmanager
def started(folder: Path, config: Path | None = None) -> Iterator[StartedFleet]:
    """Start a scheduler, and end it with its workers."""
    folder.mkdir(exist_ok=True)
    fleet = StartedFleet(folder, config)
    try:
        yield fleet
    finally:
        fleet.end()


def configured(config: Path | None) -> contextlib.AbstractContextManager[object]:
    """Have this process take the certificates in ``config``, as ``DASK_CONFIG`` does where ztune starts."""
    tls = yaml.safe_load(Path(str(config), "dask.yaml").read_text())["distributed"]["comm"]["tls"]
    name = "distributed.comm.tls"
    return dask.config.set({f"{name}.ca-file": tls["ca-file"], f"{name}.client": tls["client"]})


def few_layouts() -> Study:
    """Return a study of four layouts, of which two begin from the same image."""
    study = generic.build({"data", "wal"})
    axes = {"data.recordsize": ("8K", "16K"), "wal.logbias": ("latency", "throughput")}
    return study.model_copy(update={"axes": axes, "cross": (tuple(axes),), "layouts": ()})
