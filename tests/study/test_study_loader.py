from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztune.databases import registry
from ztune.errors import InputError
from ztune.onhost.words import DurabilityClass
from ztune.runs.space import first_round
from ztune.study import Study, generic, load_study, profiles, ready
from ztune.study.adjust import adjusted
from ztune.study.durability import judge, weakening
from ztune.study.layout import parse_layout, with_settings
from ztune.study.loader import parse_study
from ztune.study.profile import FlashProfile, HddProfile, cache_bytes
from ztune.study.tables import set_by_study
from ztune.toml.positions import line_of, positions

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXPECTED = tomllib.loads((HERE / "expected.toml").read_text())


pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("path", sorted((HERE / "good").glob("*.toml")), ids=lambda p: p.stem)
def test_good_files_load_and_survive_the_store(path: Path) -> None:
    study = load_study(path)
    again = Study.model_validate(json.loads(json.dumps(study.to_json())))
    assert again == study
    assert [layout.hash for layout in first_round(again)] == [layout.hash for layout in first_round(study)]
    names = [layout.name for layout in first_round(study)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", sorted((HERE / "bad").glob("*.toml")), ids=lambda p: p.stem)
def test_bad_files_get_their_sentence(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_study(path)
    sentence = str(caught.value)
    assert EXPECTED[path.stem] in sentence
    assert sentence.startswith(str(path))
    assert "\n" not in sentence


def test_every_bad_file_has_a_sentence() -> None:
    assert {p.stem for p in (HERE / "bad").glob("*.toml")} == set(EXPECTED)


def test_no_more_is_read_than_a_study_may_have() -> None:
    with pytest.raises(InputError, match="/dev/zero has more than 4 MiB"):
        load_study(Path("/dev/zero"))


def test_a_mark_of_byte_order_is_no_part_of_the_text(tmp_path: Path) -> None:
    plain = HERE / "good" / "everything.toml"
    marked = tmp_path / plain.name
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert load_study(marked) == load_study(plain)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_ready_studies_load_and_try_enough(path: Path) -> None:
    study = load_study(path)
    assert study.name == path.stem
    assert ready.files()[path.stem].read_text() == path.read_text()
    # What others published has its own number of layouts. Screening affords many; the rest is asked of real
    # runs, of which each takes minutes.
    published = not path.stem.startswith(("accuracy-", "postgres-", "sqlite"))
    least = 4 if published else 24 if path.stem.startswith("postgres-oltp") else 8
    assert len(first_round(study)) >= least
    assert 40 < len(study.description) < 160 and path.read_text().startswith("# ")
    # The base is what ZFS gives when nothing is set, so that "back to default" means the baseline. Those of
    # what others published compress nothing, as was the default then.
    defaults = [{}, {"compression": "off"}] if published else [{}]
    assert all(set_by_study(dataset) in defaults for dataset in study.layout.datasets)


def test_everything_is_read_as_written() -> None:
    study = load_study(HERE / "good" / "everything.toml")
    layout = study.layout
    assert layout.arc == 15 << 29
    assert layout.tunables["zfs_dirty_data_max"] == 1 << 30
    data, wal = layout.datasets
    assert data.properties["special_small_blocks"] == "8K" and data.properties["copies"] == "2"
    assert data.properties["atime"] == "off"
    assert wal.properties["recordsize"] == "128K"  # recsize = 131072
    assert set(study.profiles) == {"hdd-7200", "nvme", "ssd-sata", "usb-slow", "my-disk"}
    assert study.profiles["my-disk"].read_mb_s == 500
    moved = with_settings(layout, {"wal.pool": "fast"})
    assert moved.datasets[1].name == "fast/db/wal"
    assert [p.name for p in layout.used_pools()] == ["tank"]
    assert [p.name for p in moved.used_pools()] == ["tank", "fast"]
    plain = with_settings(layout, {"special": "none", "data.special_small_blocks": 0})
    assert plain.pool("tank").vdev_text("special") == "none"


def test_profile_beside_the_study(tmp_path: Path) -> None:
    text = (HERE / "good" / "smallest.toml").read_text().replace('"nvme"', '"./disk.toml"')
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(InputError, match=r"disk.toml can't be read: No such file"):
        load_study(tmp_path / "s.toml")
    source = Path(profiles.__file__).with_name("nvme.toml").read_text()
    (tmp_path / "disk.toml").write_text(
        source.replace('name = "nvme"', 'name = "ours"').replace("read_us = 77", "read_us = 99")
    )
    study = load_study(tmp_path / "s.toml")
    assert study.layout.profiles() == ("ours",)
    assert study.profiles["ours"].model_dump()["read_us"] == 99


def test_a_profile_says_what_becomes_of_its_cache(tmp_path: Path) -> None:
    source = Path(profiles.__file__).with_name("hdd-7200.toml").read_text().replace("hdd-7200", "mine")
    source = "\n".join(line for line in source.splitlines() if not line.startswith("cache"))

    def loaded(*lines: str) -> HddProfile | FlashProfile:
        (tmp_path / "mine.toml").write_text("\n".join([source, *lines]))
        return profiles.load(tmp_path / "mine.toml")

    assert loaded().declared_cache == "not-known" and cache_bytes(loaded()) == 64 << 20
    assert loaded("cache_mb = 0").declared_cache == "none" and cache_bytes(loaded('cache = "none"')) == 0
    told = loaded('cache = "protected"', "cache_mb = 512").engine_json()
    assert (told["cache"], told["cache_mb"]) == ("protected", 512)
    # The engine and stored specs know no word for what makes no difference to it.
    assert "cache" not in loaded('cache = "volatile"').engine_json()
    for lines, said in (
        (['cache = "none"', "cache_mb = 8"], "contradict each other"),
        (['cache = "volatile"', "cache_mb = 0"], "contradict each other"),
        (['cache = "battery"'], "cache is"),
    ):
        with pytest.raises(InputError, match=said):
            loaded(*lines)


def test_a_loaded_study_knows_the_caches_of_its_disks(tmp_path: Path) -> None:
    source = Path(profiles.__file__).with_name("nvme.toml").read_text()
    (tmp_path / "ours.toml").write_text(source.replace('name = "nvme"', 'name = "ours"'))
    study = adjusted(generic.build({"data"}), profile=str(tmp_path / "ours.toml"))
    assert study.layout.disks["ours"] == "protected"
    assert with_settings(study.layout, {"data.recordsize": "8K"}).disks == study.layout.disks


def test_profiles_in_the_state_directory(home: Path) -> None:
    folder = home / "profiles"
    folder.mkdir(parents=True)
    source = Path(profiles.__file__).with_name("nvme.toml").read_text()
    (folder / "ours.toml").write_text(source.replace('name = "nvme"', 'name = "ours"'))
    assert "ours" in profiles.names()
    assert profiles.find("ours").name == "ours"
    (folder / "other.toml").write_text(source)
    with pytest.raises(InputError, match='name is "nvme"; a profile is called as its file, "other"'):
        profiles.find("other")
    (folder / "broken.toml").write_text(source.replace("channels = 48", "chanels = 48"))
    with pytest.raises(
        InputError, match=r'broken.toml:\d+: "chanels" is not a key.*Did you mean "channels"\?'
    ):
        profiles.find("broken")


def test_every_shipped_profile_gives_its_source() -> None:
    for path in Path(profiles.__file__).parent.glob("*.toml"):
        profile = profiles.find(path.stem)
        assert len(profile.source) > 20
        assert "source" not in profile.engine_json()


def test_adjusted() -> None:
    study = ready.find("postgres-oltp")
    changed = adjusted(study, profile="ssd-sata", arc="1G")
    assert changed.layout.arc == 1 << 30
    assert changed.layout.settings()["pool.tank.data"] == "ssd-sata"
    assert set(changed.profiles) == {"ssd-sata", "nvme"}  # nvme: the axis slog
    assert len(first_round(changed)) == len(first_round(study))


def test_generic_studies() -> None:
    study = generic.build({"wal", "data", "backup"}, page_sizes={"data": 4096})
    assert [d.name for d in study.layout.datasets] == ["tank/data", "tank/wal", "tank/backup"]
    assert study.axes["data.recordsize"][0] == "4K"
    assert len(first_round(study)) >= 24
    first_round(generic.build({"source"}))


def test_unknown_study_and_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'no study "postgres-oltpp".*Did you mean "postgres-oltp"'):
        ready.find("postgres-oltpp")
    with pytest.raises(InputError, match="can't be read"):
        load_study(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_study(tmp_path / "binary.toml")
    with pytest.raises(InputError, match="can't be read"):
        load_study(tmp_path)


def test_positions() -> None:
    text = """# a comment with [brackets]
a = 1
b.c = "x # y"   # no ] comment
list = [
  "one = 1",
  "two",
]
text = \"\"\"
fake = 1
\"\"\"
[[t]]
k = 1
[[t.u]]
"quoted.key" = 1
[[t.u]]
'z' = {p = 1}
[[t]]
k = 2
"""
    found = positions(text)
    assert found[("a",)] == 2
    assert found[("b", "c")] == 3
    assert found[("list",)] == 4
    assert ("fake",) not in found and ("one",) not in found
    assert found[("t", 0, "k")] == 12
    assert found[("t", 0, "u", 0, "quoted.key")] == 14
    assert found[("t", 0, "u", 1, "z")] == 16
    assert found[("t", 1, "k")] == 18
    assert line_of(found, ("list", 1)) == 4
    assert line_of(found, ("t", 0, "u", 1, "z", "p")) == 16
    assert line_of(found, ("nowhere",)) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["8K", "nvme", "tank"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
EVERYTHING = tomllib.loads((HERE / "good" / "everything.toml").read_text())


def _paths(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    return [path, *(p for key, value in items for p in _paths(value, (*path, key)))]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(_paths(EVERYTHING)[1:]), VALUES, st.booleans())
def test_any_damage_is_one_sentence_or_a_study(
    path: tuple[str | int, ...], value: object, remove: bool
) -> None:
    raw = json.loads(json.dumps(EVERYTHING))
    node = raw
    for part in path[:-1]:
        node = node[part]
    if remove:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    try:
        study = parse_study(raw, "", Path("damaged.toml"))
    except InputError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("damaged.toml: ") or ".toml can't be read" in str(error)
    else:
        assert Study.model_validate(json.loads(json.dumps(study.to_json()))) == study


@pytest.mark.parametrize(
    "workload, params, expected",
    [
        ("sqlite", {}, DurabilityClass.NOTHING),
        ("sqlite", {"synchronous": "normal"}, DurabilityClass.LAST_SECONDS),
        ("sqlite", {"synchronous": "normal", "journal_mode": "persist"}, DurabilityClass.CORRUPT),
        ("rocksdb", {}, DurabilityClass.NOTHING),
        ("rocksdb", {"sync": False}, DurabilityClass.LAST_SECONDS),
        ("postgres-oltp", {}, DurabilityClass.NOTHING),
        ("postgres-oltp", {"full_page_writes": False}, DurabilityClass.NOTHING),  # records of 128K hold pages
        ("mariadb-oltp", {"doublewrite": False, "page_size": "16K"}, DurabilityClass.NOTHING),
        ("mariadb-oltp", {"flush_method": "nosync"}, DurabilityClass.CORRUPT),
        ("orientdb-graph", {}, DurabilityClass.LAST_SECONDS),
        ("orientdb-import", {"version": "1.7.4"}, DurabilityClass.LAST_SECONDS),
    ],
)
def test_what_the_workload_sets_counts(
    workload: str, params: dict[str, Any], expected: DurabilityClass
) -> None:
    study = adjusted(generic.build({"data", "wal"}), database=registry.settings_of(workload, params))
    assert judge(study.layout).klass is expected
    # All layouts follow, whatever else they change; and those with records below the page are torn.
    assert {judge(layout).klass for layout in first_round(study)} >= {expected}
    small = with_settings(study.layout, {"data.recordsize": "4K"})
    torn = {"full_page_writes", "doublewrite"} & set(params)
    assert (judge(small).klass is DurabilityClass.CORRUPT) == (
        bool(torn) or expected is DurabilityClass.CORRUPT
    )


@pytest.mark.parametrize(
    ("mode", "expected"), [("wal", DurabilityClass.LAST_SECONDS), ("truncate", DurabilityClass.CORRUPT)]
)
def test_a_setting_that_a_layout_varies_is_judged_with_the_workloads_others(
    mode: str, expected: DurabilityClass
) -> None:
    params = {"journal_mode": mode}
    study = adjusted(
        ready.find("sqlite"),
        database=registry.settings_of("sqlite", params),
        declared=registry.declared("sqlite", params),
    )
    assert judge(study.layout).klass is DurabilityClass.NOTHING
    assert judge(with_settings(study.layout, {"database.synchronous": "normal"})).klass is expected


def test_a_layout_has_the_last_word_on_what_the_database_does() -> None:
    study = ready.find("sqlite")
    own = {**study.layout.to_json(), "database": {"synchronous": "full"}}
    study = study.model_copy(update={"layout": parse_layout(own)})
    changed = adjusted(study, database={"synchronous": "off", "cache_size": "100"})
    assert changed.layout.database == {"synchronous": "full"}
    # Only what weakens, and what it is judged by, is taken over.
    assert weakening({"synchronous": "full", "page_size": "4096"}) == {}
    assert weakening({"journal_mode": "wal", "synchronous": "full"}) == {}
    gone = {"journal_mode": "delete", "synchronous": "full"}
    assert weakening({**gone, "cache_size": "100"}) == gone
    assert weakening({**gone, "synchronous": "extra"}) == {}
    # What decides how much a setting weakens comes with it.
    normal = {"journal_mode": "wal", "synchronous": "normal"}
    assert weakening({**normal, "cache_size": "100"}) == normal
    assert weakening({"innodb_doublewrite": "0", "innodb_page_size": "4096", "x": "off"}) == {
        "innodb_doublewrite": "0",
        "innodb_page_size": "4096",
    }
