"""Advice that is in print, as data: what ships can be had as layouts, and what is wrong is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune.claims import publication
from ztune.databases import database, registry
from ztune.errors import InputError
from ztune.onhost.words import DurabilityClass
from ztune.runs.space import first_round
from ztune.study import Study, advised, generic, ready
from ztune.study.docs import ADVICE, fill
from ztune.study.durability import judge
from ztune.study.layout import with_settings
from ztune.study.tables import fields_of

ASKED = {"zfs-defaults", "openzfs-guide", "letsencrypt", "percona"}
STUDIES = {"oltp", "ldap-import", "orientdb-import", "orientdb-graph", "mongo-restore"}
SAID = """\
title = "A post"
as_of = "2026"
[database.sqlite.data]
recordsize = { value = "64K", says = "As large as pages" }
"""


PAGE = (Path(__file__).parents[2] / "docs" / "advice.md").read_text()


def written(home: Path, text: str, name: str = "mine") -> Path:
    file = home / "studies" / "advice" / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_what_people_follow_is_there_with_its_source(home: Path) -> None:
    assert set(advised.files()) == ASKED | STUDIES
    for name in ASKED:
        assert advised.find(name).url.startswith("https://")


@pytest.mark.parametrize("name", sorted(ASKED | STUDIES))
def test_a_shipped_set_is_a_layout_of_its_database(name: str, home: Path) -> None:
    found = advised.find(name)
    for one in found.database:
        names = [one] if one != advised.ANY else [d.name for d in database.own()]
        for known in names:
            said = advised.about(name, known)
            workloads = next(d for d in database.own() if d.name == known).facts.workloads
            groups = [("data", *registry.together(next(iter(workloads), None)))]
            base = generic.build({"data", "wal", *said.roles()} - {"temp"}, groups=groups).layout
            changes = advised.changes(said, base)
            judged = judge(with_settings(base, {**changes.changes, **changes.settings}))
            assert judged.klass is DurabilityClass.NOTHING, (known, judged.reasons)


def test_the_graph_studys_table_is_that_of_its_publication(home: Path) -> None:
    said = advised.about("orientdb-graph", "orientdb").roles()
    published = publication.find("orientdb-graph").recommended
    assert {role: {k: v.value for k, v in values.items()} for role, values in said.items()} == published


def test_a_set_is_tried_first_and_under_its_name(home: Path) -> None:
    study = ready.find("postgres-oltp")
    found = advised.beside(study, ["openzfs-guide", "advice:oltp"], "postgresql", advised.REPLAY).study
    assert [one.name for one in first_round(found)][:3] == ["base", "advice:openzfs-guide", "advice:oltp"]
    guide = first_round(found)[1].dataset_of("wal")
    assert guide is not None and guide.properties["recordsize"] == "32K"


def test_properties_that_a_set_does_not_name_are_defaults_and_roles_stay(home: Path) -> None:
    study = ready.find("orientdb-graph")  # the base has compression=off everywhere
    found = advised.beside(study, ["orientdb-import"], "orientdb", advised.REPLAY).study
    [layout] = [one for one in first_round(found) if one.name == "advice:orientdb-import"]
    wal, source = layout.dataset_of("wal"), layout.dataset_of("source")
    assert wal is not None and (wal.properties["recordsize"], wal.properties["compression"]) == ("32K", "lz4")
    assert source is not None and source.properties["compression"] == "off"
    assert layout.pools == study.layout.pools and layout.tunables == study.layout.tunables


def test_settings_of_the_database_are_a_layout_of_their_own(home: Path) -> None:
    study = generic.build({"data", "wal"})
    without = advised.beside(study, ["openzfs-guide"], "postgresql", advised.REPLAY)
    assert [one.name for one in without.study.layouts] == ["advice:openzfs-guide"]
    assert "full_page_writes=off" in without.notes[0]
    both = advised.beside(study, ["openzfs-guide"], "postgresql", None)
    assert [one.set.get("database.full_page_writes") for one in both.study.layouts] == [None, "off"]
    assert not both.notes


def test_a_replay_goes_without_what_it_does_not_have(home: Path) -> None:
    study = generic.build({"data", "wal"})
    found = advised.beside(study, ["letsencrypt"], "mariadb", advised.REPLAY)
    [layout] = found.study.layouts
    assert layout.set["data.redundant_metadata"] == "most" and "data.atime" not in layout.set
    assert found.notes[0] == (
        "advice:letsencrypt: without atime, xattr, dnodesize, which a replay does not have"
    )
    whole = advised.beside(study, ["letsencrypt"], "mariadb", None).study.layouts[0]
    assert whole.set["data.atime"] == "off" and whole.set["data.dnodesize"] == "auto"
    mounted = advised.beside(study, ["letsencrypt"], "mariadb", advised.MOUNT)
    assert mounted.study.layouts[0].set["data.atime"] == "off"
    assert "data.dnodesize" not in mounted.study.layouts[0].set
    assert mounted.notes[0] == "advice:letsencrypt: without xattr, dnodesize, which a mount does not have"


def test_what_is_the_same_is_tried_once_and_said(home: Path) -> None:
    found = advised.beside(generic.build({"data", "wal"}), ["zfs-defaults"], "rocksdb", advised.REPLAY)
    assert found.study.layouts == ()
    assert found.notes == ('advice:zfs-defaults is the same here as the base layout, "base"',)


def test_a_role_that_shares_a_dataset_has_what_that_has(home: Path) -> None:
    study = generic.build({"data", "wal"}, groups=[("data", "wal")])
    found = advised.beside(study, ["letsencrypt"], "mariadb", advised.REPLAY)
    # It says the same of both.
    assert not any("shares" in note for note in found.notes)
    written(home, SAID.replace("sqlite.data", "mariadb.wal") + "[database.mariadb.data]\n")
    notes = advised.beside(study, ["mine"], "mariadb", advised.REPLAY).notes
    assert notes[0] == "advice:mine: wal shares a dataset with data here, whose settings it has"


def test_the_users_own_set_goes_first(home: Path) -> None:
    written(home, SAID, "openzfs-guide")
    assert advised.find("openzfs-guide").title == "A post"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("sqlite", "sqlight", ':3: database.sqlight: "sqlight" is not a database'),
        ("recordsize", "recordsise", ':4: database.sqlite.data.recordsise: "recordsise" is not a property'),
        ("64K", "100K", ':4: database.sqlite.data.recordsize: '),
        ("says =", "said =", ':4: "said" is not a key of database.sqlite.data.recordsize'),
        (', says = "As large as pages"', "", ":4: database.sqlite.data.recordsize.says is missing"),
        ("sqlite.data", "sqlite.dota", ':3: "dota" is not a key of database.sqlite'),
        ('title = "A post"\n', "", "title is missing: the title of what it was read in"),
        (SAID[SAID.index("[") :], "[database.sqlite]", "database.sqlite: it names no role"),
        ('as_of = "2026"', "as_of = ", "is not TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_set_is_one_sentence(old: str, new: str, says: str, home: Path) -> None:
    assert old in SAID
    file = written(home, SAID.replace(old, new))
    with pytest.raises(InputError) as caught:
        advised.find("mine")
    assert str(caught.value).startswith(str(file))
    assert says in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "of", "says"),
    [
        ("percna", "mariadb", 'there is no set of advice "percna"; there are '),
        ("letsencrypt", "postgresql", "advice:letsencrypt says nothing of postgresql, but of mariadb"),
        ("percona", None, "advice:percona is by database, and which one this is is not known"),
    ],
)
def test_a_set_that_does_not_fit_is_refused(name: str, of: str | None, says: str, home: Path) -> None:
    study: Study = generic.build({"data", "wal"})
    with pytest.raises(InputError, match=says):
        advised.beside(study, [name], of, advised.REPLAY)


def test_the_page_is_current_and_names_every_set(home: Path) -> None:
    assert fill(PAGE) == PAGE, "run: python -m ztune.study.docs docs/advice.md"
    for name in advised.files():
        assert f"`{name}`" in PAGE
    for model in ADVICE.values():
        assert all(field.description for field in fields_of(model).values())


def test_the_pages_example_is_a_set(home: Path) -> None:
    example = PAGE.partition("```toml\n")[2].partition("```")[0]
    written(home, example)
    study = generic.build({"data", "wal"})
    [layout] = advised.beside(study, ["mine"], "postgresql", advised.REPLAY).study.layouts
    assert layout.set["data.compression"] == "zstd-3" and layout.set["wal.recordsize"] == "default"
