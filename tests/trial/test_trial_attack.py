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
    from ztune.trial.door import token
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


def program(*words):
    code = "import sys; from ztune.trial.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd="/")
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
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_forged_journal_in_the_old_place_removes_and_kills_nothing() -> None:
    attack(
        """
        plant(OLD)
        done = program("clean", "--state", str(OLD))
        unharmed()
        assert "belongs to user 65534" in done.stdout + done.stderr and done.returncode != 0
        assert (OLD / "aaaaaa/0001/journal.jsonl").exists(), "what is theirs is left alone"
        """
    )
