"""A trace is the recording user's alone, and what it holds of a database nobody else's at any moment."""

from __future__ import annotations

import json
import os
import pwd
import stat
import sys
import tempfile
from pathlib import Path

import pytest
import trace_builder as tb
from click.testing import CliRunner, Result

from ztune import paths
from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.places.replay import prepare
from ztune.trace import rights
from ztune.trace.compressibility import sample_files
from ztune.trace.reader import Trace
from ztune.trace.record import recover
from ztune.trace.recorders import strace
from ztune.trace.schema import Op
from ztune.trace.writer import TraceWriter

EVENTS = [{"t": 1, "dur": 1, "pid": 1, "tid": 1, "op": Op.WRITE, "file": 0, "offset": 0, "size": 4096}]


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.rglob("*"))}


def written(path: Path, source: Path, *, share: bool = False) -> Path:
    """Write a trace that keeps content; check while it is made that nobody else can look into it."""
    writer = TraceWriter(path, share)
    assert stat.S_IMODE(writer.partial.stat().st_mode) == 0o700
    writer.add_rows(tb.rows(EVENTS))
    source.write_bytes(os.urandom(4096) * 512)  # less than a chunk of 1 MiB is not kept
    entries, samples = sample_files({str(source): "data"}, keep=writer.samples_dir)
    return writer.finish(
        files=tb.files((str(source), "data", 2 << 20)), duration_ns=tb.S, recorder={"name": "synthetic"},
        compressibility=entries, samples=samples,
    )  # fmt: skip


def test_a_trace_with_content_is_closed(tmp_path: Path) -> None:
    made = written(tmp_path / "x.trace", tmp_path / "db")
    assert modes(made) == {
        ".": 0o700, "samples": 0o700, "samples/data.bin": 0o600, "trace.json": 0o600, "events.parquet": 0o600,
    }  # fmt: skip


def test_a_trace_without_content_is_closed_unless_shared(tmp_path: Path) -> None:
    for share, folder, file in ((False, 0o700, 0o600), (True, 0o755, 0o644)):
        writer = TraceWriter(tmp_path / f"{share}.trace", share)
        writer.add_rows(tb.rows(EVENTS))
        made = writer.finish(files=tb.files(("/db", "data", 4096)), duration_ns=1, recorder={"name": "x"})
        assert modes(made) == {".": folder, "trace.json": file, "events.parquet": file}


def test_what_is_made_of_a_trace_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    trace = tb.build(tmp_path / "x.trace", EVENTS, tb.files(("/db", "data", 4096)))
    for _ in range(2):
        folder = prepare(trace).ops.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o755)  # as an earlier ztune made it


def test_the_traces_of_tune_are_closed_also_those_of_an_earlier_ztune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "traces").mkdir(parents=True, mode=0o755)
    assert stat.S_IMODE(paths.traces().stat().st_mode) == 0o700


def record(out: Path, *flags: str) -> Result:
    program = f"import os; fd = os.open({str(out.with_suffix('.db'))!r}, os.O_RDWR | os.O_CREAT); "
    program += "os.write(fd, b'secret' * 300_000); os.fsync(fd)"
    words = ["record", "--recorder", "strace", "--role", "**/*.db=data", "--out", str(out), *flags]
    return CliRunner().invoke(ztune, [*words, "--", sys.executable, "-c", program], standalone_mode=False)


@pytest.mark.skipif(strace.problem() is not None, reason="strace can't record here")
def test_record_closes_its_trace(tmp_path: Path) -> None:
    done = record(tmp_path / "a.trace", "--samples", "--json")
    assert done.exception is None, done.exception
    assert json.loads(done.stdout)["samples"]
    found = modes(tmp_path / "a.trace")
    assert {m for name, m in found.items() if name.endswith((".bin", ".json", ".parquet"))} == {0o600}
    assert {found["."], found["samples"]} == {0o700}
    assert record(tmp_path / "b.trace", "--share").exception is None
    assert modes(tmp_path / "b.trace") == {".": 0o755, "trace.json": 0o644, "events.parquet": 0o644}
    refused = record(tmp_path / "c.trace", "--share", "--samples")
    assert "holds what is in the database" in str(refused.exception)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("c.")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_somebody_else_gets_one_sentence() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        trace = tb.build(folder / "x.trace", EVENTS, tb.files(("/db", "data", 4096)))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgid(65534)
                os.setuid(65534)
                Trace.open(trace.path)
            except Exception as error:
                code = 0 if "unless it was recorded with --share" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(strace.problem() is not None or os.geteuid() != 0, reason="needs strace and root")
@pytest.mark.parametrize(("flags", "what"), [((), "be read"), (("--share",), "be changed")])
def test_what_sudo_recorded_can_be_made_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], what: str
) -> None:
    out = tmp_path / "a b.trace"
    for user, said in (("dba", True), ("root", False), ("", False)):
        monkeypatch.setenv("SUDO_USER", user)
        done = record(tmp_path / f"{user} {out.name}", *flags)
        assert done.exception is None, done.exception
        chown = f"can't {what} by dba: sudo chown -R dba '{tmp_path}/dba a b.trace'"
        assert (chown in done.output) is said
        assert ("chown" in done.output) is said


@pytest.mark.parametrize("words", [("trace", "show"), ("trace", "roles"), ("screen",)])
def test_commands_say_how_to_get_at_somebody_elses_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    trace = tb.build(tmp_path / "x.trace", EVENTS, tb.files(("/db", "data", 4096)))
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, *mode, **more: Path(path) != trace.path and access(path, *mode, **more)
    )
    done = CliRunner().invoke(ztune, [*words, str(trace.path)], standalone_mode=False)
    assert isinstance(done.exception, InputError), done.exception
    assert "Permission denied; a trace is its recorder's alone" in str(done.exception)
    assert f'`sudo chown -R "$USER" {trace.path}` makes it yours' in str(done.exception)


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this user be one who owns nothing, and may write nowhere."""
    access = os.access
    monkeypatch.setattr(os, "geteuid", lambda: 1 + os.getuid())
    monkeypatch.setattr(
        os, "access", lambda path, mode, **more: not mode & os.W_OK and access(path, mode, **more)
    )


@pytest.mark.usefixtures("read_only")
def test_who_may_only_read_a_trace_is_told_whose_it_is(tmp_path: Path) -> None:
    made = tb.build(tmp_path / "a b.trace", EVENTS, tb.files(("/db", "data", 4096))).path
    before = (made / "trace.json").read_bytes()
    words = ["trace", "roles", str(made), "--role", "/db=index"]
    done = CliRunner().invoke(ztune, words, standalone_mode=False)
    assert str(done.exception) == (
        f"can't write {made}/trace.json: its directory can't be written to; the trace is {made.owner()}'s: "
        f"`sudo chown -R \"$USER\" '{made}'` makes it yours, and `ztune screen --role` takes other roles and "
        "leaves it as it is"
    )
    assert (made / "trace.json").read_bytes() == before


@pytest.mark.usefixtures("read_only")
def test_who_may_not_recover_a_recording_is_told_whose_it_is(tmp_path: Path) -> None:
    partial = tmp_path / "x.trace.partial"
    partial.mkdir(mode=0o700)
    done = CliRunner().invoke(ztune, ["trace", "recover", str(partial)], standalone_mode=False)
    assert str(done.exception) == (
        f"{partial} can't be recovered: it is {partial.owner()}'s, and a recording is its recorder's alone; "
        f'`sudo chown -R "$USER" {partial}` makes it yours'
    )


def test_an_owner_without_a_name_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert rights.owner(tmp_path) == f"user {os.getuid()}"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of another user's, below one that anybody may pass."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_writes_no_trace_where_another_user_could_swap_it(theirs: Path) -> None:
    below = theirs / "below"
    below.mkdir()
    for folder in (theirs, below):
        with pytest.raises(InputError) as refused:
            TraceWriter(folder / "pg.trace")
        way = f", on the way to {below}," if folder == below else ""
        assert str(refused.value) == (
            f"{theirs}{way} belongs to user 65534 ({pwd.getpwuid(65534).pw_name}), who can change what lies "
            "in it, so root writes no trace there; take one that root alone can write "
            "(--out /root/pg.trace), or record as the user whose it is"
        )
        assert not list(folder.glob("pg*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_writes_no_trace_where_others_may_write_or_a_link_of_theirs_leads(
    theirs: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    with pytest.raises(InputError, match="can be written by group 0"):
        TraceWriter(shared / "pg.trace")
    shared.chmod(0o1777)
    TraceWriter(shared / "pg.trace").abort()
    link = tmp_path / "link"
    link.symlink_to(shared)
    TraceWriter(link / "pg.trace").abort()
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(InputError, match="is a symbolic link"):
        TraceWriter(link / "pg.trace")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_sudo_writes_a_trace_in_its_users_own_folder(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.chdir(theirs)
    writer = TraceWriter("pg.trace", share=True)
    writer.add_rows(tb.rows(EVENTS))
    made = writer.finish(files=tb.files(("/db", "data", 4096)), duration_ns=1, recorder={"name": "x"})
    assert modes(made) == {".": 0o755, "trace.json": 0o644, "events.parquet": 0o644}
    monkeypatch.setenv("SUDO_UID", "12")
    with pytest.raises(InputError, match="belongs to user 65534"):
        TraceWriter("other.trace")


def test_sharing_and_closing_follow_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.touch(0o640)
    writer = TraceWriter(tmp_path / "x.trace", share=True)
    (writer.partial / "s").symlink_to(precious)
    writer.add_rows(tb.rows(EVENTS))
    writer.finish(files=tb.files(("/db", "data", 4096)), duration_ns=1, recorder={"name": "x"})
    assert stat.S_IMODE(precious.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_recovers_nothing_that_another_user_wrote(theirs: Path, tmp_path: Path) -> None:
    partial = theirs.rename(tmp_path / "x.trace.partial")
    (partial / "recording.json").write_text("{}")
    with pytest.raises(InputError, match=r"belongs to user 65534 .* recover it as the user whose it is"):
        recover(partial)


def test_a_cut_recording_is_not_both_shared_and_with_content(tmp_path: Path) -> None:
    partial = tmp_path / "x.trace.partial"
    partial.mkdir(mode=0o700)
    (partial / "recording.json").write_text('{"share": true, "keep_samples": true}')
    with pytest.raises(InputError, match=r"recording\.json says both share and keep_samples"):
        recover(partial)
    assert [path.name for path in partial.iterdir()] == ["recording.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_changes_no_trace_that_another_user_could_swap(theirs: Path, tmp_path: Path) -> None:
    # Between reading and writing its manifest may become a link to any file of root's.
    made = tb.build(tmp_path / "x.trace", EVENTS, tb.files(("/db", "data", 4096)))
    trace = made.path.rename(theirs / "x.trace")
    before = (trace / "trace.json").read_text()
    done = CliRunner().invoke(
        ztune, ["trace", "roles", str(trace), "--role", "/db=wal"], standalone_mode=False
    )
    assert isinstance(done.exception, InputError)
    assert "so root writes no trace there; change it as the user whose it is" in str(done.exception)
    assert (trace / "trace.json").read_text() == before
