"""A third party's broken package costs one sentence, and nothing of what others have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FINE = """
from ztune.databases.postgresql.workload_oltp import PostgresOltp

class Fine(PostgresOltp):
    name = "fine"
    summary = "somebody's own"

class Needy(Fine):
    name = "needy"
    needs = ("no-such-thing",)

class Word(Fine):
    name = "word"
    needs = "postgresql"

class Made(Fine):
    name = "made"
    artifacts = ("thing-1.0.zip",)

class Failing(Fine):
    name = "failing"
    def __init__(self, values=None, **more):
        raise KeyError("scale")

class Unsure(Fine):
    name = "unsure"
    def check(self):
        raise KeyError("version")

class Odd(Fine):
    name = "odd"
    Parameters = dict

class Numbered(Fine):
    name = "numbered"
    summary = 7

class Poor:
    name = "poor"

number = 7
"""
ABSTRACT = """
from abc import ABC, abstractmethod
from theirs.fine import Fine

class Abstract(Fine, ABC):
    name = "abstract"

    @abstractmethod
    def pace(self): ...
"""
MODULES = {
    "fine": FINE,
    "abstract": ABSTRACT,
    "lost": "import no_such_module",
    "keyed": "{}['key']",
    "ends": "raise SystemExit(3)",
    "said": "raise ValueError('two\\nlines \\x1b[31m')",
    "syntax": "def (:",
}
# Entry point → what the one sentence about it says.
BROKEN = {
    "abstract = theirs.abstract:Abstract": "its class is abstract: it lacks pace",
    "lost = theirs.lost:X": "can't be loaded: No module named 'no_such_module'",
    "keyed = theirs.keyed:X": "can't be loaded: KeyError: 'key'",
    "ends = theirs.ends:X": "can't be loaded: SystemExit: 3",
    "said = theirs.said:X": "can't be loaded: ValueError: two lines \\x1b[31m",
    "syntax = theirs.syntax:X": "can't be loaded: SyntaxError: ",
    "gone = theirs.fine:Gone": "can't be loaded: AttributeError: ",
    "value = no value at all:": "can't be loaded: ",
    "poor = theirs.fine:Poor": "is not a workload: it has no summary, Parameters",
    "number = theirs.fine:number": "is not a workload: it has no name, summary",
    "numbered = theirs.fine:Numbered": "its summary is no text",
    "odd = theirs.fine:Odd": "its Parameters are no subclass of",
    "word = theirs.fine:Word": "its needs are no tuple of names",
    "made = theirs.fine:Made": "its artifacts are no tuple of what ztune.databases.artifacts has",
}
USABLE = ("fine = theirs.fine:Fine", "needy = theirs.fine:Needy", "failing = theirs.fine:Failing",
          "unsure = theirs.fine:Unsure")  # fmt: skip


class Site:
    """A folder on the path with installed packages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, package: str, entries: str | bytes) -> None:
        info = self.path / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        raw = entries if isinstance(entries, bytes) else entries.encode()
        (info / "entry_points.txt").write_bytes(b"[ztune.workloads]\n" + raw + b"\n")

    def ztune(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from ztune.cli.main import main; main()", *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(self.path), "COLUMNS": "300"},
        )

    def entries(self) -> dict[str, dict[str, object]]:
        done = self.ztune("list", "workloads", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return {entry["name"]: entry for entry in json.loads(done.stdout)}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "site")
    (made.path / "theirs").mkdir(parents=True)
    (made.path / "theirs/__init__.py").write_text("")
    for name, text in MODULES.items():
        (made.path / f"theirs/{name}.py").write_text(text)
    return made


def test_each_broken_entry_costs_one_sentence(site: Site) -> None:
    site.install("theirs", "\n".join([*BROKEN, *USABLE]))
    found = site.entries()
    assert found["postgres-oltp"]["source"] == "ztune" and len(found) > len(BROKEN) + 16
    assert found["fine"]["summary"] == "somebody's own" and found["fine"]["trouble"] == ""
    for entry, said in BROKEN.items():
        name = entry.partition(" ")[0]
        summary = str(found[name]["summary"])
        assert summary.startswith(f"broken: workload '{name}' of package 'theirs' ")
        assert said in summary and summary.isprintable(), summary
    assert "none of the packages that ztune knows" in str(found["needy"]["trouble"])
    assert found["unsure"]["missing"] == "its check failed: KeyError: 'version'"

    listed = site.ztune("list", "workloads")
    assert listed.returncode == 0 and listed.stderr == ""
    for name in ("needy", *(entry.partition(" ")[0] for entry in BROKEN)):
        assert listed.stdout.count(f"\n{name} (from theirs)") == 1, name
    assert listed.stdout.count("no-such-thing") == 1

    # What is asked for by name is refused by name; what others have is as it was.
    for words, code, said in (
        (("setup", "postgres-oltp", "--dry-run"), 0, ""),
        (("setup", "lost", "--dry-run"), 2, "can't be loaded: No module named"),
        (("tune", "keyed"), 2, "can't be loaded: KeyError: 'key'"),
        (("tune", "failing"), 2, "workload 'failing' can't be made: KeyError: 'scale'"),
        (("doctor",), None, ""),
    ):
        done = site.ztune(*words)
        assert code is None or done.returncode == code, (words, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr
        assert said in done.stderr and done.stderr.count("\n") == bool(said), (words, done.stderr)


def test_a_name_that_two_packages_offer_is_nobodys(site: Site) -> None:
    site.install("theirs", "fine = theirs.fine:Fine")
    site.install("zweite", "fine = theirs.fine:Fine")
    summary = site.entries()["fine"]["summary"]
    assert summary == (
        "broken: workload 'fine' is offered by the packages 'theirs' and 'zweite'; uninstall all but one"
    )


@pytest.mark.parametrize("raw", [b"no equals sign", b"fine = \xff\xfe"])
def test_a_file_of_entry_points_that_cannot_be_read_takes_no_other_with_it(site: Site, raw: bytes) -> None:
    site.install("theirs", "fine = theirs.fine:Fine")
    site.install("zweite", raw)
    found = site.entries()
    assert found["fine"]["summary"] == "somebody's own"
    summary = str(found["zweite"]["summary"])
    assert summary.startswith("broken: the entry points of package 'zweite' can't be read: ")
    assert summary.isprintable()


def test_a_package_that_is_not_known_is_named_when_it_is_to_be_installed(site: Site) -> None:
    lacking = FINE + (
        "\nfrom ztune.errors import MissingError\n"
        "def check(self): raise MissingError('nothing is here')\n"
        "Needy.check = check\n"
    )
    (site.path / "theirs/fine.py").write_text(lacking)
    site.install("theirs", "needy = theirs.fine:Needy")
    done = site.ztune("setup", "needy", "--dry-run")
    assert done.returncode == 2 and done.stderr.startswith("ztune: workload 'needy' of package 'theirs': ")
    assert "'no-such-thing' is none of the packages that ztune knows" in done.stderr
