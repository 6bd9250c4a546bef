"""``fio``: a shape of I/O given by numbers, or the user's own fio job file, on files that compress as data
does.

fio's jobs run as threads of one process, which a ``Launcher`` starts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost import latency
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import run
from ztune.onhost.jobs import software
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.launcher import LaunchedJob
from ztune.onhost.jobs.role_directories import write
from ztune.onhost.jobs.settings import by_name
from ztune.onhost.words import ROLES
from ztune.units import is_power_of_two, parse_size

SYNCHRONOUS = ("psync", "sync", "vsync", "pvsync", "pvsync2")
"""Engines whose bytes the kernel counts in ``/proc/PID/io``."""
ENGINES = (*SYNCHRONOUS, "libaio", "io_uring", "posixaio", "mmap")

# Options of a job file that ztune sets itself: dropped, or replaced.
_REPLACED = {"directory", "thread", "group_reporting", "allow_file_create", "create_serialize"}
_REFUSED = by_name(
    {
        "it runs another program": "exec_prerun exec_postrun",
        "everything must stand in one file": "include",
        "it replays another trace": "read_iolog merge_blktrace_file",
        "it writes files outside the layout": "write_iolog write_bw_log write_lat_log write_hist_log "
        "write_iops_log verify_state_save",
        "it reaches beyond its own files": "cgroup ioscheduler uid gid opendir",
        "the files must be there when space is measured": "unlink unlink_each_loop",
        "the files are made in the load step, at their full size": "create_only file_append",
        "everything that is done is measured": "ramp_time",
    }
)
# What the load step takes over from a job: which files, how large, and what is in them.
_FILE_OPTIONS = {
    *("filename", "filename_format", "nrfiles", "size", "filesize", "numjobs", "offset", "offset_increment"),
    *("randseed", "buffer_compress_percentage", "buffer_compress_chunk", "buffer_pattern", "zero_buffers"),
    *("dedupe_percentage", "dedupe_mode", "dedupe_working_set_percentage"),
}
_CONTENT = {"buffer_compress_percentage", "buffer_pattern", "zero_buffers", "dedupe_percentage"}
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)


@dataclass(frozen=True)
class Section:
    """One job of a job file, with what ``[global]`` said before it."""

    name: str
    options: dict[str, str]
    """By name, in order; an option without a value has an empty one."""
    role: str = "data"

    def number(self, option: str, default: int) -> int:
        """Return a whole number or size, in fio's notation (``k``, ``m``, ``g``: powers of 1024).

        Raises:
            InputError: the text is something else.
        """
        text = self.options.get(option, "")
        if not text:
            return default
        match = _SIZE.fullmatch(text)
        if match is None:
            raise InputError(
                f"fio job [{self.name}]: {option}={text!r} can't be used; "
                "write a whole number or a size such as 64m"
            )
        return int(match[1]) << (10 * " kmgtp".index(match[2].lower() or " "))

    @property
    def time_based(self) -> bool:
        """Whether it goes on until its time is over, however much it has done."""
        return "time_based" in self.options and self.options["time_based"] != "0"

    @property
    def seconds(self) -> float | None:
        """The most it may run, in s."""
        text = self.options.get("runtime", self.options.get("timeout", ""))
        units = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "ms": 1e-3, "us": 1e-6}
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
        if not text or match is None or match[2] not in units:
            return None
        return float(match[1]) * units[match[2]]

    @property
    def jobs(self) -> int:
        """How many do the same."""
        return self.number("numjobs", 1)

    @property
    def file_bytes(self) -> int:
        """Bytes in all files of all its clones."""
        if "filename" in self.options:
            return self.number("size", 0) or self.number("filesize", 0)
        each = self.number("size", 0) or self.number("filesize", 0) * self.number("nrfiles", 1)
        return each * self.jobs

    @property
    def asked_bytes(self) -> int | None:
        """Bytes that it must read and write in all; ``None`` where time may end it first."""
        if self.time_based or self.seconds is not None or "number_ios" in self.options:
            return None
        each = self.number("io_size", 0) or self.number("size", 0)
        return each * self.jobs * self.number("loops", 1) or None

    @property
    def block_size(self) -> int | None:
        """Its one block size, in bytes, if it is a power of two."""
        text = self.options.get("bs", self.options.get("blocksize", "4k"))
        match = _SIZE.fullmatch(text)
        size = self.number("bs", 4096) if match and "bs" in self.options else 0
        return size if is_power_of_two(size) else None


def parse_jobs(text: str, where: str, roles: Mapping[str, str] | None = None) -> list[Section]:
    """Return the jobs of a fio job file.

    Args:
        text: the file.
        where: how messages call it.
        roles: section → role; others get theirs from the last part of ``directory=``, or else ``data``.

    Raises:
        InputError: it names no job, or asks for something that can't be had here; the sentence names it.
    """
    common: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for count, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        if line.startswith("["):
            name = line[1:].partition("]")[0].strip()
            if name == "global":
                current = common
                continue
            if not re.fullmatch(r"[\w.+ -]+", name) or name in found:
                raise InputError(
                    f"{where}, line {count}: [{name}] can't be used; give each job a plain name of its own"
                )
            current = found[name] = dict(common)
            continue
        key, _, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if current is None:
            raise InputError(f"{where}, line {count}: {key!r} stands before the first [section]")
        if key in _REFUSED:
            raise InputError(f"{where}, line {count}: option {key!r} can't be used: {_REFUSED[key]}")
        if "${" in value:
            raise InputError(
                f"{where}, line {count}: environment variables are not filled in; write the value"
            )
        key = {"blocksize": "bs", "readwrite": "rw"}.get(key, key)
        # The last one counts, as in fio.
        current.pop(key, None)
        current[key] = value
    if not found:
        raise InputError(f"{where}: there is no [job] in it")
    strange = [name for name in roles or {} if name not in found]
    if strange:
        raise InputError(f"roles: {where} has no job {strange[0]!r}; it has {', '.join(found)}")
    sections = []
    for name, options in found.items():
        tail = Path(options.get("directory", "")).name
        role = (roles or {}).get(name) or (tail if tail in ROLES else "data")
        sections.append(_checked(Section(name, options, role), where))
    return sections


def _checked(section: Section, where: str) -> Section:
    options = section.options
    engine = options.get("ioengine", "psync")
    if engine not in ENGINES:
        raise InputError(
            f"{where}, [{section.name}]: ioengine={engine} does no I/O on files that ztune can follow; "
            f"use {', '.join(ENGINES)}"
        )
    for name in ("filename", "filename_format"):
        value = options.get(name, "")
        if "/" in value or value in (".", ".."):
            raise InputError(
                f"{where}, [{section.name}]: {name}={value} must be a plain name; "
                "its directory is the layout's"
            )
    if not section.file_bytes:
        raise InputError(f"{where}, [{section.name}]: name the size of its files, such as size=1g")
    if section.number("offset", 0) or section.number("offset_increment", 0):
        raise InputError(f"{where}, [{section.name}]: offset can't be used; files are laid out whole")
    return section


def parse_roles(text: str) -> dict[str, str]:
    """Return section → role, from ``role=section,section role=section``.

    Raises:
        InputError: it reads otherwise, or names a role that isn't one.
    """
    found: dict[str, str] = {}
    for part in text.split():
        role, equals, names = part.partition("=")
        if not equals or not names:
            raise InputError(f"roles: {part!r} should read role=job, such as wal=log")
        if role not in ROLES:
            raise InputError(f"roles: {role!r} is no role; there are {', '.join(ROLES)}")
        found.update(dict.fromkeys(names.split(","), role))
    return found


def shape(params: Mapping[str, Any]) -> list[Section]:
    """Return the one job that the parameters describe.

    Raises:
        InputError: the parameters contradict each other.
    """
    size, bs, jobs = parse_size(params["size"]), parse_size(params["bs"]), int(params["numjobs"])
    each = size // jobs // bs * bs
    if each == 0:
        raise InputError(
            f"fio: size {params['size']} holds no block of {params['bs']} for each of {jobs} jobs"
        )
    depth, engine, rw = int(params["iodepth"]), str(params["ioengine"]), str(params["rw"])
    if depth > 1 and engine in SYNCHRONOUS:
        raise InputError(
            f"fio: iodepth {depth} does nothing with ioengine={engine}; "
            "use io_uring or libaio, or more numjobs"
        )
    options = {
        "rw": rw,
        "bs": str(bs),
        "size": str(each),
        "numjobs": str(jobs),
        "ioengine": engine,
        "iodepth": str(depth),
        "direct": str(int(params["direct"])),
        "randseed": str(params["seed"]),
        "random_distribution": str(params["distribution"]),
    }
    mix = {"randrw": int(params["rwmixread"]), "read": 100, "randread": 100}.get(rw, 0)
    if rw == "randrw":
        options["rwmixread"] = str(mix)
    for name in ("fsync", "fdatasync"):
        if int(params[name]):
            options[name] = str(params[name])
    if int(params["rate_iops"]):
        # fio counts for each job and each direction.
        rate = int(params["rate_iops"]) / jobs
        reads, writes = round(rate * mix / 100), round(rate * (100 - mix) / 100)
        if (mix and not reads) or (mix < 100 and not writes):
            raise InputError(
                f"fio: rate_iops {params['rate_iops']} is less than one a second for each of {jobs} jobs"
            )
        options["rate_iops"] = f"{reads or ''},{writes or ''}"
    if int(params["seconds"]):
        options |= {"time_based": "1", "runtime": str(params["seconds"])}
    return [Section("data", options)]


def offered_rate(sections: Iterable[Section]) -> float | None:
    """Return the reads and writes per second that the jobs are to do together.

    fio holds ``rate_iops`` and ``rate`` (bytes) for each clone and each direction, ``read,write``; one value
    counts for both (fio(1), I/O rate). 0: no job has a rate. ``None``: only some are held to one, they don't
    run side by side to the same end, or think times set the pace.
    """
    every = list(sections)
    found = [_offered(section) for section in every]
    thinking = any("thinktime" in section.options for section in every)
    if not thinking and not any(
        name in section.options for section in every for name in ("rate", "rate_iops")
    ):
        return 0.0
    together = len(every) == 1 or (
        all(section.time_based for section in every) and len({section.seconds for section in every}) == 1
    )
    apart = {"stonewall", "wait_for", "startdelay", "wait_for_previous"}
    if (
        thinking
        or not together
        or any(apart & set(section.options) for section in every[1:])
        or None in found
    ):
        return None
    return float(sum(rate for rate in found if rate is not None))


def _offered(section: Section) -> float | None:
    """Return the reads and writes per second of all clones of a job; ``None`` where one direction has no
    limit."""
    kind = section.options.get("rw", "read")
    directions = {"read": (0,), "randread": (0,), "write": (1,), "randwrite": (1,)}.get(kind, (0, 1))
    name = "rate_iops" if "rate_iops" in section.options else "rate"
    parts = [part.strip() for part in section.options.get(name, "").split(",")]
    try:
        each = [Section(section.name, {name: part}).number(name, 0) for part in parts]
    except InputError:
        return None  # fio takes more notations than we read
    wanted = [each[0] if len(each) == 1 else each[d] if d < len(each) else 0 for d in directions]
    size = 1 if name == "rate_iops" else section.block_size
    if 0 in wanted or not size:
        return None
    return sum(wanted) * section.jobs / size


_DURATIONS = ("runtime", "timeout", "startdelay", "thinktime", "thinktime_spin", "thinktime_iotime")
_RATES = ("rate", "rate_min", "rate_iops", "rate_iops_min")
_DURATION_UNITS = {"us": 1, "ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6, "d": 86400e6}


def slower(section: Section, dilation: float) -> Section:
    """Return the job with its durations × ``dilation`` and its rates divided by it; unchanged for 1.

    Raises:
        InputError: a duration or a rate that can't be read, or a rate below one a second.
    """
    if dilation == 1:
        return section
    options = dict(section.options)
    for name in set(_DURATIONS) & set(options):
        # Bare numbers are seconds for fio, but for the think times, which are microseconds.
        bare = "us" if name.startswith("thinktime") else "s"
        parts = []
        for part in options[name].split("-"):  # startdelay may be a range
            match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)?", part.strip())
            if match is None:
                raise InputError(f"fio job [{section.name}]: {name}={options[name]!r} can't be slowed down")
            parts.append(f"{round(float(match[1]) * _DURATION_UNITS[match[2] or bare] * dilation)}us")
        options[name] = "-".join(parts)
    for name in set(_RATES) & set(options):
        parts = []
        for part in options[name].split(","):
            value = Section(section.name, {name: part.strip()}).number(name, 0)
            if value and value < dilation:
                raise InputError(
                    f"fio job [{section.name}]: {name}={options[name]} is too low to be slowed down "
                    f"{dilation:g} times: fio knows no rate below one a second"
                )
            parts.append(str(round(value / dilation)) if value else "")
        options[name] = ",".join(parts)
    return replace(section, options=options)


class Fio(LaunchedJob):
    """fio on files of its own."""

    name: ClassVar[str] = "fio"

    def _set_up(self) -> None:
        super()._set_up()
        text = str(self.params["job_text"])
        sections = (
            parse_jobs(text, str(self.params["job"] or "fio job"), parse_roles(str(self.params["roles"])))
            if text
            else shape(self.params)
        )
        self.sections = [slower(section, self.dilation) for section in sections]
        if not text and self.params["roles"]:
            raise InputError("fio: roles are for the jobs of a job file; without one there is only 'data'")
        self._version = ""

    def check_settings(self) -> None:
        """Refuse settings that there are not."""
        if self.database:
            raise InputError(
                f"fio has no database whose settings a layout could choose ({', '.join(self.database)})"
            )

    def check(self) -> str:
        """Return fio's version.

        Raises:
            MissingError: fio isn't there.
            InputError: fio doesn't take the job; the sentence ends with its words.
        """
        if self._version:
            return self._version
        self.check_settings()
        program = self._program()
        version = software.version_of([program, "--version"], r"(\S+)", patience=self.patience)
        try:
            # Without the directories, which are not there yet.
            here = {role: Path() for role in ROLES}
            tried = subprocess.run(
                [program, "--parse-only", "-"],
                input=self._job_file(here),
                capture_output=True,
                text=True,
                cwd="/",
                timeout=60 * self.patience,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise MissingError(f"{program} does not run: {error}") from None
        if tried.returncode:
            said = " | ".join(
                line.strip() for line in (tried.stdout + tried.stderr).splitlines() if line.strip()
            )
            raise InputError(f"fio does not take {self.params['job'] or 'the job'}: {said[-400:]}")
        self._version = version
        return version

    @staticmethod
    def _program() -> Path:
        return software.program("fio", "fio", "fio")

    def roles(self) -> tuple[str, ...]:
        """Return the roles that its jobs have."""
        used = {section.role for section in self.sections}
        return tuple(role for role in ROLES if role in used)

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write every file in full, with content that compresses as asked."""
        step = "lay out the files"
        home = self.home
        path = home / "load.fio"
        write(path, self._load_file(), mode=0o644)
        total = sum(self.expected_bytes().values())

        def watch() -> None:
            progress(step, min(0.99, self._on_disk() / total))

        run(
            [self._program(), "--output=load.out", path],
            what="fio (laying out the files)",
            account=self.account,
            cwd=home,
            # Even a memory stick writes 2 MB/s.
            seconds=(600 + total / 2_000_000) * self.patience,
            watch=watch,
        )
        self._must_be_whole()
        progress(step, 1.0)

    def _on_disk(self) -> int:
        return sum(
            entry.stat().st_size
            for path in set(self._paths.values())
            for entry in os.scandir(path)
            if entry.is_file(follow_symlinks=False)
        )

    def _must_be_whole(self) -> None:
        wanted, found = sum(self.expected_bytes().values()), self._on_disk()
        if found < wanted:
            raise ZtuneError(f"fio: its files should hold {wanted} bytes but hold {found}; load them anew")

    def adopt(self, places: Mapping[str, Path]) -> None:
        """Take over files that were copied into ``places``."""
        super().adopt(places)
        self._must_be_whole()

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the shell that waits for the word to run fio."""
        home = self.home
        write(home / "job.fio", self._job_file(self._paths), mode=0o644)
        (home / "result.json").unlink(missing_ok=True)
        command: list[str | Path] = [
            self._program(),
            "--output-format=json+",
            "--output=result.json",
            "job.fio",
        ]
        self.launch("fio", command, "fio.log")
        progress("start fio", 1.0)

    def expected_bytes(self) -> dict[str, int]:
        """Return the size of each role's files; jobs may share one by its name, which counts once."""
        sizes: dict[str, dict[str, int]] = {}
        for section in self.sections:
            files = sizes.setdefault(section.role, {})
            name = section.options.get("filename", f"[{section.name}]")
            files[name] = max(files.get(name, 0), section.file_bytes)
        return {role: sum(files.values()) for role, files in sizes.items()}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run fio to its end."""
        launcher, home = self.launcher, self.home
        times = [section.seconds for section in self.sections]
        expected = sum(seconds for seconds in times if seconds)
        # A job that ends by size takes as long as the disk needs; a day is a limit all the same.
        limit = (expected if None not in times else 86_400.0) + 600 * self.patience

        def tick(gone: float) -> None:
            # How far a job is that ends by size nobody knows.
            progress("run fio", min(0.99, gone / expected) if expected else 0.0)

        _, moved = launcher.run(limit, tick)
        code = launcher.exit_code()
        output = home / "result.json"
        text = own_directory.read_plain(output) if output.exists() else ""
        if code != 0:
            said = text.partition("{")[0].strip().replace("\n", " | ") or launcher.said()
            raise ZtuneError(f"fio ended with exit code {code}: {said[-400:] or 'it said nothing'}")
        try:
            # Notes may stand before the JSON.
            report = json.loads(text[text.index("{") :])
        except ValueError:
            raise ZtuneError(f"fio's report can't be read: {text[-200:]!r}") from None
        progress("run fio", 1.0)
        kernel = {name: moved.get(name, 0) for name in ("rchar", "wchar", "syscr", "syscw")}
        return self._result(report, kernel)

    def _result(self, report: dict[str, Any], kernel: dict[str, int]) -> WorkloadResult:
        jobs: list[dict[str, Any]] = report["jobs"]
        role_of = {section.name: section.role for section in self.sections}
        seconds = max(job["job_runtime"] for job in jobs) / 1000.0
        roles: dict[str, Any] = {}
        for role in self.roles():
            mine = [job for job in jobs if role_of.get(job["jobname"]) == role]
            roles[role] = {
                direction: {
                    "operations": sum(job[direction]["total_ios"] for job in mine),
                    "bytes": sum(job[direction]["io_bytes"] for job in mine),
                    "latency_ms": self._latency(job[direction]["clat_ns"] for job in mine),
                }
                for direction in ("read", "write")
            }
            syncs = [job["sync"] for job in mine if "sync" in job]
            roles[role]["sync"] = {
                "operations": sum(sync.get("total_ios", 0) for sync in syncs),
                "latency_ms": self._latency(sync["lat_ns"] for sync in syncs if "lat_ns" in sync),
            }
        both = [job[direction] for job in jobs for direction in ("read", "write")]
        # A thread waits for its syncs too, which fio does not count among reads and writes.
        synced = [job["sync"]["lat_ns"] for job in jobs if "lat_ns" in job.get("sync", {})]
        read_bytes = sum(job["read"]["io_bytes"] for job in jobs)
        write_bytes = sum(job["write"]["io_bytes"] for job in jobs)
        return WorkloadResult(
            seconds=seconds,
            operations=sum(one["total_ios"] for one in both),
            unit="I/O",
            latency_ms=merged_latency([*(one["clat_ns"] for one in both), *synced]),
            offered_per_second=offered_rate(self.sections),
            details={
                "read_bytes": read_bytes,
                "write_bytes": write_bytes,
                "bytes_per_second": (read_bytes + write_bytes) / seconds * self.dilation if seconds else 0.0,
                "syncs": sum(role["sync"]["operations"] for role in roles.values()),
                "roles": roles,
                "kernel": kernel,
                "errors": sum(int(job.get("error", 0) != 0) for job in jobs),
                "bytes_by_job": {
                    section.name: sum(
                        job["read"]["io_bytes"] + job["write"]["io_bytes"]
                        for job in jobs
                        if job["jobname"] == section.name
                    )
                    for section in self.sections
                },
                "jobs_reported": len(jobs),
                "fio": report.get("fio version", ""),
            },
        ).undilated(self.dilation)

    def _latency(self, parts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        return latency.undilated(merged_latency(parts), self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks: no job failed, each did all it was asked, and the kernel counted
        what fio says it read and wrote.

        Raises:
            ZtuneError: a check does not hold.
        """
        details = result.details
        checks = [
            Check("jobs that failed", 0, details["errors"]),
            Check(
                "jobs in fio's report",
                sum(section.jobs for section in self.sections),
                details["jobs_reported"],
            ),
            Check("some I/O was done", "yes", "yes" if result.operations else "no"),
        ]
        for section in self.sections:
            asked = section.asked_bytes
            if asked is not None:
                # The last block may go beyond; less is never right.
                done = details["bytes_by_job"][section.name]
                checks.append(
                    Check(f"bytes of [{section.name}]", asked, max(asked, done) if done >= asked else done)
                )
        if all(section.options.get("ioengine", "psync") in SYNCHRONOUS for section in self.sections):
            for verb, mine, theirs in (("read", "read_bytes", "rchar"), ("written", "write_bytes", "wchar")):
                said, seen = details[mine], details["kernel"][theirs]
                # fio's own libraries, job file and report are in the kernel's number.
                near = said <= seen <= said + max(said // 100, 8 << 20)
                checks.append(
                    Check(f"bytes {verb}, as the kernel counted them", said, said if near else seen)
                )
        checked = replace(result, checks=tuple(checks))
        return checked.require_ok(self.name)

    def page_sizes(self) -> dict[str, int]:
        """Return the block size of each role whose jobs have one in common, in bytes."""
        found: dict[str, int] = {}
        for role in self.roles():
            sizes = {section.block_size for section in self.sections if section.role == role}
            only = sizes.pop() if len(sizes) == 1 else None
            if only:
                found[role] = only
        return found

    def _content(self, section: Section) -> dict[str, str]:
        if _CONTENT & set(section.options):
            return {"refill_buffers": "1"}  # The file says itself what its blocks hold.
        return {"buffer_compress_percentage": str(self.params["compress"]), "refill_buffers": "1"}

    def _job_file(self, paths: Mapping[str, Path]) -> str:
        lines = ["; Written by ztune."]
        for section in self.sections:
            kept = {name: value for name, value in section.options.items() if name not in _REPLACED}
            ours = {
                **self._content(section),
                "directory": _escaped(paths[section.role]),
                # One process: its counters hold everything, and it ends whole.
                "thread": "1",
                "fallocate": "none",
                # What `load` did not make must not come about now, unseen.
                "allow_file_create": "0",
            }
            kept.setdefault("ioengine", "psync")
            kept.setdefault("randseed", str(self.params["seed"]))
            lines += _lines(section.name, {**kept, **ours})
        return "\n".join(lines) + "\n"

    def _load_file(self) -> str:
        lines = ["; Written by ztune: lays out the files."]
        for section in self.sections:
            kept = {name: value for name, value in section.options.items() if name in _FILE_OPTIONS}
            if "filename" in kept:
                kept.pop("numjobs", None)  # They share the file.
            kept.setdefault("randseed", str(self.params["seed"]))
            ours = {
                **self._content(section),
                "directory": _escaped(self._paths[section.role]),
                "ioengine": "psync",
                "rw": "write",
                "bs": "1m",
                "bs_unaligned": "1",
                "thread": "1",
                "fallocate": "none",
                "end_fsync": "1",
                "stonewall": "",
            }
            lines += _lines(section.name, {**kept, **ours})
        return "\n".join(lines) + "\n"


def _lines(name: str, options: Mapping[str, str]) -> list[str]:
    return [f"[{name}]", *(f"{key}={value}" if value else key for key, value in options.items()), ""]


def _escaped(path: Path) -> str:
    # fio takes a colon for a list of directories.
    return str(path).replace(":", "\\:")


def merged_latency(parts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return mean, p50, p90, p95, p99, p999 and max in ms from fio's histograms (``json+``) in ns.

    Percentiles of several jobs can't be had from the percentiles of each; histograms add up. A bin's value is
    within 1 % of what it holds.
    """
    bins: dict[float, int] = {}
    total, weight, largest = 0.0, 0, 0
    for part in parts:
        count = int(part.get("N", 0))
        if not count:
            continue
        total += float(part["mean"]) * count
        weight += count
        largest = max(largest, int(part["max"]))
        for value, number in part.get("bins", {}).items():
            bins[int(value)] = bins.get(int(value), 0) + int(number)
    if not weight:
        return {}
    found = latency.of_bins(bins, total / weight, largest)
    return {name: round(value / 1e6, 4) for name, value in found.items()}
