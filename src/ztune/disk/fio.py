"""Runs fio on one disk or file and returns its figures."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host.process import end_group
from ztune.packages import install_command

ENDS = "zoned:50/2:0/96:50/2"
"""fio's words for: half of the requests in the first fiftieth of the disk, half in the last."""
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class FioJob:
    """One closed loop of requests."""

    rw: str
    """read, randread, write or randwrite."""
    bs: int
    qd: int
    seconds: float
    offset: int = 0
    size: int = 0
    """Bytes from ``offset`` on that are used."""
    fsync: bool = False
    """A flush after each write."""
    ends: bool = False
    """Only the two ends of the range, by turns at random."""
    warm_s: float = 0.0
    """Runs as long before counting begins."""


@dataclass(frozen=True)
class Figures:
    """What fio says of a job; milliseconds from the request's submission to its end."""

    iops: float
    mb_s: float
    latency_ms: float
    p5_ms: float
    p95_ms: float
    flush_ms: float | None
    requests: int


def program() -> str:
    """Return fio's path. Raises MissingError."""
    found = shutil.which("fio")
    if found is None:
        raise MissingError(f"fio is not installed: `{install_command('fio')}`")
    return found


def arguments(target: str, job: FioJob) -> list[str]:
    """Return fio's arguments for ``job`` on a path or an ``nbd+unix://`` URI."""
    argv = [
        "--name=ztune",
        "--output-format=json",
        "--thread",
        f"--rw={job.rw}",
        f"--bs={job.bs}",
        f"--iodepth={job.qd}",
        "--time_based",
        f"--runtime={job.seconds * 1e3:.0f}ms",
        f"--offset={job.offset}",
        f"--size={job.size}",
        f"--fsync={int(job.fsync)}",
        "--norandommap",
        "--randrepeat=0",
        "--random_generator=tausworthe64",
        "--percentile_list=5:50:95",
        "--group_reporting",
    ]
    if "write" in job.rw:
        argv += ["--refill_buffers", "--end_fsync=0"]
    else:
        argv += ["--readonly"]
    if job.warm_s:
        argv.append(f"--ramp_time={job.warm_s * 1e3:.0f}ms")
    if job.ends:
        argv.append(f"--random_distribution={ENDS}")
    if target.startswith("nbd"):
        return [*argv, "--ioengine=nbd", f"--uri={target}"]
    # A colon separates names in fio's language.
    return [*argv, "--ioengine=libaio", "--direct=1", f"--filename={target.replace(':', chr(92) + ':')}"]


def run(target: str, job: FioJob) -> Figures:
    """Run ``job``. Raises ZtuneError if fio fails, and ends fio if we are interrupted."""
    argv = [program(), *arguments(target, job)]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=job.seconds + job.warm_s + _PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise ZtuneError(f"fio on {target} does not end: the disk does not answer") from None
    finally:
        end_group(process)
    return parse(target, out.decode(errors="replace"), err.decode(errors="replace"), process.returncode)


def parse(target: str, out: str, err: str, code: int) -> Figures:
    """Return the figures in fio's output. Raises ZtuneError with what fio said otherwise."""
    start = out.find("{")
    job: dict[str, Any] = {}
    with contextlib.suppress(ValueError, LookupError, TypeError):
        job = json.JSONDecoder().raw_decode(out[start:])[0]["jobs"][0] if start >= 0 else {}
    if code or not job or job.get("error"):
        said = " ".join((err + " " + out[: max(start, 0)]).split()) or f"exit code {code}"
        if "direct=1" in said or "does not support O_DIRECT" in said:
            raise ZtuneError(
                f"{target}: its file system has no direct I/O (tmpfs, some overlays); "
                "name a file on a disk, or the device itself"
            )
        raise ZtuneError(f"fio on {target} failed: {said[:300]}")
    side = job["read"] if job["read"]["total_ios"] else job["write"]
    if not side["total_ios"]:
        raise ZtuneError(f"fio on {target} finished no request; take more --seconds")
    at = side["clat_ns"].get("percentile", {})
    sync = job.get("sync", {})
    flush = sync["lat_ns"]["mean"] / 1e6 if sync.get("total_ios") else None
    return Figures(
        float(side["iops"]),
        float(side["bw_bytes"]) / 1e6,
        float(side["lat_ns"]["mean"]) / 1e6,
        float(at.get("5.000000", 0)) / 1e6,
        float(at.get("95.000000", 0)) / 1e6,
        flush,
        int(side["total_ios"]),
    )
