"""A second user who would have root delete and kill: forged state in a directory that everybody may write.

Each attack runs in a mount namespace of its own, with a ``/var/tmp`` and a ``/var/lib`` of its own: nothing
outside can be hurt, and what this machine keeps there is not looked at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from children import environment

OTHER = 65534
"""The second user: nobody."""


def _lacking() -> str | None:
    if os.geteuid() != 0:
        return "only root can be attacked, and become another user"
    for program in ("unshare", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} (util-linux) is not here"
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        return "this machine lets nobody make a mount namespace"
    return None


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(_lacking() is not None, reason=str(_lacking())),
]

# Runs in the namespace, as root. The forger is the second user; its victim's file and process are root's.
PRELUDE = """
import json, os, subprocess, sys, time
from pathlib import Path

OLD, NEW = Path("/var/tmp/ztune"), Path("/var/lib/ztune")
for place, options in (("/var/tmp", "mode=1777"), ("/var/lib", "mode=755")):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "private", place], check=True)
os.environ["ZTUNE_HOME"] = "/var/lib/home"

secret = Path("/var/lib/secret/deep")
secret.mkdir(parents=True)
secret.parent.chmod(0o700)
(secret / "precious").write_text("irreplaceable")
victim = subprocess.Popen(["sleep", "600"], cwd="/")
ticks = int(Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[19])
boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def forged(state, run="aaaaaa", trial="0001", **things):
    from ztune.onhost.trial.door import token
    about = dict(format="ztune-journal", version=1, run=run, trial=trial, boot=boot)
    lines = [dict(n=1, t=1, do="open", token=token(run, trial, state), **about)]
    things = things or {
        "files": dict(dir=str(secret), names=["precious"]),
        "processes": dict(pids=[[victim.pid, ticks]]),
    }
    for kind, facts in things.items():
        lines.append(dict(n=2, t=1, do="make", id=kind, kind=kind, boot=boot, facts=facts))
        lines.append(dict(n=3, t=1, do="made", id=kind, facts={}))
    return "".join(json.dumps(line) + chr(10) for line in lines)


def as_other(script, *words):
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sh", "-euc", script, "sh"]
    subprocess.run([*argv, *words], check=True, cwd="/")


PLANT = 'mkdir -p "$1/$2/$3"; : > "$1/$2/lock"; printf %s "$4" > "$1/$2/$3/journal.jsonl"'


def plant(state, run="aaaaaa", trial="0001", **things):
    as_other(PLANT, str(state), run, trial, forged(state, run, trial, **things))


def write(folder, **things):
    # What a trial of root's, of an older version, left: in STATE/RUN/TRIAL, made as that did.
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o711)
    (folder.parent / "lock").touch(0o600)
    journal = folder / "journal.jsonl"
    journal.touch(0o600)
    journal.write_text(forged(folder.parent.parent, folder.parent.name, folder.name, **things))
    return journal


def left_alone(state, *words):
    # Clean, which refuses and says why.
    done = program("clean", "--state", str(state))
    unharmed()
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    for word in words:
        assert word in said, f"{word} is not in {said}"


def program(*words):
    # In a fork: loading it once takes longer than all that is asked of it here.
    from forked import forked
    from ztune.onhost.main import main
    os.chdir("/")
    done = forked(main, words)
    print(done.stdout, done.stderr)
    return done


def ztune(*words):
    code = "from ztune.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd="/")
    print(done.stdout, done.stderr)
    return done


def unharmed():
    assert (secret / "precious").read_text() == "irreplaceable"
    time.sleep(0.05)
    assert victim.poll() is None, "the victim was killed"
"""


def attack(body: str) -> None:
    """Run ``body`` as root in a namespace of its own; it raises where the attack went through."""
    script = PRELUDE + "\ntry:\n" + textwrap.indent(textwrap.dedent(body), "    ")
    script += "\nfinally:\n    victim.kill()\n"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_forged_journal_in_the_old_place_removes_and_kills_nothing() -> None:
    attack(
        """
        plant(OLD)
        left_alone(OLD, "/var/tmp/ztune belongs to user 65534 (nobody)")
        assert (OLD / "aaaaaa/0001/journal.jsonl").exists(), "what is theirs is left alone"
        """
    )


def test_a_journal_in_a_state_directory_of_theirs_is_not_believed() -> None:
    attack(
        """
        mine = Path("/var/tmp/mine")
        plant(mine)
        left_alone(mine, "/var/tmp/mine belongs to user 65534")
        # Root's own directory, but they can write it, or one above it.
        shared = Path("/var/lib/shared")
        shared.mkdir()
        shared.chmod(0o777)
        plant(shared / "state")
        left_alone(shared / "state", "/var/lib/shared, on the way", "can be written by every user")
        shared.chmod(0o1777)
        left_alone(shared / "state", "shared/state belongs to user 65534")
        """
    )


def test_links_to_a_directory_of_root_are_not_followed() -> None:
    attack(
        """
        write(Path("/var/lib/real/aaaaaa/0001"))
        as_other("ln -s /var/lib/real /var/tmp/ztune")
        left_alone(OLD, "/var/tmp/ztune is a symbolic link")
        """
    )


def test_a_run_or_a_trial_of_theirs_in_a_directory_of_root_is_not_believed() -> None:
    attack(
        """
        OLD.mkdir()
        OLD.chmod(0o777)
        plant(OLD)
        OLD.chmod(0o711)
        left_alone(OLD, "run aaaaaa: left alone", "/var/tmp/ztune/aaaaaa belongs to user 65534")
        (OLD / "aaaaaa").rename(OLD / "bbbbbb")
        os.chown(OLD / "bbbbbb", 0, 0)
        os.chown(OLD / "bbbbbb/lock", 0, 0)
        left_alone(OLD, "bbbbbb/0001 belongs to user 65534")
        os.chown(OLD / "bbbbbb/0001", 0, 0)
        left_alone(OLD, "journal.jsonl belongs to user 65534")
        os.chown(OLD / "bbbbbb/lock", 65534, 65534)
        left_alone(OLD, "bbbbbb/lock belongs to user 65534")
        """
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("journal.chmod(0o666)", "journal.jsonl can be written by others"),
        ("os.link(journal, '/var/tmp/ztune/name')", "journal.jsonl has 2 names"),
        ("journal.unlink(); os.mkfifo(journal)", "journal.jsonl is not a regular file"),
        ("journal.rename('/var/tmp/j'); journal.symlink_to('/var/tmp/j')", "is a symbolic link"),
        ("os.truncate(journal, 65 << 20)", "larger than 64M"),
        ("journal.write_text('[' * 100000 + chr(10))", "line 1 of the journal is damaged"),
        ("journal.write_text(journal.read_text().replace('make', 'make', 1).replace('{}', '[]'))", "damaged"),
        ("journal.parent.chmod(0o777)", "aaaaaa/0001 can be written by every user"),
        ("OLD.chmod(0o733)", "can be written by every user"),
    ],
)
def test_a_journal_that_may_not_be_root_s_is_not_believed(change: str, says: str) -> None:
    attack(
        f"""
        journal = write(OLD / "aaaaaa/0001")
        {change}
        left_alone(OLD, {says!r})
        """
    )


def test_what_a_journal_says_is_not_enough_to_remove_it() -> None:
    """A journal of root's own, whatever wrote it: only what a trial makes, where it makes it, goes."""
    attack(
        """
        base = secret / "aaaaaa/0001"
        base.mkdir(parents=True)
        os.link(secret / "precious", base / "linked")
        (base / "symbolic").symlink_to(secret / "precious")
        own = "main-data-0-0"
        (base / own).touch(0o600)
        up = "../../../../../var/lib/secret/deep/precious"
        things = [
            ("files", dict(dir=str(secret), names=["precious"]), "it is not where this trial makes files"),
            ("files", dict(dir=str(base), names=["../../precious"]), "is no name of a file"),
            ("files", dict(dir=str(base), names=["linked"]), "has 2 names"),
            ("files", dict(dir=str(base), names=["symbolic"]), "is not a regular file"),
            ("files", dict(dir=str(base), names=[own], inodes={own: [1, 1]}), "another file has taken"),
            ("saved", dict(path=str(secret)), "not called as the copy that this trial began"),
            ("store", dict(path=str(secret), token="x"), "not called as the store of this trial"),
            ("store", dict(path=str(base), token=""), "has no marker"),
            ("mount", dict(point="/var/lib", node="private"), "it is not below"),
            ("mounts", dict(store=str(base), token="x", places={"main/db": "/var/lib"}), "it is not below"),
            ("loop", dict(file=str(secret / "precious")), "it is not where this trial makes files"),
            ("parameters", dict(previous={up: "0"}, new={}, arc={}), "is no name of a module parameter"),
            ("anything", dict(path=str(secret)), "knows no anything"),
        ]
        import shutil
        for kind, facts, says in things:
            write(OLD / "aaaaaa/0001", **{kind: facts})
            left_alone(OLD, says)
            shutil.rmtree(OLD)
        """
    )


def test_a_process_without_the_mark_is_not_killed_and_one_with_it_is() -> None:
    attack(
        """
        def started(*argv, **more):
            process = subprocess.Popen(argv, **more)
            text = Path(f"/proc/{process.pid}/stat").read_text()
            return process, [process.pid, int(text.rpartition(")")[2].split()[19])]

        from ztune.onhost.trial.door import token
        from ztune.onhost.host.process import MARK
        home = OLD / "aaaaaa/0001"
        journal = write(home)
        mark = {**os.environ, MARK: token("aaaaaa", "0001", OLD)}
        other = {**os.environ, MARK: token("aaaaaa", "0002", OLD)}
        marked, first = started("sleep", "600", env=mark)
        strange, second = started("sleep", "600", env=other)
        # As PostgreSQL, which writes over its environment: known by where it works.
        below, third = started("sleep", "600", cwd=home)
        foreign, fourth = started("sleep", "600", cwd=home, user=65534)
        facts = dict(pids=[[victim.pid, ticks], first, second, third, fourth], users=[0])
        journal.write_text(forged(OLD, processes=facts))
        left_alone(OLD, "left alone: it does not carry the mark of trial 0001")
        assert marked.wait(10) == below.wait(10) == -9
        assert strange.poll() is None and foreign.poll() is None
        for process in (strange, foreign):
            process.kill()
            process.wait()
        """
    )


def test_what_an_older_version_of_root_left_is_cleaned_and_shown_before() -> None:
    attack(
        """
        files = Path("/var/lib/files/aaaaaa/0001")
        files.mkdir(parents=True)
        (files / "main-data-0-0").write_text("x")
        home = OLD / "aaaaaa/0001"
        write(home, files=dict(dir=str(files), names=["main-data-0-0"]))
        (home / "mnt/pool").mkdir(parents=True)
        (home / "mnt/link").symlink_to(secret)
        done = program("list", "--state", str(OLD))
        (one,) = json.loads(done.stdout)["trials"]
        assert one["things"][0]["what"] == [str(files / "main-data-0-0")]
        assert one["directories"] == [str(home)]
        done = program("clean", "--state", str(OLD))
        assert done.returncode == 0
        assert not OLD.joinpath("aaaaaa").exists() and not files.parent.exists()
        assert files.parent.parent.exists()
        unharmed()
        """
    )


def test_the_other_user_can_change_nothing_of_a_state_directory() -> None:
    attack(
        """
        from ztune.onhost.trial.lock import RunLock
        held = RunLock(NEW, "aaaaaa")
        assert held.acquire()
        with held.home.below("0001", make=0o700) as home:
            assert os.fstat(home.fd).st_mode & 0o777 == 0o700
        places = NEW / "places/aaaaaa/0001/mnt"
        places.mkdir(parents=True)
        as_other(
            "cd /var/lib/ztune/places/aaaaaa/0001/mnt; s=/var/lib/ztune;"
            "for d in $s $s/state $s/state/aaaaaa $s/places $s/places/aaaaaa . ..; do "
            "  for do in 'mkdir x' 'ln -s / y' 'touch z'; do "
            "    if (cd $d && $do) 2>/dev/null; then echo $do in $d; exit 1; fi; "
            "  done; "
            "  if mv $d $d.z 2>/dev/null; then echo moved $d; exit 1; fi; "
            "done; "
            "if ls $s/state 2>/dev/null || ls $s/places 2>/dev/null; then exit 1; fi"
        )
        held.release()
        assert places.exists()
        """
    )


def _mounts() -> bool:
    from ztune.errors import MissingError
    from ztune.places import mount_program

    try:
        mount_program.check()
    except MissingError:
        return False
    return True


@pytest.mark.skipif(not _mounts(), reason="ztune-mount can't mount here")
def test_clean_as_a_user_types_it() -> None:
    attack(
        """
        plant(OLD)
        done = ztune("clean", "--on", "mount")
        assert done.returncode == 0 and "nothing is left on mount" in done.stdout
        assert "left alone: ztune-trial: /var/tmp/ztune belongs to user 65534" in done.stderr
        done = ztune("clean", "--on", "mount", "--yes")
        unharmed()
        subprocess.run(["mv", str(OLD), "/var/tmp/theirs"], check=True)
        files = Path("/var/lib/files/bbbbbb/0002")
        files.mkdir(parents=True)
        names = [f"main-data-0-{i}" for i in range(20)]
        for name in names:
            (files / name).write_text("x")
        facts = dict(files=dict(dir=str(files), names=names), evil=dict(path=chr(27) + "[2Jx"))
        write(OLD / "bbbbbb/0002", **facts)
        done = ztune("clean", "--on", "mount")
        assert done.returncode == 0 and str(files / "main-data-0-0") in done.stdout
        assert "and 12 more; --json lists all" in done.stdout and "Nothing was changed" in done.stdout
        assert chr(27) not in done.stdout and "x1b[2Jx" in done.stdout
        found = json.loads(ztune("clean", "--on", "mount", "--json").stdout)
        assert found["trials"][0]["things"][0]["what"] == [str(files / name) for name in names]
        assert found["trials"][0]["state"] == str(OLD)
        done = ztune("clean", "--on", "mount", "--yes")
        assert done.returncode == 1 and "knows no evil" in done.stderr and not files.exists()
        unharmed()
        """
    )
