"""What Maven and pip fetch: pinned, checked, unpacked whole or not at all; here without either of them."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ztune import paths
from ztune.databases import registry, setup
from ztune.databases.artifacts import Artifact, Fetched, Jars, Wheel, file_name, pins_of
from ztune.databases.http.workload import JMETER
from ztune.databases.orientdb.artifacts import LUCENE_1, ORIENTDB_1
from ztune.databases.unpacking import install
from ztune.databases.workload import JobWorkload
from ztune.errors import MissingError, ZtuneError
from ztune.onhost.jobs import software


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(software.ENVIRONMENT, raising=False)


def fetched(files: dict[str, bytes], extension: str) -> Artifact:
    """Return an artifact as it is when mvn has done its part."""
    packed = io.BytesIO()
    if extension == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    data = packed.getvalue()
    made = Artifact("thing-1.0", f"org.some:thing:1.0:{extension}", hashlib.sha256(data).hexdigest())
    where = dict(part.partition("=")[::2] for part in made.fetch_commands()[0])["-DoutputDirectory"]
    Path(where).mkdir(parents=True)
    (Path(where) / file_name(made.coordinates)).write_bytes(data)
    return made


FILES = {"thing-1.0/lib/a.jar": b"a", "thing-1.0/lib/b.txt": b"b", "thing-1.0/bin/c.jar": b"c"}


def to_fetch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Artifact, Path, Path]:
    """What is not there yet: where fetching puts its file, and the file itself, elsewhere."""
    there = registry.ListedWorkload("thing", "a thing", "ztune", [], version="1.0")
    monkeypatch.setattr(setup, "_examined", lambda *_: there)
    made = fetched(FILES, "zip")
    to = made.download / "files" / file_name(made.coordinates)
    return made, to, to.rename(folder / "packed")


def test_of_two_setups_at_a_time_one_fetches_and_the_other_finds_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, to, packed = to_fetch(tmp_path, monkeypatch)
    # As Maven does it, but slower: the file is there before it is whole.
    asked = tmp_path / "asked"
    shell = f"echo x >> {asked}; mkdir -p {to.parent}; : > {to}; sleep 0.5; cp {packed} {to}"
    step = setup.Step(("sh", "-c", shell), "fetches it", then=partial(install, made), fetches=made)
    wanted = setup.SetupPlan("thing", "", "it was not fetched", (step,))
    said: list[str] = []
    with ThreadPoolExecutor() as both:
        going = [both.submit(setup.carry_out, wanted, lambda step: said.append(step.why)) for _ in "ab"]
        assert [one.result().version for one in going] == ["1.0", "1.0"]
    assert made.present and asked.read_text() == "x\n"
    assert sum("another `ztune setup`" in why for why in said) == 1


def test_what_a_killed_setup_left_of_fetching_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, to, packed = to_fetch(tmp_path, monkeypatch)
    (made.download / "kept").mkdir()
    (to.parent / "half.zip.part").touch()
    shell = f"mkdir -p {to.parent}; cp {packed} {to}"
    step = setup.Step(("sh", "-c", shell), "fetches it", then=partial(install, made), fetches=made)
    setup.carry_out(setup.SetupPlan("thing", "", "it was not fetched", (step,)), lambda _: None)
    assert made.present and not made.download.exists()


@pytest.mark.parametrize("extension", ["zip", "tar.gz"])
def test_only_what_is_needed_is_kept(extension: str) -> None:
    made = replace(fetched(FILES, extension), members=("lib/*.jar",))
    assert not made.present
    install(made)
    assert made.present
    assert [path.name for path in made.directory.iterdir()] == ["a.jar"]
    assert (made.directory / "a.jar").read_bytes() == b"a"
    assert [path.name for path in made.directory.parent.iterdir()] == ["thing-1.0"]


def test_paths_are_kept_where_they_matter() -> None:
    made = replace(fetched(FILES, "zip"), flat=False)
    install(made)
    assert sorted(str(p.relative_to(made.directory)) for p in made.directory.rglob("*.*")) == [
        "bin/c.jar",
        "lib/a.jar",
        "lib/b.txt",
    ]


def test_another_file_than_the_pinned_one_is_refused() -> None:
    made = replace(fetched(FILES, "tar.gz"), sha256="0" * 64)
    with pytest.raises(ZtuneError, match=r"its SHA-256 is .* but should be 0000"):
        install(made)
    assert not made.present and list(made.directory.parent.iterdir()) == []


@pytest.mark.parametrize("extension", ["zip", "tar.gz"])
def test_a_member_that_would_lie_outside_is_refused(extension: str) -> None:
    made = replace(fetched({"thing/../../out.jar": b"x"}, extension), flat=False)
    with pytest.raises(ZtuneError, match="would lie outside"):
        install(made)
    assert list(made.directory.parent.iterdir()) == []


def test_nothing_useful_or_nothing_at_all() -> None:
    made = replace(fetched(FILES, "zip"), members=("lib/*.war",))
    with pytest.raises(ZtuneError, match="none of its files"):
        install(made)
    with pytest.raises(ZtuneError, match="fetching left no"):
        install(made)


def jars(**contents: bytes) -> Jars:
    """Return jars as they are when mvn has done its part."""
    pins = {f"org.some:{name}:1.0:jar": data for name, data in contents.items()}
    made = Jars("things-1.0", tuple((of, hashlib.sha256(data).hexdigest()) for of, data in pins.items()))
    commands = made.fetch_commands()
    assert [f"-Dartifact={of}" in argv for of, argv in zip(pins, commands, strict=True)] == [True] * len(pins)
    [where] = {part.partition("=")[2] for argv in commands for part in argv if "outputDirectory" in part}
    Path(where).mkdir(parents=True)
    for name, data in contents.items():
        (Path(where) / f"{name}-1.0.jar").write_bytes(data)
    return made


def test_jars_lie_together() -> None:
    made = jars(a=b"A", b=b"B")
    assert not made.present
    install(made)
    assert made.present and sorted(path.name for path in made.directory.iterdir()) == [
        "a-1.0.jar",
        "b-1.0.jar",
    ]
    assert [path.name for path in made.directory.parent.iterdir()] == ["things-1.0"]


def test_jars_are_all_there_or_none() -> None:
    made = jars(a=b"A", b=b"B")
    (made.directory.parent / ".fetch-things-1.0" / "files" / "b-1.0.jar").write_bytes(b"C")
    with pytest.raises(ZtuneError, match=r"b-1.0.jar: its SHA-256 is"):
        install(made)
    assert not made.present and list(made.directory.parent.iterdir()) == []


def test_one_rule_for_the_cache() -> None:
    assert software.directory() == paths.cache() / "software"


def test_what_is_not_fetched_names_the_command() -> None:
    with pytest.raises(MissingError, match="fetch it with `ztune setup orientdb-graph`"):
        software.require("orientdb-0", "OrientDB 0", "orientdb-graph")


def test_java_must_be_whole_and_new_enough(tmp_path: Path) -> None:
    for name, version, compiler in (
        ("old", "11.0.2", True),
        ("runtime", "21", False),
        ("fine", "21.0.1", True),
    ):
        (tmp_path / name / "bin").mkdir(parents=True)
        for program in ("java", "javac") if compiler else ("java",):
            (tmp_path / name / "bin" / program).write_text("#!/bin/sh\n")
            (tmp_path / name / "bin" / program).chmod(0o755)
        (tmp_path / name / "release").write_text(f'JAVA_VERSION="{version}"\n')
    fine = {"JAVA_HOME": str(tmp_path / "fine"), "PATH": ""}
    assert software.java(17, fine) == (tmp_path / "fine" / "bin" / "java", "21.0.1")
    for name, said in (("old", "old is 11.0.2"), ("runtime", "install it with")):
        with pytest.raises(MissingError, match=said):
            software.java(99, {"JAVA_HOME": str(tmp_path / name), "PATH": ""})


def test_every_pin_is_whole() -> None:
    for entry in registry.entries():
        for one in getattr(registry.get(entry.name), "artifacts", ()):
            assert one.name in entry.needs
            must_be_pinned(one)
    for version in ORIENTDB_1:
        made = registry.get("orientdb-import")({"version": version})
        assert isinstance(made, JobWorkload)
        [one] = made.to_fetch()
        assert one.name == f"orientdb-{version}"
        must_be_pinned(one)
    for plugin in LUCENE_1.values():
        must_be_pinned(plugin)


def must_be_pinned(one: Fetched) -> None:
    for coordinates, sha256 in one.pinned():
        assert len(coordinates.split(":")) == 4 and len(sha256) == 64


def test_the_project_file_names_just_what_is_pinned() -> None:
    assert JMETER.project is not None
    named = {
        ":".join(one.findtext(tag) or "" for tag in ("groupId", "artifactId", "version")) + ":jar"
        for one in ElementTree.parse(JMETER.project).iterfind("dependencies/dependency")
    }
    assert len(named) > 50 and named == {coordinates for coordinates, _ in JMETER.pins}


def test_what_a_version_needs_is_named() -> None:
    made = registry.get("orientdb-import")({"version": "1.6.4"})
    with pytest.raises(MissingError, match=r"fetch it with `ztune setup orientdb-import -p version=1\.6\.4`"):
        made.check()


def listed_jars(tmp_path: Path, files: dict[str, bytes]) -> Jars:
    """Return a list of two jars, and ``files`` as mvn left them."""
    parcel = io.BytesIO()
    with zipfile.ZipFile(parcel, "w") as archive:
        for name in ("bin/one.properties", "bin/deep/two.properties", "bin/three.txt"):
            archive.writestr(name, name)
    whole = {"a-1.jar": b"a", "parcel-2.jar": parcel.getvalue()}
    sums = "".join(
        f"{hashlib.sha256(data).hexdigest()}  g:{name.removesuffix('.jar').replace('-', ':')}:jar\n"
        for name, data in whole.items()
    )
    (tmp_path / "sums").write_text(sums)
    pins = pins_of(tmp_path / "sums")
    made = Jars("many-1", pins, tmp_path / "pom", "parcel-2.jar", ("*.properties",))
    where = Path(dict(part.partition("=")[::2] for part in made.fetch_commands()[0])["-DoutputDirectory"])
    where.mkdir(parents=True)
    for name, data in {**whole, **files}.items():
        (where / name).write_bytes(data)
    return made


def test_many_jars_are_fetched_at_once_and_each_is_checked(tmp_path: Path) -> None:
    made = listed_jars(tmp_path, {})
    assert [coordinates for coordinates, _ in made.pinned()] == ["g:a:1:jar", "g:parcel:2:jar"]
    install(made)
    assert sorted(path.name for path in made.directory.iterdir()) == ["a-1.jar", "one.properties"]
    assert [path.name for path in made.directory.parent.iterdir()] == ["many-1"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a-1.jar": b"b"}, "a-1.jar: its SHA-256 is .* but should be"),
        ({"b-1.jar": b"b"}, "many-1: fetching left b-1.jar too, which is not pinned"),
    ],
)
def test_another_jar_than_the_pinned_ones_is_refused(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    made = listed_jars(tmp_path, files)
    with pytest.raises(ZtuneError, match=said):
        install(made)
    assert not made.present and list(made.directory.parent.iterdir()) == []
    with pytest.raises(ZtuneError, match=r"a-1.jar: fetching left no"):
        install(made)


def a_wheel(files: dict[str, bytes], tag: str = "cpython-399-arm128") -> Wheel:
    """Return a wheel as it is when pip has done its part."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    data = packed.getvalue()
    sha256 = {"cpython-1-none": "0" * 64, tag: hashlib.sha256(data).hexdigest()}
    made = Wheel("thing", "2.0b1", sha256, f"print({tag!r})", "nobody", ("thing/*", "thing.libs/*"))
    where = dict(part.partition("=")[::2] for part in made.fetch_commands()[0])["--dest"]
    Path(where).mkdir(parents=True)
    (Path(where) / "thing-2.0b1-cp399-cp399-manylinux_2_28_arm128.whl").write_bytes(data)
    return made


WHEEL = {"thing/__init__.py": b"a", "thing.libs/b.so": b"b", "other/c.py": b"c"}


def test_of_a_wheel_the_parts_that_are_needed_are_kept_as_they_lie() -> None:
    made = a_wheel(WHEEL)
    assert {"download", "--no-deps", "--only-binary=:all:", "--python-version=399", "thing==2.0b1"} <= set(
        made.fetch_commands()[0]
    )
    assert not made.present
    install(made)
    assert made.present and made.directory == software.directory() / "thing-2.0b1" / "cpython-399-arm128"
    assert sorted(str(p.relative_to(made.directory)) for p in made.directory.rglob("*.*o*")) == [
        "thing.libs/b.so"
    ]
    assert (made.directory / "thing" / "__init__.py").read_bytes() == b"a"
    assert [path.name for path in software.directory().iterdir()] == ["thing-2.0b1"]


def test_a_wheel_that_is_another_one_or_for_no_python_here() -> None:
    made = replace(a_wheel(WHEEL), sha256={"cpython-399-arm128": "0" * 64})
    with pytest.raises(ZtuneError, match=r"thing 2.0b1: its SHA-256 is .* but should be 0000"):
        install(made)
    assert not made.present
    with pytest.raises(ZtuneError, match=r"thing 2\.0b1: fetching left no .*\.whl"):
        install(made)
    with pytest.raises(MissingError, match=r"thing-2\.0b1 is pinned for cpython-1-none, and .* is cpython-3"):
        _ = replace(made, sha256={"cpython-1-none": "0" * 64}).tag
