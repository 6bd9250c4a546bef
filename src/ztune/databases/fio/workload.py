"""``fio``: what can be asked of it. ``ztune.databases.fio.onhost.load`` does it."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from ztune.databases import workload as base
from ztune.databases.fio.onhost import load as fio
from ztune.databases.workload import Size, param


class FioParameters(base.Parameters):
    """The parameters of ``fio``."""

    job: str = ""
    """Path of your own fio job file. Its jobs then count, and of the parameters below only `compress`, `seed`
    and `roles`."""
    job_text: str = ""
    """The job file itself instead of its path: this is how it is kept with results."""
    roles: str = ""
    """Which job of the file has which role, as `wal=log data=table,index`. Others get theirs from the last
    part of `directory=` in the file (`directory=wal`), or else `data`."""
    rw: Literal["randrw", "randread", "randwrite", "read", "write"] = "randrw"
    """Reads, writes or both, at random or in order."""
    bs: Size = param("8K", ge=512)
    """Size of one read or write."""
    size: Size = param("512M", ge=1 << 20)
    """Size of all files together: several times an ARC of 64 MiB, so that reads reach the disk."""
    numjobs: int = param(4, ge=1, le=1000, unit="threads")
    """Threads that work at the same time, each on a file of its own."""
    rwmixread: int = param(70, ge=1, le=99, unit="%")
    """Share of reads with `rw=randrw`."""
    fsync: int = param(8, ge=0, unit="writes")
    """Each thread calls fsync after this many writes. 0: never."""
    fdatasync: int = param(0, ge=0, unit="writes")
    """The same with fdatasync."""
    rate_iops: int = param(1000, ge=0, unit="I/O/s")
    """Reads and writes per second, of all threads together: with a fixed rate the same work is recorded on a
    fast and on a slow machine. 0: as many as go."""
    seconds: int = param(30, ge=0, le=86_400, unit="s")
    """How long it runs. 0: until each thread has gone over its file once."""
    ioengine: Literal["psync", "libaio", "io_uring"] = "psync"
    """How fio calls the system. `psync` is pread and pwrite, one at a time in each thread. What `io_uring`
    does is seen by the eBPF recorder only."""
    iodepth: int = param(1, ge=1, le=4096)
    """Reads and writes under way in each thread; more than 1 needs `libaio` or `io_uring`."""
    direct: bool = False
    """Ask for direct I/O, past the cache. OpenZFS takes no notice of it before 2.3."""
    distribution: str = "random"
    """Which places are met how often: `random` (all alike), or `zipf:1.1`, `pareto:0.2`, `normal:20`."""
    compress: int = param(50, ge=0, le=99, unit="%")
    """Share of each block that compresses away: 50 gives about 2:1 with lz4, as real tables do. 0 is noise,
    which no data is."""
    seed: int = param(1, ge=1, le=2**30 - 1)
    """Decides the places and the content."""

    @field_validator("distribution")
    @classmethod
    def _is_distribution(cls, value: str) -> str:
        name, _, number = value.partition(":")
        if value != "random" and name not in ("zipf", "pareto", "normal"):
            raise ValueError("write random, zipf:1.1, pareto:0.2 or normal:20")
        if value != "random" and not number.replace(".", "", 1).isdigit():
            raise ValueError(f"write a number after it, as {name}:1.1")
        return value


class Fio(base.JobWorkload):
    """fio on files of its own: a shape given by parameters, or a job file."""

    name = "fio"
    summary = "reads and writes of a given shape, or your own fio job file"
    Parameters = FioParameters
    needs = ("fio",)
    roles_from = "data, or as your job file says"
    job_class = fio.Fio
    read_in = ("job", "fio job file")
    durability = base.KNOWN
