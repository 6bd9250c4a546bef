"""What other tools wrote here, read back: bpftrace, zpool iostat, fio, blkparse, strace, and ztune itself.

The samples in ``data/`` were made here. Those of strace show ``LOOP`` times a write of 4 KiB to a
write-ahead log and an fdatasync, a pwrite of 16 KiB to a table (every eighth followed by fsync), a pread of
16 KiB; then the log is read to its end.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ztune.errors import InputError
from ztune.observe.model import Group, Observation, ObservedPool
from ztune.observe.sources import READERS, read_files
from ztune.trace.roles import RoleRules

DATA = Path(__file__).parent / "data"
LOOP = 16  # n of the strace logs
MINIMAL = Observation(ztune="1", source="live", subject="x").to_json()
FORMATS = {
    "zpool-iostat": "zpool-iostat",
    "strace-c": "strace-c",
    "strace": "strace",
    "fio": "fio",
    "blkparse": "blkparse",
    "bpftrace": "bpftrace",
}


def read(*names: str, **options: object) -> Observation:
    return read_files([DATA / name for name in names], **options)  # type: ignore[arg-type]


def written(tmp_path: Path, text: str, name: str = "out.txt", **options: object) -> Observation:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return read_files([path], **options)  # type: ignore[arg-type]


def group(observation: Observation, kind: str, name: str, role: str | None = None) -> Group:
    (found,) = [g for g in observation.of_kind(kind) if g.name == name and (role is None or g.role == role)]
    return found


def pool(observation: Observation) -> ObservedPool:
    assert observation.zfs is not None
    (found,) = observation.zfs.pools
    return found


def said(observation: Observation, text: str) -> bool:
    return any(text in sentence for sentence in observation.limits)


@pytest.mark.parametrize(
    "path", [p for p in sorted(DATA.iterdir()) if p.suffix in (".txt", ".json")], ids=lambda p: p.name
)
def test_each_sample_is_recognised_by_one_reader_first(path: Path) -> None:
    head = path.read_text("utf-8")[: 1 << 16]
    first = next(reader for reader in READERS if reader.recognise(head))
    wanted = next(form for start, form in FORMATS.items() if path.name.startswith(start))
    assert first.name == wanted
    assert read_files([path]).source == "files"


# ---- bpftrace ----


@pytest.mark.parametrize("name", ["bpftrace.txt", "bpftrace.json"])
def test_bpftrace(name: str) -> None:
    seen = read(name)
    none = group(seen, "role", "none")
    assert none.writes.sizes == {4096: 40, 16384: 40}
    assert group(seen, "call", "write").writes.sizes == {4096: 40}
    assert group(seen, "call", "pwrite64").writes.sizes == {16384: 40}
    assert none.syncs.calls == 40
    assert said(seen, "@us holds times without saying of what")
    assert said(seen, "@all, @l, @write_sizes would count the same I/O as @bytes")


def test_bpftrace_microseconds_become_ns() -> None:
    # [256, 512) 15, [512, 1K) 4, [1K, 2K) 2, [2K, 4K) 15, [4K, 8K) 3, [16K, 32K) 1, all µs
    assert group(read("bpftrace.txt"), "role", "none").syncs.latency == {
        262144: 15,
        524288: 4,
        1048576: 2,
        2097152: 15,
        4194304: 3,
        16777216: 1,
    }


def test_bpftrace_maps_named_after_roles_are_all_read(tmp_path: Path) -> None:
    seen = written(
        tmp_path,
        "Attaching 2 probes...\n\n\n@data_write: \n[8K, 16K)             7 |@@@@|\n\n"
        "@wal[fsync]: \n[1]                    2 |@|\n[2, 4)                 5 |@@|\n"
        "(..., 0)               1 |@|\n"
        "@wal[write]: \n[0]                    1 |@|\n[4K, 8K)           1,200 |@@|\n",
    )
    assert group(seen, "role", "data").writes.sizes == {8192: 7}
    assert group(seen, "role", "wal").writes.sizes == {0: 1, 1: 2, 2: 5, 4096: 1200}
    assert said(seen, "1 values below zero")


def test_bpftrace_counts_of_calls(tmp_path: Path) -> None:
    seen = written(
        tmp_path, "@calls[tracepoint:syscalls:sys_enter_fsync]: 12\n@calls[kprobe:__x64_sys_read]: 3\n@x: 4\n"
    )
    assert {call.name: call.calls for call in seen.calls} == {"fsync": 12, "read": 3}
    assert said(seen, "left out: @x")


def test_bpftrace_as(tmp_path: Path) -> None:
    text = "@us[mysqld]: \n[1K, 2K)              40 |@@@@|\n"
    assert written(tmp_path, text, meaning="sync-latency-us").of_kind("role")[0].syncs.latency == {
        1048576: 40
    }
    with pytest.raises(InputError, match="holds times without saying"):
        written(tmp_path, text)


# ---- zpool iostat ----


def test_zpool_request_sizes() -> None:
    seen = read("zpool-iostat-r1.txt")
    sizes = pool(seen).request_sizes
    assert pool(seen).name == "t"
    assert sizes["sync_write_ind"] == {1024: 32, 8192: 6, 65536: 16}
    assert sizes["async_write_agg"] == {1024: 9, 2048: 75, 4096: 21, 8192: 3}
    assert sizes["async_read_ind"] == {1024: 1, 131072: 125}
    assert set(sizes) == {
        f"{queue}_{kind}"
        for queue in ("sync_read", "sync_write", "async_read", "async_write", "scrub", "trim", "rebuild")
        for kind in ("ind", "agg")
    }
    assert said(seen, "counts since the pool was imported")


def test_zpool_latency_buckets_are_named_by_their_ends() -> None:
    latencies = pool(read("zpool-iostat-w1.txt")).latencies
    # "2us" is the end, 2047 ns, of the bucket that begins with 1024.
    assert latencies["syncq_write"] == {1024: 7, 2048: 61, 4096: 18, 8192: 50, 16384: 26, 32768: 4, 65536: 2}
    assert max(latencies["total_read"]) == 2**29  # "1s"


def test_every_latency_label_is_its_own_bucket(tmp_path: Path) -> None:
    labels = re.findall(r"^(\d+[nmu]?s) ", (DATA / "zpool-iostat-w1.txt").read_text("utf-8"), re.MULTILINE)
    assert len(labels) == 37
    text = "t total_wait\nlatency read write\n" + "".join(f"{label} 1 0\n" for label in labels)
    latencies = pool(written(tmp_path, text)).latencies
    assert latencies["total_read"] == {1 << power: 1 for power in range(37)}


def test_scripted_output_is_the_same_pool() -> None:
    sizes = pool(read("zpool-iostat-rpH.txt")).request_sizes
    assert sizes["sync_write_ind"] == {1024: 48, 4096: 2, 8192: 1665, 65536: 16}
    assert sizes["scrub_agg"] == {1024: 4, 16384: 6}
    latencies = pool(read("zpool-iostat-wpH.txt")).latencies
    assert latencies["disk_read"] == pool(read("zpool-iostat-w1.txt")).latencies["disk_read"]
    assert latencies["scrub"] == {8192: 1, 16384: 2, 2097152: 8, 4194304: 3}


def test_intervals_leave_out_the_first_report() -> None:
    seen = read("zpool-iostat-rT2.txt")
    assert pool(seen).request_sizes["sync_write_ind"] == {8192: 74}
    assert seen.seconds == 1
    assert said(seen, "the first of 2 reports")
    # 63 a second over the 2 s between the two times
    twice = read("zpool-iostat-rTu2.txt")
    assert pool(twice).request_sizes["sync_write_ind"] == {8192: 126} and twice.seconds == 2
    assert said(read("zpool-iostat-w2.txt"), "I/Os per second")


def test_vdevs_are_devices_and_groups_of_them_are_not() -> None:
    seen = read("zpool-iostat-rv2.txt")
    assert pool(seen).name == "t"
    assert [(g.name, g.pool, g.writes.sizes) for g in seen.of_kind("device")] == [
        ("/tmp/a", "t", {8192: 60}),
        ("/tmp/b", "t", {8192: 60}),
    ]
    both = read("zpool-iostat-rv2.txt", "zpool-iostat-wv1.txt")
    assert group(both, "device", "/tmp/a").reads.latency[1 << 17] == 7
    assert pool(both).request_sizes and pool(both).latencies


def test_titles_of_older_releases_and_indented_text(tmp_path: Path) -> None:
    text = (
        "    tank         total_wait     disk_wait    sync_queue    async_queue\n"
        "    latency      read  write   read  write   read  write   read  write  scrub\n"
        "    ----------  -----  -----  -----  -----  -----  -----  -----  -----  -----\n"
        "    511ns           0      0      0      0      0      0      0      3      0\n"
        "    1us             0      0      0      0     28  1.25K     76     21     18\n"
        "    -------------------------------------------------------------------------\n"
    )
    found = pool(written(tmp_path, text))
    assert found.name == "tank"
    assert found.latencies["asyncq_write"] == {256: 3, 512: 21}
    assert found.latencies["syncq_write"] == {512: 1280} and found.latencies["scrub"] == {512: 18}


def test_rounded_numbers_are_said(tmp_path: Path) -> None:
    text = (DATA / "zpool-iostat-r1.txt").read_text("utf-8").replace("      6 ", "  2.28K ", 1)
    seen = written(tmp_path, text)
    assert pool(seen).request_sizes["sync_read_ind"][512] == 2335
    assert said(seen, "rounds numbers")


def test_several_pools(tmp_path: Path) -> None:
    one = (DATA / "zpool-iostat-r1.txt").read_text("utf-8")
    seen = written(tmp_path, one + one.replace("\nt   ", "\nrpool"))
    assert seen.zfs is not None
    assert [p.name for p in seen.zfs.pools] == ["t", "rpool"]


def test_a_cut_table_keeps_its_rows(tmp_path: Path) -> None:
    text = (DATA / "zpool-iostat-r1.txt").read_text("utf-8")
    seen = written(tmp_path, text[: text.index("\n64K") + 30])
    assert pool(seen).request_sizes["sync_write_ind"] == {1024: 32, 8192: 6}
    assert said(seen, "is cut")


# ---- fio ----


def test_fio_bins() -> None:
    seen = read("fio-json+.json")
    wal, data = group(seen, "role", "wal"), group(seen, "role", "data")
    assert wal.writes.sizes == {4096: 512} and wal.writes.bytes == 2097152
    assert wal.syncs.calls == 511 == sum(wal.syncs.latency.values())
    assert data.reads.sizes == {8192: 146} and data.writes.sizes == {16384: 182}
    assert sum(data.writes.latency.values()) == 182
    bins = json.loads((DATA / "fio-json+.json").read_text("utf-8"))["jobs"][0]["write"]["clat_ns"]["bins"]
    assert wal.writes.latency[8192] == sum(n for low, n in bins.items() if 8192 <= int(low) < 16384)
    assert group(seen, "file", "/d/w/wal").role == "wal"
    assert not said(seen, "percentiles")


def test_fio_on_one_line_as_other_programs_keep_it(tmp_path: Path) -> None:
    kept = json.dumps(json.loads((DATA / "fio-json+.json").read_text()))
    assert written(tmp_path, kept).groups == read("fio-json+.json").groups


def test_fio_percentiles_keep_their_buckets() -> None:
    seen = read("fio-json.json")
    wal = group(seen, "role", "wal").writes
    # The job's own percentiles: p1 17280 and p95 29056 ns, p99 96768, p99.5 259072, p99.9 651264
    assert wal.latency == {16384: 486, 65536: 21, 131072: 2, 524288: 3}
    assert sum(wal.latency.values()) == wal.calls == 512
    assert said(seen, "percentiles")


def test_fio_several_block_sizes_are_not_guessed() -> None:
    seen = read("fio-split.json")
    writes = seen.of_kind("role")[0].writes
    assert (writes.calls, writes.bytes, writes.sizes) == (112, 2097152, {})
    assert said(seen, "several sizes")


def test_fio_disk_and_job_syncs() -> None:
    seen = read("fio-disk.json")
    assert group(seen, "role", "data").syncs.calls == 15
    assert [disk.name for disk in seen.disks] == ["vda"]
    assert said(seen, "no bytes of the disk vda")


def test_fio_status_reports_and_warnings_before_them(tmp_path: Path) -> None:
    one = (DATA / "fio-disk.json").read_text("utf-8")
    text = (
        "fio: this platform does not support {something}\n"
        + one.replace('"total_ios" : 128', '"total_ios" : 5')
        + one
    )
    assert written(tmp_path, text).of_kind("role")[0].writes.calls == 128
    assert said(written(tmp_path, text), "of 2 reports")
    cut = written(tmp_path, text + one[:900])
    assert cut.of_kind("role")[0].writes.calls == 128 and said(cut, "cut or damaged")


def test_a_cut_fio_keeps_its_complete_jobs(tmp_path: Path) -> None:
    text = (DATA / "fio-json.json").read_text("utf-8")
    seen = written(tmp_path, text[: text.rindex('"jobname"') + 400])
    assert [g.name for g in seen.of_kind("role")] == ["wal"] and said(seen, "cut")
    with pytest.raises(InputError, match="nothing of fio could be read"):
        written(tmp_path, text[:500])


# ---- blkparse ----


def test_blkparse_agrees_with_its_own_summary() -> None:
    seen = read("blkparse.txt")
    device = group(seen, "device", "7,0")
    summary = (DATA / "blkparse.txt").read_text("utf-8").split("Total (bt):")[1]
    read_kib, write_kib = re.findall(r"(?:Read|Write) Dispatches:\s+\d+,\s+(\d+)KiB", summary)
    assert device.reads.bytes == int(read_kib) * 1024
    assert device.writes.bytes == int(write_kib) * 1024
    # Its numbers of dispatches count flushes as reads.
    assert device.reads.calls + device.syncs.calls == int(re.findall(r"Read Dispatches:\s+(\d+)", summary)[0])
    assert device.writes.calls == int(re.findall(r"Write Dispatches:\s+(\d+)", summary)[0])
    assert sum(device.reads.latency.values()) == 2
    assert seen.seconds == 0.989535


def test_blkparse_latency_is_from_d_to_c(tmp_path: Path) -> None:
    text = (
        "  8,16   1        1     0.000000000   123  Q   W 100 + 8 [x]\n"
        "  8,16   1        2     0.000010000   123  D   W 100 + 8 [x]\n"
        "  8,16   1        3     0.000500000     0  C   W 100 + 8 [0]\n"
        "  8,16   1        4     0.000600000   123  D   W 108 + 8 [x]\n"
        "  8,16   1        5     0.000700000   123  D   D 500 + 64 [x]\n"
        "  8,16   1        6     0.0007000"
    )
    device = group(written(tmp_path, text), "device", "8,16")
    assert device.writes.latency == {262144: 1} and device.writes.latency_total == 490000
    assert device.writes.calls == 2 and device.writes.sequential == 1 and device.writes.sizes == {4096: 2}
    assert said(written(tmp_path, text), "1 discards")


# ---- strace ----


@pytest.mark.parametrize(
    "name", ["strace-fT.txt", "strace-fTr.txt", "strace-fTytt.txt", "strace-fTyyttt.txt"]
)
def test_strace_logs(name: str) -> None:
    seen = read(name)
    wal, table = group(seen, "file", "/d/wal_0001.wal"), group(seen, "file", "/d/table.ibd")
    assert (wal.role, table.role) == ("wal", "data")
    assert wal.writes.sizes == {4096: LOOP} and wal.writes.bytes == 4096 * LOOP
    assert wal.writes.sequential == LOOP - 1 and wal.writes.aligned == LOOP
    assert wal.syncs.calls == LOOP == sum(wal.syncs.latency.values())
    assert wal.reads.sizes == {0: 1, 32768: 1, 65536: 2} and wal.reads.sequential == 3
    assert table.writes.sizes == {16384: LOOP} and table.writes.sequential == 0
    assert table.reads.calls == LOOP and table.syncs.calls == LOOP // 8
    assert group(seen, "call", "pwrite64", "data").writes == table.writes
    assert (wal.writes.synced, wal.writes.direct) == (0, 0)
    (call,) = [call for call in seen.calls if call.name == "fdatasync"]
    assert call.calls == LOOP and call.seconds == pytest.approx((wal.syncs.latency_total or 0) / 1e9)
    assert not said(seen, "cut")


def test_strace_times() -> None:
    assert read("strace-fTyyttt.txt").begun == "2026-11-21T16:49:51.542195+00:00"
    assert 0.5 < (read("strace-fTytt.txt").seconds or 0) < 2
    assert read("strace-fT.txt").seconds is None


def test_strace_follows_fork_dup_and_unfinished_calls() -> None:
    seen = read("strace-threads.txt")
    log, database = group(seen, "file", "/d/y.log").writes, group(seen, "file", "/d/x.db").writes
    assert (log.calls, log.bytes, log.synced, log.sequential, log.aligned) == (5, 5120, 5, 4, None)
    assert (database.calls, database.bytes, database.synced, database.sequential) == (5, 40960, 0, 4)
    assert not said(seen, "not understood")


def test_strace_log_before_its_table() -> None:
    seen = read("strace-C.txt")
    (call,) = [call for call in seen.calls if call.name == "pwrite64"]
    assert call.calls == 3 and group(seen, "file", "/d/table.ibd").writes.calls == 3


def test_strace_without_times_and_descriptors(tmp_path: Path) -> None:
    text = (
        '[pid  7] pwrite64(5, "ab) = 3, \\""..., 8192, 16384) = 8192\n'
        '[pid  8] write(6</pg/pg_wal/0001>, "x", 1) = 1\n'
        "[pid  8] fsync(6</pg/pg_wal/0001>) = 0\n"
        "[pid  8] fsync(6</pg/pg_wal/0001>) = -1 EIO (Input/output error)\n"
        "[pid  8] copy_file_range(6</a>, NULL, 7</b>, NULL, 10, 0) = 10\n"
        '[pid  8] write(1<pipe:[12]>, "x", 1) = 1\n'
        '[pid  8] write(9<socket:[12]>, "x", 1) = 1\n'
    )
    seen = written(tmp_path, text)
    assert [g.name for g in seen.of_kind("file")] == ["/pg/pg_wal/0001"]
    wal = group(seen, "role", "wal")
    assert wal.syncs.calls == 1 and wal.syncs.latency == {}
    assert (wal.writes.calls, wal.writes.latency, wal.writes.synced) == (1, {}, None)
    (fsync,) = [call for call in seen.calls if call.name == "fsync"]
    assert (fsync.calls, fsync.errors, fsync.seconds) == (2, 1, None)
    assert (
        said(seen, "without -T") and said(seen, "1 calls went through") and said(seen, "copy_file_range (1)")
    )


def test_strace_positions(tmp_path: Path) -> None:
    text = (
        '5 openat(AT_FDCWD, "/x.db", O_RDWR|O_DIRECT) = 3 <0.000010>\n'
        '5 write(3, ""..., 4096) = 4096 <0.000010>\n'
        "5 lseek(3, 8192, SEEK_SET) = 8192 <0.000010>\n"
        '5 write(3, ""..., 4096) = 4096 <0.000010>\n'
        '5 write(3, ""..., 100) = 100 <0.000010>\n'
        '5 write(3, ""..., 4096) = 4096 <0.000010>\n'
    )
    writes = group(written(tmp_path, text), "file", "/x.db").writes
    assert (writes.sequential, writes.aligned, writes.direct) == (2, 2, 4)


def test_strace_odd_values(tmp_path: Path) -> None:
    lines = ["0999", "9" * 40, "0x" + "f" * 40, "-0", "1"]
    text = "".join(f'5 write(3</x.db>, ""..., 9) = {value} <0.000010>\n' for value in lines)
    seen = written(tmp_path, text)
    assert group(seen, "file", "/x.db").writes.sizes == {0: 1, 1: 1, 512: 1}
    assert said(seen, "2 lines")


def test_strace_tables() -> None:
    table = {call.name: call for call in read("strace-c.txt").calls}
    assert table["fdatasync"].calls == 20 and table["fdatasync"].seconds == 0.156294
    assert table["openat"].errors == 7 and table["fsync"].errors == 0
    assert sum(call.calls for call in table.values()) == 528  # the table's own total
    assert sum(call.errors or 0 for call in table.values()) == 52
    columns = {call.name: call for call in read("strace-c-columns.txt").calls}
    assert columns["newfstatat"].calls == 111 and columns["newfstatat"].errors == 21
    assert columns["getrandom"].errors == 0


def test_strace_table_with_decimal_commas(tmp_path: Path) -> None:
    text = (DATA / "strace-c.txt").read_text("utf-8")
    seen = written(tmp_path, re.sub(r"(\d)\.(\d)", r"\1,\2", text))
    assert seen.calls == read("strace-c.txt").calls


def test_a_cut_strace_table(tmp_path: Path) -> None:
    text = (DATA / "strace-c.txt").read_text("utf-8")
    seen = written(tmp_path, text[: text.index("openat") + 3])
    assert "pread64" in {call.name for call in seen.calls} and "ope" not in {call.name for call in seen.calls}
    assert said(seen, "its total is missing")


# ---- ztune's own, and files together ----


def test_an_own_observation_comes_back_whole(tmp_path: Path) -> None:
    seen = read("strace-fTytt.txt", "zpool-iostat-r1.txt")
    live = seen.model_copy(update={"source": "live", "host": "db1"})
    assert written(tmp_path, live.model_dump_json(), "o.json") == live
    assert written(tmp_path, live.model_dump_json(indent=2), "o.json") == live


def test_an_own_observation_beside_another_file(tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    path.write_text(read("strace-fTytt.txt").model_dump_json(), "utf-8")
    seen = read_files([path, DATA / "strace-fT.txt"])
    assert group(seen, "file", "/d/table.ibd").writes.sizes == {16384: 2 * LOOP}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "ztune-observation", "version": 2}', "version 2"),
        ('{"format": "ztune-observation", "version": 1, "colour": 3}', "not a valid observation"),
        (
            json.dumps({**MINIMAL, "seconds": -5}),
            "seconds: Input should be greater than or equal to 0",
        ),
        ('{"format": "ztune-observation", "version": 1,', "cut or not JSON"),
        ('["format", {"format": "ztune-observation"}]', "is not an observation"),
    ],
)
def test_a_bad_observation(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        written(tmp_path, text)


def test_the_same_group_of_several_files_is_added_up() -> None:
    seen = read("fio-json+.json", "strace-fT.txt")
    assert group(seen, "role", "wal").writes.sizes == {4096: 512 + LOOP}
    assert seen.subject == "fio output fio-json+.json, strace output strace-fT.txt"


def test_role_rules_are_the_users() -> None:
    seen = read("strace-fT.txt", rules=RoleRules.parse(["/d/table*=index"]))
    assert group(seen, "file", "/d/table.ibd").role == "index"


def test_what_is_not_known_of_some_files_is_not_known_of_their_role(tmp_path: Path) -> None:
    text = (
        '5 openat(AT_FDCWD, "/a.db", O_RDWR) = 3 <0.000010>\n'
        '5 write(3, ""..., 4096) = 4096 <0.000010>\n'
        '5 write(4</b.db>, ""..., 4096) = 4096 <0.000010>\n'
    )
    seen = written(tmp_path, text)
    assert group(seen, "file", "/a.db").writes.aligned == 1
    assert group(seen, "role", "data").writes.aligned is None
    assert group(seen, "role", "data").writes.sequential == 0


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't read"):
        read_files([tmp_path / "missing"])
    with pytest.raises(InputError, match="can't read"):
        read_files([tmp_path])
    with pytest.raises(InputError, match="should be one of"):
        read("blkparse.txt", format="perf")
    with pytest.raises(InputError, match="of no format"):
        written(tmp_path, "Hello, world\n")
    with pytest.raises(InputError, match="is empty"):
        written(tmp_path, "\n")
    with pytest.raises(InputError, match="at least one"):
        read_files([])
    with pytest.raises(InputError, match="no report of fio"):
        read("blkparse.txt", format="fio")


def test_format_overrides(tmp_path: Path) -> None:
    text = "\n".join(["garbage"] * 300) + '\n5 pwrite64(3</x.db>, ""..., 4096, 0) = 4096 <0.000010>\n'
    with pytest.raises(InputError, match="of no format"):
        written(tmp_path, text)
    seen = written(tmp_path, text, format="strace")
    assert group(seen, "file", "/x.db").writes.calls == 1 and said(seen, "300 lines")
