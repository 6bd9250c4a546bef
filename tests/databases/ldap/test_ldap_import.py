"""``ldap-import`` with the real servers, at its smallest; skipped where one isn't installed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ztune.databases.ldap.onhost import ldif, subscribers
from ztune.databases.ldap.onhost.importing import LdapImport as LdapJob
from ztune.databases.ldap.workload import LdapImport
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir

pytestmark = pytest.mark.timeout(900)

SERVERS = ("389-ds", "opendj")
# OpenDJ starts three times as long; what is ours in these is the same for both.
MOSTLY = ("389-ds", pytest.param("opendj", marks=pytest.mark.long))
ROLES = {"389-ds": {"source", "data"}, "opendj": {"source", "data", "temp"}}
# What servers write in another way than it came: escapes, blanks and case of names, base64, folds, classes
# that the schema implies, a password; what they know no schema of; values that repeat.
OWN = r"""version: 1

# the root
dn: o=firm
objectClass: top
objectClass: organization
o: firm

dn: ou=People, o=firm
objectClass: organizationalUnit
ou: people
description:: w5xiZXIg4oKs

dn: cn=Doe\, Jane+employeeNumber=7,ou=people,o=firm
objectClass: inetOrgPerson
sn: Doe
shoeSize: 38
userPassword: secret
mail: JANE@firm.example
description;lang-de: eine sehr lange Zeile, die der Server beim Schreiben umbricht, wenn sie nur lang genu
 g ist

dn: cn=friends,o=firm
objectClass: groupOfNames
cn: friends
member: cn=Doe\, Jane+employeeNumber=7,ou=people,o=firm
"""


def workload(server: str, **values: object) -> LdapImport:
    made = LdapImport({"server": server, "entries": 60, **values})
    try:
        made.job.server.check()
    except MissingError as error:
        pytest.skip(str(error))
    return made


@pytest.fixture
def own(parent: Path) -> Path:
    path = parent / "own.ldif"
    path.write_text(OWN, encoding="utf-8")
    return path


# The same file again goes into an empty database. OpenDJ's single import is that of the places below; what
# does it again is ours, and the same for both.
@pytest.mark.parametrize(
    ("server", "imports"),
    [("389-ds", 1), ("389-ds", 2), pytest.param("opendj", 2, marks=pytest.mark.long)],
)
def test_entries_are_imported_and_proved(server: str, imports: int, parent: Path) -> None:
    with running(workload(server, imports=imports), parent=parent) as made:
        [pid] = made.pids()
        assert psutil.Process(pid).uids().real != 0
        open_ports: list[object] = []
        watcher = threading.Thread(target=_watch, args=(pid, open_ports), daemon=True)
        watcher.start()
        result = made.verify(made.run())
        assert open_ports == []
        assert (result.operations, result.unit) == (60 * imports, "entry") and result.seconds > 0
        if imports == 2:
            # Two were run, and the second is a part of the whole.
            assert 0 < result.details["last_import_s"] < result.seconds
        assert [check.ok for check in result.checks] == [True, True, True]
        source = made.role_paths()["source"] / "entries.ldif"
        pinned = result.details["input"]
        assert pinned["kind"] == "telco" and pinned["entries"] == 60
        assert (pinned["bytes"], pinned["sha256"]) == (source.stat().st_size, ldif.facts(source).sha256)
        assert set(made.role_paths()) == ROLES[server]
        files = [path.name for path in made.role_paths()["data"].rglob("*")]
        assert ("id2entry.db" if server == "389-ds" else "00000000.jdb") in files
        made.stop()
    assert list(parent.iterdir()) == []


def _watch(pid: int, found: list[object]) -> None:
    """Note what listens among the descendants of ``pid``, as long as it lives."""
    while psutil.pid_exists(pid):
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [one for one in child.net_connections() if one.status == psutil.CONN_LISTEN]
        time.sleep(0.05)


@pytest.mark.parametrize("server", MOSTLY)
def test_a_users_file_whatever_its_schema(server: str, own: Path, parent: Path) -> None:
    with running(workload(server, file=str(own), entries=0), parent=parent) as made:
        result = made.verify(made.run())
        assert result.operations == 4 and result.details["input"]["suffix"] == "o=firm"
        assert result.details["input"]["kind"] == "file"
    assert [path.name for path in parent.iterdir()] == ["own.ldif"]


@pytest.mark.parametrize("server", SERVERS)
def test_places_a_layouts_settings_and_a_state_that_is_taken_over(server: str, parent: Path) -> None:
    params = workload(server).resolved()
    settings = {
        "389-ds": {"nsslapd-db-page-size": "32768"},
        "opendj": {"entries-compressed": "true", "db-log-file-max": "2000000"},
    }[server]
    folders = {role: parent / role for role in ROLES[server]}
    for path in folders.values():
        path.mkdir()
    job = LdapJob(params, settings)
    assert set(job.roles()) == set(folders)
    with pytest.raises(InputError, match="no dataset of the layout has the role 'data'"):
        job.prepare(WorkDir.create("ldap", parent=parent), {"source": folders["source"]})
    again = LdapJob(params, settings)
    try:
        job.cleanup()
        job.prepare(WorkDir.create("ldap", parent=parent), folders)
        job.load()
        job.stop()
        again.check()
        again._paths, again.workdir = job._paths, job.workdir
        again.adopt(folders)
        again.start()
        result = again.verify(again.run())
        assert result.details["settings"].items() >= settings.items()
        if server == "389-ds":
            assert again.page_sizes() == {"data": 32768}
            # Berkeley DB has the size of a page at byte 20 of a file.
            head = next(folders["data"].rglob("id2entry.db")).read_bytes()[20:24]
            assert int.from_bytes(head, "little") == 32768
        else:
            assert again.page_sizes() == {}
        again.stop()
        (folders["source"] / "input.json").unlink()
        with pytest.raises(ZtuneError, match="there is no input of ldap-import to take over"):
            again.adopt(folders)
    finally:
        again.cleanup()


@pytest.mark.parametrize("server", MOSTLY)
def test_a_lost_entry_is_found(server: str, parent: Path) -> None:
    with running(workload(server), parent=parent) as made:
        source = made.role_paths()["source"] / "entries.ldif"
        entries = [entry.text for entry in ldif.entries(source.open("rb"))]
        ldif.write(source, entries[:-1])
        result = made.run()
        with pytest.raises(ZtuneError, match="as the server counted them should be 60 but is 59"):
            made.verify(result)
        # Nor would a tool that claims more than is there be believed.
        claimed = replace(result, details={**result.details, "imported_as_it_says": 60})
        with pytest.raises(ZtuneError, match="entries in the database should be 60 but is 59"):
            made.verify(claimed)


def test_a_path_too_long_for_a_socket_is_none_too_long(parent: Path) -> None:
    deep = parent / ("long-" * 20)
    deep.mkdir(mode=0o755)
    with running(workload("389-ds"), parent=deep) as made:
        assert made.verify(made.run()).operations == 60


def test_a_changed_entry_is_found(parent: Path) -> None:
    with running(workload("389-ds"), parent=parent) as made:
        source = made.role_paths()["source"] / "entries.ldif"
        text = source.read_bytes()
        at = text.rindex(b"telcoState: ") + len("telcoState: ")
        source.write_bytes(text[:at] + b"un" + text[at:])
        with pytest.raises(ZtuneError, match="sum over the names and values of all entries should be"):
            made.verify(made.run())


@pytest.mark.parametrize("server", MOSTLY)
def test_an_entry_that_the_server_refuses_is_told_in_its_words(server: str, parent: Path) -> None:
    with running(workload(server), parent=parent) as made:
        source = made.role_paths()["source"] / "entries.ldif"
        text = source.read_bytes()
        lost = text.replace(b"\nou: subscribers\n", b"\nou: subscribers\nshoeSize: 44\n")
        assert lost != text
        source.write_bytes(lost)
        with pytest.raises(ZtuneError) as caught:
            made.verify(made.run())
        assert "\n" not in str(caught.value) and "ou=subscribers" in str(caught.value)


@pytest.mark.parametrize("server", MOSTLY)
def test_a_killed_import_is_one_clear_sentence(server: str, parent: Path) -> None:
    made = workload(server, entries=3000, services=2)
    told = pytest.raises(ZtuneError, match=r"import was ended by SIGKILL; it said last: ")
    with told, running(made, parent=parent) as started:
        [shell] = started.pids()
        killer = threading.Thread(target=_kill_import, args=(shell, started.role_paths()["data"]))
        killer.start()
        try:
            started.run()
        finally:
            killer.join()
    assert list(parent.iterdir()) == []


def _kill_import(shell: int, data: Path) -> None:
    while not any(path.suffix in (".db", ".jdb") for path in data.rglob("*")):
        time.sleep(0.01)
    for child in psutil.Process(shell).children(recursive=True):
        # One of the shell's small programs may end between two looks.
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() in ("ns-slapd", "java"):
                child.kill()


@pytest.mark.parametrize(
    ("server", "name", "value", "said"),
    [
        ("389-ds", "nsslapd-directory", "/x", "the role data says"),
        ("389-ds", "nsslapd-db-logdirectory", "/x", "an import writes no log"),
        ("389-ds", "nsslapd-db-pagesize", "8192", "did you mean 'nsslapd-db-page-size'"),
        ("389-ds", "nsslapd-db-page-size", "12", "is one of 4096, 8192"),
        ("389-ds", "nsslapd-import-cachesize", "lots", "whole number"),
        ("389-ds", "entries-compressed", "true", "389 Directory Server has no setting"),
        ("opendj", "db-directory", "/x", "the role data says"),
        ("opendj", "je-property", "a=b", "takes no notice"),
        ("opendj", "entries-compressed", "yes", "is one of true, false"),
    ],
)
def test_settings_that_are_not_the_layouts(server: str, name: str, value: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        LdapJob(LdapImport({"server": server}).resolved(), {name: value}).check()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input": "file"}, "no file is named"),
        ({"input": "telco", "file": "x"}, "leave one out"),
        ({"page_size": "12K"}, "power of two"),
        ({"entries": 0}, "entries must be 3 at least"),
        ({"server": "slapd"}, "'389-ds' or 'opendj'"),
    ],
)
def test_parameters_that_make_no_sense(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LdapImport(values)


def test_a_file_that_is_missing_empty_or_no_ldif(parent: Path) -> None:
    with pytest.raises(InputError, match="is no file; name an LDIF file with -p file=PATH"):
        LdapImport({"file": str(parent / "none.ldif")}).check()
    for text, said in (("", "there are no entries in it"), ("dn: o=a\nnonsense\n", "line 2 is not LDIF")):
        path = parent / "bad.ldif"
        path.write_text(text)
        with (
            pytest.raises(InputError, match=said),
            running(workload("389-ds", file=str(path)), parent=parent),
        ):
            pass
    assert [path.name for path in parent.iterdir()] == ["bad.ldif"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZTUNE_SOFTWARE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: None)
    with pytest.raises(MissingError, match="ns-slapd was not found; install it with"):
        LdapImport({}).check()
    with pytest.raises(MissingError, match=r"OpenDJ 5.* was not found|Java development kit"):
        LdapImport({"server": "opendj"}).check()


def test_the_schema_names_what_the_entries_have() -> None:
    text = subscribers.schema().decode()
    [_, _, subscriber] = ldif.entries(io.BytesIO(b"\n".join(subscribers.entries(3, 1, 1))))
    ours = {key.decode() for key, _ in subscriber.values if key.startswith((b"telco", b"ms", b"im", b"icc"))}
    assert ours == {name.lower() for name in subscribers._ATTRIBUTES}
    assert all(f"NAME '{name}'" in text for name in subscribers._ATTRIBUTES)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has accounts for databases")
@pytest.mark.parametrize("server", SERVERS)
def test_an_account_can_not_lead_root_away_while_the_configuration_is_written(
    server: str, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent.chmod(0o755)
    precious = parent / "precious"
    precious.write_text("irreplaceable")
    job = workload(server).job
    work = WorkDir.create("ldap", parent=parent)
    job.prepare(work)
    job.load()
    ground = job.ground
    evil = work.sub("evil", owner=(ground.account.uid, ground.account.gid), mode=0o755)
    swap = """
        for path in "$1" "$1/run"; do
            cd "$path" && mv instance "away-$$" && cp -r "away-$$" "$2/instance" || continue
            for file in conf/dse.ldif config/config.ldif; do ln -s "$3" "$2/instance/$file" || :; done
            ln -s "$2/instance" instance
        done 2> /dev/null
        """
    write = Path.write_bytes
    attacks: list[Path] = []

    def swapped(self: Path, data: bytes) -> int:
        # Just before the first file: the account's user has moved the directory away.
        if not attacks:
            attacks.append(self)
            argv = ["/bin/sh", "-c", swap, "sh", str(work.path), str(evil), str(precious)]
            # As who may look into what root has made: the worst case.
            top = work.path / "run" / "instance"
            for path in (top, *top.rglob("*")) if top.exists() else ():
                path.chmod(0o755)
            subprocess.run(argv, user=ground.account.uid, group=ground.account.gid, extra_groups=[], cwd="/")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", swapped)
    try:
        assert job.input is not None
        job.server.configure(ground, job.input, True)
        assert attacks
        assert precious.read_text() == "irreplaceable"
        assert not list(evil.iterdir())
        assert (work.path / "instance").stat().st_uid == ground.account.uid
    finally:
        monkeypatch.undo()
        job.cleanup()
        work.remove()
