"""What the databases' folders declare: ours, and what a third party's costs when it is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import ztune.databases
from ztune import shipped
from ztune.crash import database as crash
from ztune.databases import database, observed, registry
from ztune.databases.database import Database, parse
from ztune.databases.workload import JobWorkload
from ztune.errors import InputError
from ztune.onhost.declared import Declared
from ztune.onhost.fields import from_json
from ztune.onhost.words import DurabilityClass
from ztune.packages import packages_of

FOLDERS = [path.parent for path in Path(ztune.databases.__path__[0]).glob("*/__init__.py")]


def test_every_folder_is_a_database_and_is_found() -> None:
    assert sorted(one.name for one in database.own()) == sorted(folder.name for folder in FOLDERS)
    assert len(FOLDERS) >= 10 and database.broken() == ()


@pytest.mark.parametrize("one", database.own(), ids=lambda one: one.name)
def test_what_is_declared_is_there(one: Database) -> None:
    for name, inside in one.facts.workloads.items():
        kind = one.load(inside)
        assert issubclass(kind, JobWorkload) and kind.name == name
        for thing in kind.needs:
            assert packages_of(thing, "debian")
    for name, inside in one.facts.crash.items():
        assert one.load(inside).workload == name and crash.database_of(name) is one.load(inside)
    for known in one.facts.observed:
        assert callable(one.load(known.reader).find) and callable(one.load(known.reader).read)


def test_a_setting_means_the_same_in_all_of_ours() -> None:
    """A layout does not say whose settings it has (study/durability.py)."""
    seen: dict[str, object] = {}
    for one in database.own():
        durability = one.facts.durability
        meanings: dict[str, object] = {name: durability.settings[name] for name in durability.settings}
        meanings |= dict.fromkeys(durability.neutral, "neutral")
        for name, meaning in meanings.items():
            assert seen.setdefault(name, meaning) == meaning, name
    assert len(seen) > 150


def test_all_kinds_that_are_observed() -> None:
    kinds = [known.kind for one in database.own() for known in one.facts.observed]
    assert {*kinds} == {
        *("postgresql", "mariadb", "mysql", "orientdb", "opendj", "389ds", "mongodb", "rocksdb", "sqlite"),
        *("valkey", "redis"),
    }
    alone = [reader.database for reader in observed.readers() if reader.alone]
    assert alone == ["sqlite", "rocksdb"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x.toml: title: Field required"),
        ('title = "X"\ncolour = 1', "x.toml: colour: Extra inputs are not permitted"),
        ('title = "X"\nworkloads = { x = "workload" }', "workloads.x: 'workload' should be MODULE:CLASS"),
        (
            'title = "X"\n[[files]]\nname = "x"\nsource = "y"\nrules = ["*.x=log"]',
            "no known role: 'log'",
        ),
        ('title = "X"\n[[files]]\nname = "x"\nsource = "y"\nrules = ["[x=wal"]', "has a [ without its ]"),
        ('title = "X"\n[packages.x]\nubuntu = "x"', "'ubuntu' is none of 'debian'"),
        ('title = "X"\n[packages.x]\nfedora = "x"', "it names no packages for debian"),
        ('title = "X"\n[durability]\ndefault = "safe"', "durability.default: Input should be"),
        (
            'title = "X"\n[durability.settings.a]\nsafe = ["on"]',
            "settings.a.source: Field required",
        ),
    ],
)
def test_wrong_facts_are_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(tomllib.loads(text), "x.toml")
    assert str(caught.value).startswith("x.toml: ") and said in str(caught.value)
    assert "\n" not in str(caught.value)


FACTS = """
title = "Theirs"
[workloads]
theirs = "work:Theirs"
[crash]
theirs = "crash:Lost"
[packages.theirdb]
debian = "theirdb-server"
[[files]]
name = "theirs"
source = "https://example.org/files"
rules = ["*.their=data"]
[[observed]]
kind = "theirs"
reader = "settings"
[durability]
default = "nothing-acknowledged"
neutral = ["threads"]
[durability.settings.flush]
source = "its manual"
safe = ["always"]
last-seconds = { values = ["*"], why = "it flushes when it likes" }
"""
WORK = """
from ztune.databases.workload import JobWorkload, Parameters
from ztune.onhost.jobs.job import JobBase

class Job(JobBase):
    name = "theirs"
    ROLES = ("data",)

class Theirs(JobWorkload):
    name = "theirs"
    summary = "somebody's own"
    Parameters = Parameters
    job_class = Job
    needs = ("theirdb",)
"""


class Site:
    """A folder on the path with installed packages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, package: str, files: Mapping[str, str | bytes], points: str) -> None:
        for name, text in {"__init__.py": "", **files}.items():
            file = self.path / package / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        info = self.path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ztune.databases]\n{points}\n")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(self.path), "COLUMNS": "300"},
        )

    def ztune(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from ztune.cli.main import main; main()", *words)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def test_each_broken_database_costs_one_sentence(site: Site) -> None:
    site.install("fine", {"database.toml": FACTS, "work.py": WORK}, "theirs = fine")
    broken: dict[str, tuple[dict[str, str | bytes], str]] = {
        "bare": ({}, "package bare has no file database.toml"),
        "bad": ({"database.toml": "title = "}, "database.toml can't be read: TOMLDecodeError: "),
        "raw": ({"database.toml": b"title = '\xff'"}, "database.toml can't be read: UnicodeDecodeError: "),
        "odd": ({"database.toml": "title = 'X'\ncolour = 1"}, "colour: Extra inputs are not permitted"),
    }
    for package, (files, _) in broken.items():
        site.install(package, files, f"{package} = {package}")
    site.install("gone", {}, "gone = no.such.package\nempty =\nmodule = fine.work\npostgresql = fine")
    raising = {"database.toml": FACTS.replace("theirs =", "raising ="), "work.py": "{}['key']"}
    site.install("raising", raising, "raising = raising")
    done = site.ztune("list", "workloads", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert found["theirs"]["source"] == "fine" and found["theirs"]["needs"] == ["theirdb-server"]
    assert found["postgres-oltp"]["source"] == "ztune"
    said = {name: part for name, (_, part) in broken.items()}
    said |= {
        "gone": "its package no.such.package is not there",
        "module": "fine.work is no package, so it has no database.toml",
        "postgresql": "ztune has one of that name itself",
        "empty": "",
    }
    for name, part in said.items():
        summary = found[name]["summary"]
        assert summary.startswith(f"broken: database '{name}' of package ") and part in summary, summary
        assert summary.isprintable()
    assert "raising.work:Theirs of database 'raising'" in found["raising"]["summary"]
    assert "KeyError: 'key'" in found["raising"]["summary"]
    for words, code, part in (
        (("tune", "raising"), 2, "KeyError: 'key'"),
        (("crashtest", "theirs"), 2, "No module named 'fine.crash'"),
        (("crashtest", "no-such"), 2, "crash tests run the databases of postgres-oltp, sqlite, valkey"),
        (("list", "workloads"), 0, ""),
        (("doctor",), None, ""),
    ):
        done = site.ztune(*words)
        assert code is None or done.returncode == code, (words, done.stderr)
        assert part in done.stderr and "Traceback" not in done.stdout + done.stderr
        assert done.stderr.count("\n") == bool(part), (words, done.stderr)


def test_a_reader_of_settings_that_raises_costs_one_sentence(site: Site, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"database.toml": FACTS, "work.py": WORK, "settings.py": "{}['key']"}
    site.install("fine", files, "theirs = fine")
    program = (
        "from ztune.databases.observed import databases; "
        f"found, limits = databases(roots=[{str(tmp_path)!r}]); print(len(found), *limits)"
    )
    done = site.run("-c", program)
    assert done.returncode == 0 and "KeyError: 'key'" in done.stdout, done.stderr
    assert done.stdout.startswith("0 settings of theirs: ")


def test_what_a_third_party_declares_is_used(site: Site) -> None:
    site.install("fine", {"database.toml": FACTS, "work.py": WORK}, "theirs = fine")
    program = """
import json
from ztune.databases import registry
from ztune.onhost import fields
from ztune.packages import install_command
from ztune.trace.roles import RoleRules
print(RoleRules.parse().role("/srv/a.their"), install_command("theirdb", "debian"))
print(json.dumps(fields.to_json(registry.declared("theirs", {}))))
import sys, subprocess
from ztune.places import bundle
program = "from ztune.packages import install_command; print(install_command('theirdb', 'debian'))"
sent = bundle.build(["fine.work"])
words = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(sent)!r}); {program}"]
print(subprocess.run(words, capture_output=True, text=True).stdout.strip())
"""
    done = site.run("-c", program)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "data apt-get install theirdb-server" and third == "apt-get install theirdb-server"
    declared = from_json(Declared, json.loads(second))
    assert declared.answer("flush", "no") is DurabilityClass.LAST_SECONDS
    assert declared.answer("flush", "always") is DurabilityClass.NOTHING
    assert declared.default is DurabilityClass.NOTHING and declared.neutral == ("threads",)
    assert not declared.known


@pytest.fixture
def others() -> Iterator[None]:
    yield
    shipped._others.clear()


def test_a_third_party_cannot_change_what_ours_need(others: None) -> None:
    shipped.add("theirs", {"packages": {"postgresql": {"": "evil"}, "theirdb": {"": "theirdb"}}})
    assert packages_of("postgresql", "debian") == ["postgresql"]
    assert packages_of("theirdb", "arch") == ["theirdb"]
    assert "theirs" not in registry.names()
