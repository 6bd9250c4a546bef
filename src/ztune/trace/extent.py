"""What of the files and of the time a trace has, where it does not have all of them."""

from __future__ import annotations

import datetime

from ztune.trace.manifest import Manifest
from ztune.units import counted, format_size

_SHOWN = 12  # windows, in a list


def of_files(manifest: Manifest) -> str:
    """Return what of the files was recorded, in a sentence; "" where all was."""
    sample = manifest.sample
    if sample is None:
        return ""
    files = [file for file in manifest.files if file.sampled]
    if not files:
        return f"It was recorded with --sample 1/{sample.of}, and no file was large enough to be sampled."
    size = sum(max(file.size_start, file.size_end) for file in files)
    text = (
        f"Of {counted(len(files), 'file')} ({size / 2**30:.1f} GiB) one region of "
        f"{format_size(sample.region)} in {sample.of} was recorded, and all of the rest."
    )
    every = [file.counted for file in files if file.counted is not None]
    if not every:
        return text
    reads, writes = sum(one.reads for one in every), sum(one.writes for one in every)
    return (
        f"{text} All that was done to them was counted: {reads:,} reads of "
        f"{sum(one.read_bytes for one in every) / 2**20:,.0f} MiB and {writes:,} writes of "
        f"{sum(one.write_bytes for one in every) / 2**20:,.0f} MiB."
    )


def of_time(manifest: Manifest) -> str:
    """Return which windows it has, in a sentence; "" where there is one."""
    windows = manifest.windows
    if len(windows) < 2:
        return ""
    last = windows[-1]
    whole = last.started_unix_ns + last.duration_ns - windows[0].started_unix_ns
    seconds = f"{manifest.duration_ns / 1e9:,.1f} s of {whole / 1e9:,.1f} s"
    return f"It has {len(windows)} windows, {seconds}; what was between them is left out of all times."


def windows(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Return of each window when it began (local time), at which second of the trace, and its seconds."""
    rows = []
    for number, one in enumerate(manifest.windows):
        if len(manifest.windows) > _SHOWN and _SHOWN // 2 <= number < len(manifest.windows) - _SHOWN // 2:
            if number == _SHOWN // 2:
                rows.append(("…", "", ""))
            continue
        began = datetime.datetime.fromtimestamp(one.started_unix_ns / 1e9).astimezone()
        rows.append((f"{began:%Y-%m-%d %H:%M:%S}", f"{one.t / 1e9:,.1f}", f"{one.duration_ns / 1e9:,.1f}"))
    return rows


def sentences(manifest: Manifest) -> list[str]:
    """Return what the trace does not have all of."""
    return [text for text in (of_files(manifest), of_time(manifest)) if text]
