"""Roles after the fact: proposed from what files do, changed without recording again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoked import invoke
from synthetic_traces import Made

from ztune.databases.rules import RoleRule
from ztune.errors import InputError
from ztune.runs import from_trace
from ztune.trace import left_out, propose, reassign
from ztune.trace.manifest import Compressibility, TraceFile, Warning_, WorkloadInfo
from ztune.trace.propose import PROPOSED, as_rules, proposals, rest, unknown_kinds
from ztune.trace.reader import Trace
from ztune.trace.roles import RoleRules
from ztune.trace.schema import Op

K = 1024


@pytest.fixture
def unknown(tmp_path: Path) -> Trace:
    """What an unknown database does: a synced log, pages, runs, scratch, a file of settings, a dump."""
    made, rng = Made(tmp_path / "db"), np.random.default_rng(1)
    log = made.file("j/000017.jnl", b"log " * 40_000)
    pages = made.file("p/main.pages", b"page" * 400_000, size_start=1_600_000)
    runs = [made.file(f"s/run-{i:04}.srt", b"run " * 40_000, created=True) for i in range(3)]
    scratch = made.file("x/scratch.1", created=True, deleted=True)
    small = made.file("settings", b"a=b")
    dump = made.file("out/everything", b"dump" * 40_000, created=True)
    source = made.file("in/everything", b"rows" * 40_000, size_start=160_000)
    for i in range(100):
        made.do(Op.WRITE, log, i * 1600, 1600)
        made.do(Op.FDATASYNC, log)
        made.do(Op.WRITE, pages, int(rng.integers(97)) * 16 * K, 16 * K)
    for file in (*runs, scratch, dump):
        for i in range(10):
            made.do(Op.WRITE, file, i * 16 * K, 16 * K)
        if file in runs:
            made.do(Op.FSYNC, file)
    for i in range(20):
        for file in runs:
            made.do(Op.READ, file, int(rng.integers(39)) * 4 * K, 4 * K)
        made.do(Op.READ, source, i * 8000, 8000)
    made.do(Op.READ, small, 0, 3)
    return made.write(tmp_path / "u.trace")


def test_roles_are_proposed_from_what_the_files_do(unknown: Trace) -> None:
    found = {one.glob.rpartition("/db/")[2]: one for one in proposals(unknown)}
    assert {glob: one.proposed for glob, one in found.items()} == {
        "j/*.jnl": "wal", "p/main.pages": "data", "s/run-*.srt": "data", "x/scratch.*": "temp",
        "settings": None, "out/everything": "backup", "in/everything": "source",
    }  # fmt: skip
    assert found["s/run-*.srt"].files == 3 and "written once" in found["s/run-*.srt"].why
    assert found["j/*.jnl"].why == "written from front to back in pieces of 1K, 100 syncs"
    assert found["settings"].why == "too little to tell"


@pytest.mark.parametrize(
    ("calls", "size", "read", "expected"),
    [
        (3, 1024 * K, True, "written once, from front to back, and read"),
        (3, 1024 * K, False, "20 files, each written once and synced"),
        (1, 4 * K, False, "20 files, each written once and synced"),
        (50, 4 * K, False, "20 files, each written once and synced"),  # small and many: runs, and no log
    ],
)
def test_a_new_file_of_a_few_writes_is_written_from_front_to_back(
    tmp_path: Path, calls: int, size: int, read: bool, expected: str
) -> None:
    """The first write of a file goes on from nothing: with three in order, only two follow one."""
    made = Made(tmp_path)
    for n in range(20):
        file = made.file(f"{n:09}-1.run", created=True)
        for i in range(calls):
            made.do(Op.WRITE, file, i * size, size)
        made.do(Op.FSYNC, file)
        if read:
            made.do(Op.READ, file, 0, 5)
    (one,) = proposals(made.write(tmp_path / "t.trace"))
    assert one.why == expected


def test_single_writes_to_files_that_were_there_have_no_order(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for n in range(20):
        file = made.file(f"{n}.pages", size_start=1024 * K)
        made.do(Op.WRITE, file, 1024 * K + n * 8 * K, 8 * K)
    (one,) = proposals(made.write(tmp_path / "t.trace"))
    assert one.why == "written here and there, in pieces of 8K"


def _proposed(made: Made, path: Path) -> str | None:
    (one,) = proposals(made.write(path))
    return one.proposed


def _laid_out(made: Made, file: int, pages: int, page: int, synced: int = 256) -> None:
    for i in range(pages):
        made.do(Op.WRITE, file, i * page, page)
        if i % synced == 0:
            made.do(Op.FSYNC, file)


def _read_mostly(made: Made, file: int) -> None:
    _laid_out(made, file, 2000, 4 * K)
    for i, place in enumerate(np.random.default_rng(1).integers(2000, size=400).tolist()):
        made.do(Op.WRITE if i % 10 == 0 else Op.READ, file, place * 4 * K, 4 * K)


def _only_read(made: Made, file: int) -> None:
    _laid_out(made, file, 2000, 8 * K)
    for place in np.random.default_rng(2).integers(2000, size=200).tolist():
        made.do(Op.READ, file, place * 8 * K, 8 * K)


def _flushed_in_order(made: Made, file: int) -> None:
    """Checkpoints write changed pages by their place, each once."""
    _laid_out(made, file, 4000, 16 * K)
    rng = np.random.default_rng(3)
    for _ in range(4):
        for place in sorted(set(rng.integers(4000, size=150).tolist())):
            made.do(Op.WRITE, file, place * 16 * K, 16 * K)
        made.do(Op.FSYNC, file)


def _hot_pages(made: Made, file: int) -> None:
    _laid_out(made, file, 4000, 8 * K)
    for place in np.random.default_rng(4).integers(60, size=500).tolist():
        made.do(Op.WRITE, file, place * 8 * K, 8 * K)
        made.do(Op.FDATASYNC, file)


def _written_not_read(made: Made, file: int) -> None:
    """No sync at all, and a twentieth of the writes are to what is there."""
    for i in range(4000):
        made.do(Op.WRITE, file, i * 4 * K, 4 * K)
    for place in np.random.default_rng(5).integers(4000, size=200).tolist():
        made.do(Op.WRITE, file, place * 4 * K, 4 * K)


@pytest.mark.parametrize("use", [_read_mostly, _only_read, _flushed_in_order, _hot_pages, _written_not_read])
def test_a_file_that_is_laid_out_first_and_then_used_here_and_there_is_data(
    tmp_path: Path, use: Callable[[Made, int], None]
) -> None:
    made = Made(tmp_path)
    use(made, made.file("job.0.0"))
    assert _proposed(made, tmp_path / "t.trace") == "data"


def _recycled(made: Made, file: int) -> None:
    """Zeros first, then the log over them; each commit writes some pages, the last one is begun anew."""
    _laid_out(made, file, 2000, 8 * K)
    _appended(made, file, 0, 1000, 8 * K)


def _appended(made: Made, file: int, begin: int, calls: int, size: int) -> None:
    for i in range(calls):
        made.do(Op.WRITE, file, begin + i * size, size)
        made.do(Op.FDATASYNC, file)


def _circular(made: Made, file: int) -> None:
    """A header at two places by turns, and the log goes round and round behind it."""
    for lap in range(6):
        for part in range(10):
            _appended(made, file, 2 * K + part * 100 * K, 50, 2 * K)
            made.do(Op.WRITE, file, 512 if (lap + part) % 2 else 1536, 512)


def _begun_anew(made: Made, file: int) -> None:
    """A log of pages that begins anew after each checkpoint, is read for pages, and by the checkpoint."""
    rng, frame = np.random.default_rng(6), 4096 + 24
    for frames in rng.integers(100, 1000, size=8).tolist():
        made.do(Op.WRITE, file, 0, 32)
        for i in range(frames):
            made.do(Op.WRITE, file, 32 + i * frame, 24)
            made.do(Op.WRITE, file, 32 + i * frame + 24, 4096)
            if i % 4 == 3:
                made.do(Op.FDATASYNC, file)
                place = int(rng.integers(i))
                made.do(Op.READ, file, 32 + place * frame + 24, 4096)
        for place in rng.permutation(frames).tolist():
            made.do(Op.READ, file, 32 + place * frame + 24, 4096)


def _filled_ahead(made: Made, file: int) -> None:
    """Zeros for the next 256K, then the log over them."""
    for chunk in range(40):
        for i in range(4):
            made.do(Op.WRITE, file, (chunk * 4 + i) * 64 * K, 64 * K)
        _appended(made, file, chunk * 256 * K, 128, 2 * K)


def _with_header(made: Made, file: int) -> None:
    for i in range(200):
        _appended(made, file, 4 * K + i * 48 * K, 12, 4 * K)
        made.do(Op.WRITE, file, 0, 64)


def _sent_to_replicas(made: Made, file: int) -> None:
    """Some read the log as it is written, and one reads all of it in the end."""
    for i in range(1000):
        _appended(made, file, i * 4 * K, 1, 4 * K)
        for behind in (1, 5, 200):
            if i >= behind:
                made.do(Op.READ, file, (i - behind) * 4 * K, 4 * K)
    for i in range(0, 1000, 16):
        made.do(Op.READ, file, i * 4 * K, 64 * K)


def _padded(made: Made, file: int) -> None:
    """Written over from its begin; each write begins at the next 4K, and two threads may change places."""
    rng, place = np.random.default_rng(7), 0
    sizes = rng.integers(1, 60_000, size=600).tolist()
    begins = []
    for size in sizes:
        begins.append(place)
        place += -(-size // 4096) * 4096
    order = list(range(600))
    for i in range(0, 598, 25):
        order[i], order[i + 1] = order[i + 1], order[i]
    for _ in range(2):
        for i in order:
            made.do(Op.WRITE, file, begins[i], -(-sizes[i] // 4096) * 4096)
            made.do(Op.FDATASYNC, file)


@pytest.mark.parametrize(
    "use",
    [_recycled, _circular, _begun_anew, _filled_ahead, _with_header, _sent_to_replicas, _padded],
)
def test_a_log_stays_one_however_its_place_is_used_again(
    tmp_path: Path, use: Callable[[Made, int], None]
) -> None:
    made = Made(tmp_path)
    use(made, made.file("node.jnl"))
    assert _proposed(made, tmp_path / "t.trace") == "wal"


def test_a_file_that_was_there_is_not_temporary_where_one_of_its_name_is(tmp_path: Path) -> None:
    made, rng = Made(tmp_path), np.random.default_rng(1)
    before = made.file("state", size_start=1_600_000, deleted=True)
    after = made.file("state", created=True, deleted=True)
    for place in rng.integers(90, size=200).tolist():
        made.do(Op.WRITE, before, place * 16 * K, 16 * K)
    for i in range(10):
        made.do(Op.WRITE, after, i * 16 * K, 16 * K)
    assert _proposed(made, tmp_path / "t.trace") == "data"


def test_what_is_synced_is_not_temporary(tmp_path: Path) -> None:
    """A redo log that is replaced at each checkpoint would be lost at a power cut."""
    made = Made(tmp_path)
    for _ in range(3):
        file = made.file("shop.redo", created=True, deleted=True)
        for i in range(400):
            made.do(Op.WRITE, file, i * 8 * K, 8 * K)
            if i % 40 == 0:
                made.do(Op.FSYNC, file)
    assert _proposed(made, tmp_path / "t.trace") == "wal"


def test_a_journal_with_two_syncs_a_commit_is_a_log_though_it_is_removed(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for _ in range(50):
        file = made.file("shop.undo", created=True, deleted=True)
        made.do(Op.WRITE, file, 0, 4 * K)
        made.do(Op.FSYNC, file)
        made.do(Op.WRITE, file, 4 * K, 512)
        made.do(Op.FSYNC, file)
    assert _proposed(made, tmp_path / "t.trace") == "wal"


def test_many_files_with_one_sync_each_are_sorted_runs_though_nothing_reads_them(tmp_path: Path) -> None:
    """They may be read through mappings, and earlier ones are removed meanwhile."""
    made = Made(tmp_path)
    for i in range(3):
        made.do(Op.UNLINK, made.file(f"{i:06}.run", size_start=1 << 20, deleted=True))
    for n in range(20):
        file = made.file(f"{n + 3:06}.run", created=True, deleted=n % 3 > 0)
        for i in range(100):
            made.do(Op.WRITE, file, i * 4 * K, 4 * K)
        if n < 19:  # of the last one the sync comes after the recording
            made.do(Op.FDATASYNC, file)
    assert _proposed(made, tmp_path / "t.trace") == "data"


def test_files_of_many_folders_that_differ_in_numbers_alone_are_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path / "db7")
    mails = [
        made.file(f"{box}/{sub}/{n}.m", size_start=4 * K, size_end=4 * K)
        for box in range(20)
        for sub in ("new", "cur")
        for n in range(4)
    ]
    for shard in range(propose.ALIKE - 1):  # so few may be apart for a reason
        mails.append(made.file(f"shard{shard}/pages", size_start=64 * K, size_end=64 * K))
    for file in mails:
        for _ in range(16):
            made.do(Op.READ, file, 0, 4 * K)
    trace = made.write(tmp_path / "u.trace")
    found = {one.glob.rpartition("/db7/")[2]: one for one in proposals(trace)}
    shards = {f"shard{shard}/pages" for shard in range(propose.ALIKE - 1)}
    assert set(found) == {"*/new/*.m", "*/cur/*.m", *shards}
    assert found["*/cur/*.m"].files == 80
    assert found["*/cur/*.m"].proposed is not None
    parsed = []
    parse = RoleRule.parse

    def counted(text: str) -> RoleRule:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(RoleRule, "parse", counted)
    assert reassign.not_given(list(found.values()), [], trace.manifest.files)
    assert len(parsed) <= len(found)  # and not for each file
    assert unknown_kinds({f"/m/{n}/a": 50.0 * K for n in range(9)}, 1) == ("/m/*/a", 9 * 50.0 * K)


def test_what_is_mapped_is_no_log(tmp_path: Path) -> None:
    made = Made(tmp_path)
    file = made.file("shop.pages")
    made.do(Op.MMAP, file, 0, 1 << 20)
    for i in range(1000):
        made.do(Op.WRITE, file, i * 128, 128)
        made.do(Op.MSYNC, file)
    assert _proposed(made, tmp_path / "t.trace") == "data"


def test_an_interpreter_s_files_are_no_database_s(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for name in ("app/__pycache__/main.cpython-311.pyc", "lib/python3.11/site-packages/numpy/core.bin"):
        file = made.file(name, size_start=1 << 20)
        for place in (5, 90, 40, 10, 70, 20):
            made.do(Op.READ, file, place * 4 * K, 64 * K)
    assert [one.proposed for one in proposals(made.write(tmp_path / "t.trace"))] == [None, None]


def _half_known(tmp_path: Path, main: int, **more: Any) -> Trace:
    """A database of which a rule knows the log alone; ``main``: writes to what no rule knows, of 8K."""
    made, rng = Made(tmp_path / "db"), np.random.default_rng(1)
    log, pages = (
        made.file("redo/a.wal", b"log " * 400_000, role="wal"),
        made.file("main.v7", b"page" * 400_000),
    )
    text, small = made.file("redo/messages.txt"), made.file("server.pid")
    for i in range(200):
        made.do(Op.WRITE, log, i * 8 * K, 8 * K)
        made.do(Op.FDATASYNC, log)
        made.do(Op.WRITE, text, i * 4 * K, 4 * K)  # not synced: a log of text
        made.do(Op.WRITE, small, 0, 8 * K)
    for place in rng.integers(190, size=main).tolist():
        made.do(Op.WRITE, pages, place * 8 * K, 8 * K)
    return made.write(tmp_path / "h.trace", **more)


@pytest.mark.parametrize(("main", "expected"), [(200, {"main.v*": "data"}), (10, {})])
def test_one_name_that_a_rule_knows_does_not_hide_the_rest(
    tmp_path: Path, main: int, expected: dict[str, str]
) -> None:
    found = rest(_half_known(tmp_path, main))
    assert {one.glob.rpartition("/")[2]: one.proposed for one in found} == expected


def test_syncs_alone_can_show_a_rest(tmp_path: Path) -> None:
    made = Made(tmp_path / "db")
    log, other = made.file("a.wal", role="wal"), made.file("changes")
    for i in range(300):
        made.do(Op.WRITE, log, i * 64 * K, 64 * K)
        made.do(Op.FSYNC, log)
        made.do(Op.WRITE, other, i * 512, 512)
        made.do(Op.FSYNC, other)
    trace = made.write(tmp_path / "t.trace")
    assert [(one.proposed, one.written) for one in rest(trace)] == [("wal", 150 * K)]
    assert "50 % of the recorded syncs" in left_out.sentence(trace)


def test_nothing_is_told_unasked_where_the_roles_are_somebody_s_choice(tmp_path: Path) -> None:
    ours = _half_known(tmp_path, 200, workload=WorkloadInfo(name="command"))
    assert rest(ours) == []
    theirs = _half_known(tmp_path / "2", 200)
    rules = RoleRules.parse(["main.*=-"], builtin=False).rules
    left = reassign.change(theirs, reassign.with_roles(theirs, rules))
    assert rest(left) == [] == rest(left, asked=True)
    assert left.manifest.environment["left_out"] == ["main.*"]


def test_what_a_rule_knows_by_now_is_left_out_no_more(tmp_path: Path) -> None:
    """Of a recording that an earlier ztune made: also what it told from use, but not what the user gave."""
    made = Made(tmp_path / "hs")
    names = {"shop.log": "temp", "shop.data": None, "shop.script": None, "shop.properties": None}
    for name, role in names.items():
        file = made.file(name, b"x" * 100_000, role=role)
        for i in range(10):
            made.do(Op.WRITE, file, i * 8 * K, 8 * K)
            made.do(Op.FSYNC, file)
    folder = made.top
    told = [
        {"code": PROPOSED, "message": f"Roles were told: {folder}/shop.log temp (made and removed again)."}
    ]
    trace = made.write(tmp_path / "t.trace", warnings=[Warning_.model_validate(one) for one in told])
    found = {one.glob.rpartition("/")[2]: one.proposed for one in rest(trace)}
    assert found == {"shop.log": "wal", "shop.data": "data", "shop.script": "data"}
    given = made.write(tmp_path / "g.trace")
    assert {one.glob.rpartition("/")[2] for one in rest(given)} == {"shop.data", "shop.script"}
    (log,) = [one for one in proposals(given) if one.glob.endswith("shop.log")]
    assert log.role == "temp" and log.otherwise == ("hsqldb", "wal")
    assert "shop.data" in left_out.sentence(given)  # also where nobody gives them roles


@pytest.mark.usefixtures("home", "stand_in_engine")
def test_a_screening_of_a_half_known_database_is_of_all_of_it_and_says_so(tmp_path: Path) -> None:
    unseen = Warning_(code="mmap-reads", message="main.v7 was mapped into memory for reading.")
    trace = _half_known(tmp_path, 200, warnings=[unseen])
    words = ["screen", str(trace.path), "--budget", "3", "--json"]
    code, out, err = invoke(*words)
    assert code == 0, err
    assert unseen.message in err
    assert "Roles were told from what the files do" in err and f"{tmp_path}/db/main.v* data" in err
    shown = json.loads(out)
    again = json.loads(invoke(*words)[1])
    assert shown["trace"]["path"] == again["trace"]["path"] and "-roles-" in shown["trace"]["path"]
    roles = {Path(f.path).name: f.role for f in Trace.open(Path(shown["trace"]["path"])).manifest.files}
    assert roles == {"a.wal": "wal", "main.v7": "data", "messages.txt": None, "server.pid": None}
    assert {f.role for f in trace.manifest.files} == {"wal", None}  # it stays as it was
    _, out, err = invoke(*words, "--role", "main.*=-")  # the engine's stand-in takes no log alone
    assert "Roles were told" not in err, err
    made = Trace.open(Path(json.loads(out)["trace"]["path"]))
    assert {f.role for f in made.manifest.files} == {"wal", None}


@pytest.mark.usefixtures("home")
def test_paths_can_be_copied_and_what_has_no_role_is_one_line(tmp_path: Path) -> None:
    made = Made(tmp_path)
    one = made.file("a/x.wal", role="wal")
    for i in range(100):
        made.do(Op.WRITE, one, i * 8 * K, 8 * K)
    for n in range(3):
        made.do(Op.READ, made.file(f"b{'x' * n}/note", size_start=4 * K), 0, 4 * K)
    made.files.append(
        TraceFile(id=len(made.files), path="/elsewhere/far/y.db", role="data", size_start=1 << 20)
    )
    made.do(Op.READ, len(made.files) - 1, 0, 512 * K)
    path = made.write(tmp_path / "t.trace").path
    code, out, err = invoke("trace", "roles", str(path))
    assert code == 0, err
    said = "".join(out.split())
    assert f"{tmp_path}/a/x.wal" in said and "/elsewhere/far/y.db" in said and "note" not in said
    assert "3kindsoffilesmore" in said and "--all" in said
    assert "note" in invoke("trace", "roles", str(path), "--all")[1]


def test_a_rule_that_leaves_a_file_out_is_kept(tmp_path: Path) -> None:
    made = Made(tmp_path / "db")
    file = made.file("server.pid")
    for i in range(40):
        made.do(Op.WRITE, file, i * 4 * K, 4 * K)
    assert proposals(made.write(tmp_path / "t.trace"))[0].proposed is None


def test_files_without_a_role_that_move_much_are_named_where_others_have_one(tmp_path: Path) -> None:
    made = Made(tmp_path / "db")
    log, main, note = made.file("a.wal", role="wal"), made.file("main.v7"), made.file("notes")
    left = made.file("server.pid")
    for i in range(100):
        made.do(Op.WRITE, log, i * 8 * K, 8 * K)
        made.do(Op.FSYNC, log)
        made.do(Op.WRITE, main, i % 7 * 8 * K, 8 * K)
        made.do(Op.WRITE, left, 0, 8 * K)
    made.do(Op.READ, note, 0, 60 * K)
    trace = made.write(tmp_path / "t.trace")
    said = left_out.sentence(trace)
    assert "Left out: 33 % of the recorded bytes." in said and f"{tmp_path}/db/main.v*" in said, said
    assert said in from_trace.built_for(trace).notes
    assert "notes" not in said and "server.pid" not in said
    given = reassign.with_roles(trace, as_rules(proposals(trace)))
    assert left_out.sentence(reassign.change(trace, given)) == ""
    # Where none has a role, there is nothing to lay out, which is said elsewhere.
    lone = Made(tmp_path / "lone")
    lone.do(Op.WRITE, lone.file("main.v7"), 0, 800 * K)
    assert left_out.sentence(lone.write(tmp_path / "l.trace")) == ""


def test_the_proposed_roles_are_taken_and_the_content_is_sampled(unknown: Trace) -> None:
    found, before = proposals(unknown), unknown.sha
    changed = reassign.change(
        unknown, reassign.with_roles(unknown, as_rules(found), reassign.sentence(found))
    )
    assert {f.role for f in changed.manifest.files} == {"wal", "data", "temp", "backup", "source", None}
    assert changed.sha != before
    (warning,) = changed.manifest.warnings
    assert warning.code == "proposed-roles" and "main.pages data (overwritten in place" in warning.message
    measured = {entry.role: entry.ratio for entry in changed.manifest.compressibility if entry.blocks}
    assert set(measured) == {"wal", "data", "backup", "source"}
    assert measured["data"] > 2  # "page" again and again
    # Whoever says a role himself is told of no proposal any more.
    rules = RoleRules.parse(["**/out/*=-"], builtin=False).rules
    again = reassign.change(changed, reassign.with_roles(changed, rules))
    assert not again.manifest.warnings and again.manifest.environment["left_out"] == ["**/out/*"]
    assert "backup" not in {f.role for f in again.manifest.files}


def test_what_was_measured_stands_for_files_that_are_gone(tmp_path: Path) -> None:
    made = Made(tmp_path / "db")
    made.file("a", b"x" * 4096, role="data")
    made.do(Op.WRITE, 0, 0, 4096)
    measured = [Compressibility(role="data", recordsize=8192, algorithm="lz4", ratio=2.5, blocks=9)]
    trace = made.write(tmp_path / "t.trace", compressibility=measured)
    Path(made.files[0].path).unlink()
    rules = RoleRules.parse(["**/a=index"], builtin=False).rules
    (entry,) = reassign.with_roles(trace, rules).compressibility
    assert (entry.role, entry.ratio) == ("index", 2.5)


@pytest.mark.usefixtures("home", "stand_in_engine")
def test_a_role_whose_files_are_gone_has_content_that_nobody_measured(unknown: Trace) -> None:
    rules = ("--role", "**/p/*=data", "--role", "**/j/*=wal")
    said = "How well the files of role data compress could not be measured: they are gone"
    for command in (("screen", str(unknown.path), "--budget", "1"), ("trace", "roles", str(unknown.path))):
        assert "could not be measured" not in invoke(*command, *rules)[2]
    assert invoke("trace", "roles", str(unknown.path), "--role", "**/p/*=-")[0] == 0
    Path(unknown.manifest.files[1].path).unlink()
    for command in (("screen", str(unknown.path), "--budget", "1"), ("trace", "roles", str(unknown.path))):
        code, _, err = invoke(*command, *rules)
        assert code == 0 and said in err and err.count("could not be measured") == 1


def test_a_rule_that_matches_nothing_is_refused(unknown: Trace) -> None:
    rules = RoleRules.parse(["/nowhere/**=data"], builtin=False).rules
    with pytest.raises(InputError, match=r"no file of .* matches '/nowhere/\*\*'"):
        reassign.with_roles(unknown, rules)


@pytest.mark.usefixtures("home")
def test_beside_it_the_trace_stays_as_it_is(unknown: Trace, home: Path) -> None:
    rules = RoleRules.parse(["**/p/*=data", "**/j/*=wal"], builtin=False).rules
    before = unknown.sha
    other = reassign.beside(unknown, reassign.with_roles(unknown, rules))
    assert Trace.open(unknown.path).sha == before
    assert other.path.parent == home / "traces" and other.path.name.startswith("u-roles-")
    assert other.table().num_rows == unknown.table().num_rows
    assert reassign.beside(unknown, reassign.with_roles(unknown, rules)).path == other.path
    assert len(list((home / "traces").iterdir())) == 1


@pytest.mark.usefixtures("home")
def test_trace_roles_shows_and_changes(unknown: Trace) -> None:
    code, out, err = invoke("trace", "roles", str(unknown.path))
    assert code == 0 and "wal?" in out and "--proposed` gives them" in out, err
    code, out, _ = invoke("trace", "roles", str(unknown.path), "--json")
    (line,) = [one for one in json.loads(out) if one["glob"].endswith(".jnl")]
    assert line["rule"].endswith("/db/j/*.jnl=wal") and line["role"] is None
    code, out, err = invoke("trace", "roles", str(unknown.path), "--proposed", "--role", "**/j/*=data")
    assert code == 0 and "?" not in out, err
    roles = {f.path.rpartition("/db/")[2]: f.role for f in Trace.open(unknown.path).manifest.files}
    assert roles["j/000017.jnl"] == "data" and roles["s/run-0000.srt"] == "data"
    assert invoke("trace", "roles", str(unknown.path), "--proposed")[0] == 2  # nothing is left


@pytest.mark.usefixtures("home")
def test_trace_roles_says_where_a_role_is_from(tmp_path: Path) -> None:
    made = Made(tmp_path / "db")
    wal, *others = "pg_wal/000000010000000000000001", "base/5/16384", "mine.dat", "some.conf"
    for file in (made.file(wal, role="wal"), *(made.file(name) for name in others)):
        made.do(Op.WRITE, file, 0, 128 * K)
    path = made.write(tmp_path / "u.trace").path
    given = ("--role", "**/mine.dat=data", "--role", "**/5/*=temp")
    code, out, err = invoke("trace", "roles", str(path), *given)
    assert code == 0, err
    said = {one["glob"].rpartition("/db/")[2]: one for one in _lines(path)}
    known = {name: (one["role"], one["known_as"]) for name, one in said.items()}
    assert known["pg_wal/*"] == ("wal", "postgresql") and known["mine.dat"] == ("data", "")
    assert known["base/5/*"] == ("temp", "")  # postgresql's files there are data
    assert "rule: postgresql" in out and out.count("role given") == 2


@pytest.mark.usefixtures("home")
def test_trace_roles_says_what_was_told_from_what_files_do(unknown: Trace) -> None:
    words = ("trace", "roles", str(unknown.path), "--proposed", "--role", "**/j/*=data")
    code, out, err = invoke(*words)
    assert code == 0, err
    told = {one["glob"].rpartition("/db/")[2]: one["by_use"] for one in _lines(unknown.path) if one["role"]}
    assert told.pop("j/*.jnl") is False and told and all(told.values())
    said = " ".join(out.split())
    assert said.count("role given") == 1 and said.count("role told from this") == len(told)


def _lines(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke("trace", "roles", str(path), "--json")[1])
    return found


@pytest.mark.usefixtures("home", "stand_in_engine")
def test_a_screening_with_other_roles(unknown: Trace) -> None:
    words = ["screen", str(unknown.path), "--budget", "3", "--json"]
    code, _, err = invoke(*words)
    assert code == 2 and f"`ztune trace roles {unknown.path}` proposes some" in err
    code, out, err = invoke(*words, "--role", "**/p/*=data", "--role", "**/j/*=wal")
    assert code == 0, err
    shown = json.loads(out)
    assert "-roles-" in shown["trace"]["path"] and not any(f.role for f in unknown.manifest.files)
    assert invoke("screen", "--resume", "last", "--role", "*=data")[0] == 2


def test_files_that_did_next_to_nothing_are_one_line(tmp_path: Path) -> None:
    """The tables of a server's own catalogue had 1,400 lines of 1,500."""
    made = Made(tmp_path)
    made.file("db/main.ibd", b"x" * 99, "data")
    made.do(Op.WRITE, 0, 0, 1 << 20)
    for i in range(40):
        name = chr(ord("a") + i % 26) * (i // 26 + 1)
        made.do(Op.READ, made.file(f"db/{name}.ibd", b"x" * 99, "data"), 0, 8)
    trace = str(made.write(tmp_path / "t.trace").path)
    code, short, _ = invoke("trace", "roles", trace)
    assert code == 0 and "main.ibd" in short and short.count(".ibd") == 9
    assert "Of data 32 kinds of files more, each of which moved less than 64K." in " ".join(short.split())
    assert invoke("trace", "roles", trace, "--all")[1].count(".ibd") == 41
