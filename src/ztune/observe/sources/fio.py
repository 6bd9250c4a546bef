"""fio's JSON, as ``--output-format=json`` and ``json+`` write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ztune.errors import InputError
from ztune.observe import histograms
from ztune.observe.model import Buckets, ObservedDisk, ObservedTransfers, Syncs
from ztune.observe.sources import figures
from ztune.observe.sources.collect import add
from ztune.observe.sources.source import Source, readable
from ztune.observe.sources.source import decoder as json_decoder
from ztune.units import parse_size

_BETWEEN = re.compile(r"[,\s]*")
_DEFAULT_BLOCK = 4096  # fio's own, where a job names none


class FioSource:
    """Reads both."""

    name = "fio"
    what = "fio --output-format=json and json+"

    def recognise(self, head: str) -> bool:
        """True if fio's own first key is there, on a line of its own or, from other tools, behind a brace."""
        return bool(re.search(r'^[ \t]*\{?[ \t]*"fio version"\s*:', head, re.MULTILINE))

    def read(self, source: Source) -> None:
        """Add each job's reads, writes and syncs, and the disks' counters."""
        document = _document(source)
        options = _mapping(document.get("global options"))
        jobs = document.get("jobs")
        for job in jobs if isinstance(jobs, list) else []:
            if isinstance(job, dict):
                _job(source, job, {**options, **_mapping(job.get("job options"))})
        disks = document.get("disk_util")
        for disk in disks if isinstance(disks, list) else []:
            if isinstance(disk, dict) and isinstance(disk.get("name"), str):
                _disk(source, disk)


def _document(source: Source) -> dict[str, Any]:
    """Return the last complete document; of a cut one, its complete jobs."""
    text, decoder = source.text(), json_decoder()
    found: list[dict[str, Any]] = []
    at = _start(text, 0)
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
            value = readable(value)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict) and "jobs" in value:
            found.append(value)
        at = _start(text, end)
    if len(found) > 1:
        source.limit(f"of {len(found)} reports of fio (--status-interval) only the last complete was read.")
    if at >= 0:
        source.limit("the JSON of fio is cut or damaged; what was complete before that was read.")
        if not found:
            return {"jobs": _jobs(text, at, decoder)}
    if not found:
        raise InputError(f"{source.path}: no report of fio in it could be read as JSON")
    return found[-1]


def _start(text: str, at: int) -> int:
    found = re.compile(r"^\{", re.MULTILINE).search(text, at)
    return found.start() if found else -1


def _jobs(text: str, at: int, decoder: json.JSONDecoder) -> list[Any]:
    begin = re.compile(r'"jobs"\s*:\s*\[\s*').search(text, at)
    jobs: list[Any] = []
    position = begin.end() if begin else len(text)
    while position < len(text):
        try:
            job, position = decoder.raw_decode(text, position)
            job = readable(job)
        except (ValueError, RecursionError):
            break
        jobs.append(job)
        if gap := _BETWEEN.match(text, position):
            position = gap.end()
    return jobs


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= figures.LARGEST
    return value if known else None


def _job(source: Source, job: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    name = str(job.get("jobname") or "job")
    path = _path(name, options)
    role = source.into.role(path) or source.into.role(name)
    reads = _transfers(source, name, "read", _mapping(job.get("read")), _block(options, 0))
    writes = _transfers(source, name, "write", _mapping(job.get("write")), _block(options, 1))
    sync = _mapping(job.get("sync"))
    latency, exact = _latency(sync, "lat_ns")
    of_sync = _mapping(sync.get("lat_ns"))
    # fio 3.33 and its neighbours leave total_ios at 0 and count in N.
    calls = round(max(_number(sync, "total_ios") or 0, _number(of_sync, "N") or 0))
    syncs = Syncs(calls=calls, latency=latency, latency_total=_total(of_sync))
    if not exact:
        _percentiles_said(source)
    runtime = [_number(_mapping(job.get(side)), "runtime") or 0 for side in ("read", "write")]
    source.into.lasted(max(runtime) / 1000)
    if reads.calls or writes.calls or syncs.calls:
        source.into.enter(path=path, call=None, role=role, reads=reads, writes=writes, syncs=syncs)


def _path(name: str, options: Mapping[str, Any]) -> str:
    """Return the file that a job names; else its folder and the job's own name, as fio names files."""
    if isinstance(options.get("filename"), str) and options["filename"]:
        path = str(options["filename"])
    else:
        path = name
    folder = options.get("directory")
    if isinstance(folder, str) and folder and not path.startswith("/"):
        path = f"{folder.rstrip('/')}/{path}"
    return path


def _block(options: Mapping[str, Any], place: int) -> int | None:
    """Return the one block size of a job's reads (0) or writes (1); None if it has several."""
    if any(name in options for name in ("bssplit", "bsrange", "blocksize_range", "bs_unaligned")):
        return None
    text = options.get("bs") or options.get("blocksize")
    if text is None:
        return _DEFAULT_BLOCK
    parts = str(text).split(",")
    try:
        return parse_size(parts[min(place, len(parts) - 1)])
    except ValueError:
        return None


def _transfers(
    source: Source, name: str, side: str, values: Mapping[str, Any], block: int | None
) -> ObservedTransfers:
    calls = round(_number(values, "total_ios") or 0)
    found = ObservedTransfers(calls=calls)
    if not calls:
        return found
    in_bytes, in_kib = _number(values, "io_bytes"), _number(values, "io_kbytes")
    # fio 2 wrote KiB under the name io_bytes, and had no io_kbytes.
    exact = in_kib is not None
    found.bytes = round(in_bytes) if exact and in_bytes is not None else None
    if block and (found.bytes == block * calls or not exact):
        found.sizes = {histograms.bucket(block): calls}
    else:
        source.limit(
            f"the job {name} {side}s blocks of several sizes, and fio does not say how many of each."
        )
    found.latency, certain = _latency(values, "clat_ns")
    found.latency_total = _total(_mapping(values.get("lat_ns")))
    if not certain:
        _percentiles_said(source)
    if not found.latency and "clat_ns" not in values:
        source.limit("this fio does not write clat_ns (it is older than 3.0); latencies were left out.")
    return found


def _percentiles_said(source: Source) -> None:
    source.limit(
        "histograms of latency were made from fio's percentiles; --output-format=json+ gives exact ones."
    )


def _total(values: Mapping[str, Any]) -> int | None:
    mean, n = _number(values, "mean"), _number(values, "N")
    return round(mean * n) if mean is not None and n else None


def _latency(values: Mapping[str, Any], name: str) -> tuple[Buckets, bool]:
    """Return the histogram by ns, and False if only percentiles were there to make it from."""
    of = _mapping(values.get(name))
    found: Buckets = {}
    for low, n in _mapping(of.get("bins") or values.get("bins")).items():
        at = figures.count(low)
        if at is not None and at >= 0 and type(n) is int and n > 0:
            add(found, {histograms.bucket(at): n})
    if found:
        return found, True
    calls = round(_number(of, "N") or 0)
    percentiles = _mapping(of.get("percentile"))
    shares = sorted(
        (share, value)
        for text in percentiles
        if (share := figures.decimal(text)) is not None
        and (value := _number(percentiles, text)) is not None
        and 0 < share <= 100
    )
    if not calls or not shares:
        return {}, True
    entered = 0
    for share, value in shares:
        upto = round(calls * share / 100)
        if upto > entered:
            add(found, {histograms.bucket(value): upto - entered})
            entered = upto
    if calls > entered:
        most = _number(of, "max")
        add(found, {histograms.bucket(most if most is not None else shares[-1][1]): calls - entered})
    return found, False


def _disk(source: Source, values: Mapping[str, Any]) -> None:
    name = str(values["name"])
    sectors = [_number(values, "read_sectors"), _number(values, "write_sectors")]
    if None in sectors:
        source.limit(f"fio gives no bytes of the disk {name}; they stand as 0.")
    ticks = [_number(values, f"{side}_ticks") for side in ("read", "write")]
    util = _number(values, "util")
    source.into.pieces += 1
    source.into.disks[name] = ObservedDisk(
        name=name,
        reads=round(_number(values, "read_ios") or 0),
        writes=round(_number(values, "write_ios") or 0),
        read_bytes=round((sectors[0] or 0) * 512),
        write_bytes=round((sectors[1] or 0) * 512),
        read_seconds=ticks[0] / 1000 if ticks[0] is not None else None,
        write_seconds=ticks[1] / 1000 if ticks[1] is not None else None,
        busy_share=min(1.0, util / 100) if util is not None else None,
    )
