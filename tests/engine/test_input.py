"""Bad input ends with exit code 2 and one sentence; nothing crashes the parsers."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import engine_build as build
import pytest
from engine_build import ENGINE, FSYNC, MIB, PLAIN, WRITE, Ops, overwrites, run, spec


def one_sentence(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert done.stderr.endswith("\n") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def set_at(s: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    s = copy.deepcopy(s)
    at: Any = s
    keys: list[Any] = [int(k) if k.isdigit() else k for k in path.split(".")]
    for k in keys[:-1]:
        at = at[k]
    if value is ...:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    return s


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("version", 2, "version 2"),
        ("version", ..., "spec.version"),
        ("wrong", 1, '"wrong"'),
        ("seed", -1, "spec.seed"),
        ("arc_max", 1000, "spec.arc_max"),
        ("pools", [], "spec.pools"),
        ("pools.0.name", "1x", "pools[0].name"),
        ("pools.0.ashift", 20, "pools[0].ashift"),
        ("pools.0.vdevs.0.class", "fast", "class must be one of data, log, cache, special"),
        ("pools.0.vdevs.0.class", "log", 'no vdev of class "data"'),
        ("pools.0.vdevs.0.kind", "raidz2", "a raidz2 takes 3"),
        ("pools.0.vdevs.0.disks.0.profile", "x", '"x"'),
        ("pools.0.vdevs.0.disks.0.size", 5, "size"),
        ("profiles.hdd.rpm", "fast", "profiles.hdd.rpm"),
        ("profiles.nvme.rpm", 7200, 'profiles.nvme has the unknown key "rpm"'),
        ("profiles.nvme.write_mb_s", 0, "profiles.nvme.write_mb_s"),
        ("datasets.0.name", "tank", "POOL/NAME"),
        ("datasets.0.name", "other/data", "no such pool"),
        ("datasets.0.properties.recordsize", "100K", "recordsize"),
        ("datasets.0.properties.recordsize", "32M", "recordsize"),
        ("datasets.0.properties.dnodesize", "on", '"dnodesize"'),
        ("datasets.0.properties.compression", "best", "zstd"),
        ("datasets.0.properties.copies", "4", "copies"),
        ("datasets.0.properties.special_small_blocks", "3K", "special_small_blocks"),
        ("files.0.dataset", "tank/x", "files[0].dataset"),
        ("files.0.content", "x", "files[0].content"),
        ("files.0.size", -5, "files[0].size"),
        ("content.data", "/nonexistent/pool", "/nonexistent/pool"),
        ("tunables.zfs_nonsense", 1, "zfs_nonsense"),
        ("tunables.zfs_txg_timeout", 0, "zfs_txg_timeout"),
        ("backing", "tape", "spec.backing"),
        ("backing", "file", "backing_dir"),
        ("backing_dir", 7, "spec.backing_dir"),
        ("memory_limit", 0, "spec.memory_limit"),
        ("file_limit", "1G", "spec.file_limit"),
        ("closed", "yes", "spec.closed"),
        ("logs", 1, "spec.logs must be a list of at most 8 lists"),
        ("logs", [[0], 0], "logs[1] must be a list of files"),
        ("logs", [[7]], "logs[0][0] is none of the files"),
        ("logs", [[0], [0]], "file 0 is in two logs"),
        ("first", 1, "spec.first is of the operations, of which there are none"),
        ("log_operations", "all", "log_operations must be a list of a number for each log"),
        ("log_operations", [1], "log_operations must be a list of a number for each log"),
        ("processor", 4, "processor must be an object"),
        ("processor", {"cores": 0, "rates": []}, "processor.cores"),
        ("processor", {"cores": 1, "calls": {"read_us": 1}, "rates": []}, "processor.calls"),
        (
            "processor",
            {"cores": 4, "rates": [{"operation": "compress"}]},
            "processor.rates[0]",
        ),
    ],
)
def test_bad_spec(tmp_path: Path, noise: Path, path: str, value: Any, says: str) -> None:
    s = set_at(spec(noise, size=MIB), path, value)
    assert says in one_sentence(run(tmp_path, s, Ops()))


@pytest.mark.parametrize(
    "certain",
    [[[0]], [[0, 0]], [[-1, 5]], [[0, 8192], [4096, 8192]], [["0", 1]], [5], [[0, 1 << 47]], [[1 << 47, 1]]],
)
def test_what_is_certain_is_in_order(tmp_path: Path, noise: Path, certain: list[object]) -> None:
    s = spec(noise, size=MIB, sample=4)
    s["files"][0] |= {"sampled": True, "whole": 4 * MIB, "certain": certain}
    assert "files[0].certain[" in one_sentence(run(tmp_path, s, ops_with()))


@pytest.mark.parametrize("of", [0, 5, "2", 2.5])
def test_no_file_is_sampled_more_than_all(tmp_path: Path, noise: Path, of: object) -> None:
    s = spec(noise, size=MIB, sample=4)
    s["files"][0] |= {"sampled": True, "whole": 4 * MIB, "of": of}
    assert "files[0].of" in one_sentence(run(tmp_path, s, ops_with()))


def ops_with(**change: int) -> bytes:
    names = ("t", "dur", "offset", "size", "file", "file2", "thread", "op", "via", "flags", "blank")
    fields = dict(zip(names, (0, 0, 0, 8192, 0, -1, 0, 2, 0, 0, 0), strict=True))
    fields.update(change)
    return build.HEADER.pack(b"ZTOPS\0\0\0", 3, 64, 1, 1, 1) + build.RECORD.pack(*fields.values(), 0, 0, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "too short"),
        (b"x" * 32, "does not begin with ZTOPS"),
        (build.HEADER.pack(b"ZTOPS\0\0\0", 2, 64, 0, 0, 0), "version 2"),
        (build.HEADER.pack(b"ZTOPS\0\0\0", 3, 48, 0, 0, 0), "48 bytes"),
        (build.HEADER.pack(b"ZTOPS\0\0\0", 3, 64, 7, 1, 1), "was cut"),
        (build.HEADER.pack(b"ZTOPS\0\0\0", 3, 64, 1 << 63, 1, 1), "was cut"),
        (ops_with()[:-1], "was cut"),
        (ops_with(op=0), "unknown code 0"),
        (ops_with(op=99), "unknown code 99"),
        (ops_with(via=9), "unknown way"),
        (ops_with(flags=1 << 20), "unknown flags"),
        (ops_with(t=-1), "impossible time"),
        (ops_with(offset=-1), "impossible range"),
        (ops_with(offset=1 << 62), "impossible offset"),
        (ops_with(size=1 << 62), "impossible range"),
        (ops_with(file=5), "file 5"),
        (ops_with(file=-1), "needs a file"),
        (ops_with(thread=3), "thread 3"),
        (ops_with(op=build.WARM, t=1), "not at the beginning"),
        (ops_with(blank=8193), "8193 bytes of zeros"),
        (ops_with(op=build.READ, blank=1), "1 bytes of zeros"),
    ],
)
def test_bad_ops(tmp_path: Path, noise: Path, data: bytes, says: str) -> None:
    assert says in one_sentence(run(tmp_path, spec(noise, size=MIB), data))


def test_usage(tmp_path: Path) -> None:
    done = subprocess.run([str(ENGINE), "replay", "--spec", "x"], capture_output=True, text=True)
    assert "--ops" in one_sentence(done)
    done = subprocess.run([str(ENGINE), "replay", "--bogus"], capture_output=True, text=True)
    assert "--bogus" in one_sentence(done)
    done = subprocess.run([str(ENGINE), "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "Example" in done.stdout


def test_selfcheck_and_version() -> None:
    done = subprocess.run([str(ENGINE), "selfcheck"], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["ok"] is True
    done = subprocess.run([str(ENGINE), "version"], capture_output=True, text=True)
    assert set(json.loads(done.stdout)) == {"version", "openzfs"}


TICKING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
long syscall(long number, ...)
{
	long a[6], done;
	va_list given;

	va_start(given, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(given, long);
	va_end(given);
	done = ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number == SYS_clock_gettime && a[0] == CLOCK_THREAD_CPUTIME_ID)
		((struct timespec *)a[1])->tv_nsec -= ((struct timespec *)a[1])->tv_nsec % 10000000;
	return done;
}
"""


def test_a_kernel_that_counts_processor_time_in_ticks_is_named(tmp_path: Path) -> None:
    """As one in user mode does: the library's headers were blamed, and the engine was to be rebuilt."""
    (tmp_path / "ticking.c").write_text(TICKING)
    library = tmp_path / "ticking.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "ticking.c", "-ldl"], check=True)
    done = subprocess.run(
        [str(ENGINE), "selfcheck"],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library)},
    )
    assert done.returncode == 4 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("This kernel counts a thread's processor time in clock ticks, ")


def test_fuzzed_ops_never_crash_the_parser(tmp_path: Path) -> None:
    """Under the address and undefined-behaviour sanitizers; they would exit with another code."""
    r = random.Random(11)
    good = bytearray(overwrites(20, 8192, MIB).bytes())
    path = tmp_path / "ops.bin"
    codes = set()
    for _ in range(120):
        data = bytearray(good)
        for _ in range(r.randrange(1, 6)):
            data[r.randrange(len(data))] = r.randrange(256)
        if r.random() < 0.3:
            data = data[: r.randrange(len(data))]
        path.write_bytes(data)
        done = subprocess.run([str(PLAIN), "ops", str(path)], capture_output=True, text=True)
        assert done.returncode in (0, 2), done.stderr
        assert done.stderr.count("\n") == (1 if done.returncode else 0)
        codes.add(done.returncode)
    assert codes == {0, 2}


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63 - 1,
    1e308,
    "",
    "x",
    "\u0000",
    "é" * 300,
    [],
    [[]],
    {},
    {"a": 1},
    "../..",
    "tank/",
]


def mutate(j: Any, r: random.Random) -> Any:
    """The same tree with one place changed."""
    j = copy.deepcopy(j)
    at = j
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return j
        k = r.choice(keys)
        if isinstance(at[k], dict | list) and at[k] and r.random() < 0.8:
            at = at[k]
            continue
        what = r.random()
        if what < 0.7:
            at[k] = copy.deepcopy(r.choice(JUNK))
        elif what < 0.85:
            del at[k]
        elif isinstance(at, dict):
            at["junk"] = r.choice(JUNK)
        else:
            at.append(copy.deepcopy(at[k]))
        return j


def test_fuzzed_spec_never_crashes_the_parser(tmp_path: Path, noise: Path) -> None:
    r = random.Random(12)
    good = spec(noise, size=[MIB, 5], tunables={"zfs_txg_timeout": 5})
    path = tmp_path / "spec.json"
    codes = set()
    for i in range(200):
        text = json.dumps(mutate(good, r))
        if i % 5 == 0:
            text = text[: r.randrange(len(text))]
        path.write_text(text)
        done = subprocess.run([str(PLAIN), "spec", str(path)], capture_output=True, text=True)
        assert done.returncode in (0, 2), done.stderr
        assert done.stderr.count("\n") == (1 if done.returncode else 0)
        codes.add(done.returncode)
    assert codes == {0, 2}


def test_fuzzed_but_valid_operations_run(tmp_path: Path, noise: Path) -> None:
    """Whatever passes the parser is replayed without a failed check inside OpenZFS."""
    r = random.Random(13)
    s = spec(noise, size=[200_000, 0, 4096], properties={"recordsize": "16K"}, verify=True)
    ops = Ops(step=700_000)
    for _ in range(1500):
        op = r.randrange(1, 15)
        file = -1 if op == 14 else r.randrange(4)  # file 3 is not in the layout
        ops.add(
            op,
            file,
            offset=int(2 ** r.uniform(0, 21)),
            size=int(2 ** r.uniform(0, 18)),
            file2=r.randrange(-1, 4),
            thread=r.randrange(4),
            flags=r.randrange(128),
            via=r.randrange(3),
            dur=r.choice([0, 1000, 10_000_000]),
        )
    done = run(tmp_path, s, ops)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert any("left out" in w for w in out["warnings"])


def test_full_pool(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=200 * MIB, disk=128 * MIB)
    done = run(tmp_path, s, Ops())
    assert "full" in one_sentence(done, 1)
    # and while measuring
    s = spec(noise, size=[MIB], disk=128 * MIB, properties={"recordsize": "128K"})
    ops = Ops()
    for i in range(200):
        ops.add(WRITE, offset=i * MIB, size=MIB)
    assert "full" in one_sentence(run(tmp_path, s, ops), 1)


def test_constant_in_the_library_is_refused_or_named(tmp_path: Path, noise: Path) -> None:
    s = spec(
        noise, size=MIB, tunables={"zfs_vdev_async_write_min_active": 7, "zfs_vdev_sync_read_max_active": 4}
    )
    done = run(tmp_path, s, Ops())
    assert done.returncode == 0, done.stderr
    text = json.loads(done.stdout)["warnings"]
    assert text == [] or "zfs_vdev_async_write_min_active" in text[0]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signals(tmp_path: Path, noise: Path, sig: signal.Signals) -> None:
    s = spec(
        noise, size=512 * MIB, properties={"recordsize": "4K"}, backing="file", backing_dir=str(tmp_path)
    )
    (tmp_path / "spec.json").write_text(json.dumps(s))
    (tmp_path / "ops.bin").write_bytes(Ops().bytes())
    cmd = [
        str(ENGINE),
        "replay",
        "--spec",
        str(tmp_path / "spec.json"),
        "--ops",
        str(tmp_path / "ops.bin"),
        "--progress",
    ]
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stderr is not None
    assert json.loads(p.stderr.readline())["phase"] == "load"
    time.sleep(0.3)
    p.send_signal(sig)
    out, _ = p.communicate(timeout=20)
    assert p.returncode == 130 and out == ""
    assert not list(tmp_path.glob("ztune-disk-*"))


def test_progress_lines(tmp_path: Path, noise: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(spec(noise, size=MIB)))
    ops = Ops()
    ops.add(FSYNC)
    (tmp_path / "ops.bin").write_bytes(ops.bytes())
    done = subprocess.run(
        [
            str(ENGINE),
            "replay",
            "--spec",
            str(tmp_path / "spec.json"),
            "--ops",
            str(tmp_path / "ops.bin"),
            "--progress",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    lines = [json.loads(x) for x in done.stderr.splitlines()]
    assert {x["phase"] for x in lines} == {"load", "measure"}
    assert all(0 <= x["done"] <= 1 for x in lines)
