"""A small real job: writes files record by record, syncs each, and proves afterwards what is there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.process import Account, Program
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress

_WRITER = """
import os, sys, time
path, count, size, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
for i in range(count):
    os.pwrite(fd, os.urandom(size // 2) + bytes(size - size // 2), i * size)
    os.fsync(fd)
    time.sleep(pause)
print("done", flush=True)
sys.stdin.readline()
"""


class Writer:
    """``data``: a loaded file, read whole; ``wal``: records written and synced one by one."""

    name: ClassVar[str] = "writer"

    def __init__(
        self,
        params: Mapping[str, Any],
        database: Mapping[str, str] | None = None,
        *,
        patience: float = 1.0,
        dilation: float = 1.0,
    ) -> None:
        self.params = {
            "records": 20,
            "size": 8192,
            "load": 1 << 20,
            "pause": 0.0,
            "fail": "",
            "block": "",
            "child": "",
            **params,
        }
        self.patience = patience
        self.places: dict[str, Path] = {}
        self.work: WorkDir | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.digest = ""

    def _block(self, step: str) -> None:
        """Work without end, and fail like a client that is cut when that is interrupted."""
        if self.params["block"] == step:
            try:
                time.sleep(600)
            finally:
                raise ZtuneError("the client did not end in order")

    def check(self) -> str:
        return f"Writer on Python {sys.version_info.major}.{sys.version_info.minor}"

    def roles(self) -> tuple[str, ...]:
        return ("data", "wal")

    def expected_bytes(self) -> dict[str, int]:
        return {"data": int(self.params["load"])} if self.params["fail"] != "full" else {}

    def prepare(self, workdir: WorkDir, places: Mapping[str, Path] | None = None) -> None:
        assert places is not None
        self.work = workdir
        for role in self.roles():
            if list(places[role].iterdir()):
                raise InputError(f"{places[role]} is not empty")
        self.places = dict(places)
        self._block("prepare")

    def load(self, progress: ProgressFn = no_progress) -> None:
        self._block("load")
        left = int(self.params["load"])
        hasher = hashlib.sha256()
        with (self.places["data"] / "table").open("wb") as file:
            while left:
                chunk = os.urandom(min(left, 1 << 18))
                hasher.update(chunk)
                file.write(chunk)
                left -= len(chunk)
                progress("load", 1 - left / int(self.params["load"]))
            file.flush()
            os.fsync(file.fileno())
        (self.places["data"] / "digest").write_text(hasher.hexdigest())
        (self.places["data"] / "link").symlink_to("table")
        if self.params["fail"] == "load":
            raise ZtuneError("the load failed, as it was told to")

    def adopt(self, places: Mapping[str, Path]) -> None:
        if not (places["data"] / "digest").exists():
            raise ZtuneError("no state of this job")

    def start(self, progress: ProgressFn = no_progress) -> None:
        self._block("settle")
        assert self.work is not None
        argv = [sys.executable, "-S", "-c", _WRITER, str(self.places["wal"] / "log")]
        argv += [str(self.params[key]) for key in ("records", "size", "pause")]
        if self.params["child"]:
            # One that nobody ends, in the same session.
            argv = ["/bin/sh", "-c", f'{self.params["child"]} & exec "$@"', "sh", *argv]
        # Ends with us, as every job's programs do.
        self.process = Program.start(
            argv,
            what="writer",
            account=Account("root", 0, 0, switch=False),
            cwd=self.work.path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ).popen

    def pids(self) -> list[int]:
        return [self.process.pid] if self.process is not None else []

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        self._block("measure")
        began = time.monotonic()
        assert self.process is not None and self.process.stdout is not None
        data = (self.places["data"] / "table").read_bytes()
        self.digest = hashlib.sha256(data).hexdigest()
        said = self.process.stdout.readline()
        if said != b"done\n":
            raise ZtuneError("the writer died")
        if self.params["fail"] == "run":
            raise ZtuneError("the job failed, as it was told to")
        return WorkloadResult(
            seconds=time.monotonic() - began,
            operations=int(self.params["records"]),
            unit="record",
            latency_ms={},
        )

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        self._block("collect")
        size = (self.places["wal"] / "log").stat().st_size
        wanted = int(self.params["records"]) * int(self.params["size"])
        digest = (self.places["data"] / "digest").read_text()
        checks = (Check("bytes of log", wanted, size), Check("digest", digest, self.digest))
        return WorkloadResult(
            result.seconds, result.operations, result.unit, result.latency_ms, checks
        ).require_ok("writer")

    def stop(self) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        if self.params["fail"] == "stop":
            process.kill()
            process.wait()
            raise ZtuneError("writer did not stop within 1 s; it was killed")
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30 * self.patience)

    def cleanup(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        if self.work is not None:
            self.work.remove()

    def role_paths(self) -> dict[str, Path]:
        return dict(self.places)

    def page_sizes(self) -> dict[str, int]:
        return {}

    def info(self, result: WorkloadResult | None = None) -> dict[str, Any]:
        return {"name": self.name, "params": self.params}
