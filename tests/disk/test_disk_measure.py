"""``ztune disk``: the fit gives a known disk's profile back; what may be measured and written."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner
from disk_started import Start

from ztune.cli.disk import command
from ztune.disk import fio
from ztune.disk.expected import expected, seek_ms
from ztune.disk.fio import Figures, FioJob
from ztune.disk.measure import SHORT, fit, jobs, measure, really
from ztune.disk.under_test import opened
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import devices
from ztune.study import profiles
from ztune.study.profile import FlashProfile, HddProfile

MAIN = "from ztune.cli.main import main; main()"
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


class Perfect:
    """Answers jobs as a disk with this profile does in the mean."""

    def __init__(self, profile: HddProfile | FlashProfile) -> None:
        self.profile = profile

    def __call__(self, job: FioJob) -> Figures:
        p = self.profile
        random_ = job.rw.startswith("rand")
        rw: Literal["read", "write"] = "write" if job.rw.endswith("write") else "read"
        if p.kind == "hdd" and random_:
            dice, turn = random.Random(3), 60e3 / p.rpm

            def place() -> float:
                if job.ends:
                    return dice.random() * 0.02 + (0.98 if dice.random() < 0.5 else 0.0)
                return dice.random() * job.size / p.size

            fixed = p.overhead_us / 1e3 + 4096 / p.read_mb_s / 1e3
            times = sorted(
                fixed + seek_ms(p, abs(place() - place())) + dice.random() * turn for _ in range(20000)
            )
            mean = math.fsum(times) / len(times)
            return Figures(1e3 / mean, 4.096 / mean, mean, times[1000], times[19000], None, len(times))
        want = expected(p, rw, "random" if random_ else "sequential", job.bs, job.qd, fsync=job.fsync)
        return Figures(want.iops, want.mb_s, want.latency_ms, 0, 0, want.flush_ms, 1000)


@pytest.mark.parametrize("name", ["hdd-7200", "ssd-sata", "nvme", "usb-slow"])
def test_a_known_disk_gives_its_profile_back(name: str) -> None:
    known = profiles.find(name)
    found = measure(Perfect(known), known.kind, known.size, "x", "test", write=True).profile
    fields = {"read_mb_s": 0.01, "write_mb_s": 0.01}
    if known.kind == "hdd":
        fields |= {"rpm": 0.001, "seek_avg_ms": 0.03, "seek_full_ms": 0.05, "seek_track_ms": 0.15}
        fields |= {"overhead_us": 0.02, "flush_ms": 0.05}
    else:
        fields |= {"read_us": 0.02, "write_us": 0.02, "flush_us": 0.02, "channels": 0.05}
    if name == "usb-slow":
        # One request at a time: what it adds to each is in the rates and latencies, and stays there.
        fields |= {"read_us": 0.13, "flush_us": 0.03, "read_mb_s": 0.03, "write_mb_s": 0.15}
    for key, within in fields.items():
        assert getattr(found, key) == pytest.approx(getattr(known, key), rel=within), key


def test_what_was_not_measured_is_said_and_the_file_is_a_profile(tmp_path: Path) -> None:
    for name in ("hdd-7200", "ssd-sata"):
        known = profiles.find(name)
        found = measure(Perfect(known), known.kind, known.size, "mine", 'a "b" \\ c')
        text = "\n".join(found.notes)
        assert "write_mb_s not measured" in text and 'set cache = "protected" if' in text
        assert f"of the profile {name}" in text
        path = tmp_path / "mine.toml"
        path.write_text(found.to_toml(), encoding="utf-8")
        assert profiles.load(path) == found.profile
        assert tomllib.loads(found.to_toml())["source"] == 'a "b" \\ c'


def test_a_disk_that_is_no_single_head_is_noted() -> None:
    known = profiles.find("hdd-7200")
    run = Perfect(known)
    figures = {what: run(job) for what, job in jobs("hdd", known.size, 1, True).items()}
    whole = figures["random reads over the whole"]
    figures["random reads over the whole"] = Figures(200, 0.8, whole.latency_ms * 0.5, 1, 9, None, 10)
    figures["sequential reads at the end"] = Figures(1, 80, 1, 1, 1, None, 10)
    short = figures["random reads over a thousandth"]
    figures["random reads over a thousandth"] = Figures(1, 1, short.latency_ms, 1, 21, None, 10)
    text = "\n".join(fit(figures, "hdd", known.size, "x", "test").notes)
    assert "none of the usual speeds" in text and "treat the profile as rough" in text
    assert "differ by place: 175 MB/s at the beginning, 80 at the end" in text


def test_a_virtual_disk_is_not_taken_for_a_rotating_one() -> None:
    flash, hdd = profiles.find("ssd-sata"), profiles.find("hdd-7200")
    kind, why = really(Perfect(flash), "hdd", flash.size)
    assert kind == "flash" and "--kind hdd overrules" in why
    assert really(Perfect(hdd), "hdd", hdd.size) == ("hdd", "")


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("kind", ["hdd", "flash"])
def test_jobs_stay_on_the_disk_and_write_only_when_told(kind: str, write: bool) -> None:
    for size in (1 << 30, (1 << 40) + 512):
        found = jobs("hdd" if kind == "hdd" else "flash", size, 1, write)
        for job in found.values():
            assert job.offset + job.size <= size and job.size > 0 and job.offset % 4096 == 0
            argv = fio.arguments("/dev/x:y", job)
            assert ("--readonly" in argv) == ("write" not in job.rw)
            assert r"--filename=/dev/x\:y" in argv
        assert any("write" in job.rw for job in found.values()) == write
        assert SHORT < 1 / 3


@needs_fio
def test_a_served_disk_is_measured_over_nbd(start: Start, flash: FlashProfile, tmp_path: Path) -> None:
    size = 1 << 30
    disk = start(flash, size, backing=tmp_path / "big.img")
    out = tmp_path / "p.toml"
    words = [disk.uri, "--size", "1G", "--kind", "flash", "--seconds", "0.5", "--out", str(out), "--json"]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert profiles.load(out).size == size
    stats = disk.stats()
    assert stats["writes"] == 0 and stats["flushes"] == 0, "reads only, unless told"
    assert stats["reads"] > 0
    # The rate is this machine's and not judged here; that its own counters agree is.
    said = json.loads(result.stdout)
    assert stats["reads"] == pytest.approx(sum(f["requests"] for f in said["figures"].values()), rel=0.05)


@needs_fio
@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_nothing_is_written_over_nbd(
    start: Start, flash: FlashProfile, tmp_path: Path, yes: tuple[str, ...]
) -> None:
    disk = start(flash, 1 << 30, backing=tmp_path / "theirs.img")
    words = [disk.uri, "--size", "1G", "--kind", "flash", "--seconds", "0.5", "--write", *yes]
    result = CliRunner().invoke(command, words)
    assert "--write would destroy what nbd+unix:///" in str(result.exception)
    assert disk.stats()["writes"] == 0


@needs_fio
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_removes_the_scratch_file(tmp_path: Path, sign: signal.Signals) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    argv = [sys.executable, "-c", MAIN, "disk", str(folder), "--write", "--size", "1G", "--kind", "flash"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[2/"):
                break
        assert list(folder.iterdir()), "there is a scratch file while it runs"
        process.send_signal(sign)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in err
    assert list(folder.iterdir()) == []
    deadline = time.monotonic() + 20
    while running_fio(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running_fio(folder), "fio is not left behind"


def running_fio(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if words.startswith(str(shutil.which("fio"))) and str(folder) in words:
                    found.append(words)
    return found


def refuse(name: str | Path, *, write: bool = False, yes: bool = False, size: int | None = None) -> str:
    said: list[str] = []
    with (
        pytest.raises(ZtuneError) as caught,
        opened(str(name), write=write, yes=yes, size=size, say=said.append),
    ):
        pass
    assert said == []
    return str(caught.value)


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    assert "does not exist" in refuse(tmp_path / "none")
    assert "--write allows a scratch file" in refuse(tmp_path)
    small = tmp_path / "small"
    small.write_bytes(b"x" * 5000)
    assert "too small" in refuse(small)
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(2 << 30)
    assert "has holes" in refuse(sparse)
    assert "--write would destroy what" in refuse(sparse, write=True)
    assert sparse.stat().st_size == 2 << 30
    assert "neither a file" in refuse("/dev/null")
    assert "too little for a scratch file" in refuse(tmp_path, write=True, size=1 << 60)
    assert "too small" in refuse(tmp_path, write=True, size=1 << 20)
    assert "--size is needed" in refuse("nbd+unix:///?socket=/x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small", "sparse"]


def test_words_that_are_wrong(tmp_path: Path) -> None:
    there = tmp_path / "there.toml"
    there.write_text("")
    for words, said in (
        (["--out", str(there)], "exists already"),
        (["--out", str(tmp_path / "no" / "x.toml")], "directory does not exist"),
        (["--size", "many"], "is not a size"),
        (["--name", "9 lives"], "begins with a letter"),
    ):
        with pytest.raises(InputError, match=said):
            CliRunner().invoke(command, [str(tmp_path), *words], catch_exceptions=False)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a loop device")
def test_a_device_with_anything_on_it_is_never_written(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(1 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    before = image.read_bytes()[: 8 << 20]
    done = subprocess.run(
        ["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    try:
        assert "is not empty: it holds" in refuse(device, write=True, yes=True)
        assert "--size is for scratch files" in refuse(device, size=1 << 30)
        with opened(device, write=False, yes=False, size=None, say=str) as target:
            assert target.size == 1 << 30 and target.what == "device"
        assert image.read_bytes()[: 8 << 20] == before
        handle = os.open(device, os.O_RDWR)
        devices.wipe_edges(handle, 1 << 30)
        os.close(handle)
        assert "--yes if that is the disk you mean" in refuse(device, write=True)
        with opened(device, write=True, yes=True, size=None, say=str) as target:
            assert target.path == device
    finally:
        subprocess.run(["losetup", "-d", device], check=False)


def test_what_fio_says_goes_into_one_sentence() -> None:
    with pytest.raises(ZtuneError, match="no direct I/O"):
        fio.parse("/x", "", "fio: looks like your file system does not support direct=1/buffered=0", 1)
    with pytest.raises(ZtuneError, match="failed: exit code 9"):
        fio.parse("/x", "", "", 9)
    with pytest.raises(ZtuneError, match="failed: fio: odd"):
        fio.parse("/x", "fio: odd\n{", "", 0)
