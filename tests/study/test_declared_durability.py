"""Nothing is promised of a setting, or a database, that nobody has declared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ztune.databases import registry
from ztune.databases.command.workload import Command
from ztune.errors import InputError
from ztune.onhost.declared import Declared
from ztune.onhost.words import DurabilityClass
from ztune.study import Layout, generic, load_study
from ztune.study.adjust import adjusted
from ztune.study.durability import Bar, judge
from ztune.study.layout import parse_layout, with_settings

NOTHING, SECONDS, NOT_KNOWN, CORRUPT = DurabilityClass
REDIS = """
name = "Redis"
version = "redis-server --version"
roles = ["data"]
load = "true"
measure = "echo 5 requests"
operations = '([0-9]+) requests'
[settings]
appendfsync = "always"
io_threads = "1"
[[check]]
name = "some"
command = "echo 5"
expect = "{operations}"
"""
DECLARED = """
[durability]
default = "nothing-acknowledged"
neutral = ["io_threads"]
together = 50
[durability.settings.appendfsync]
always = "nothing-acknowledged"
everysec = "last-seconds"
"""


def layouts(text: str, **changes: str) -> tuple[Layout, Layout]:
    """Return the base layout for a file of ``command``, and one with other settings or properties."""
    params = {"file": "redis.toml", "file_text": text}
    study = adjusted(
        generic.build({"data"}),
        database=registry.settings_of("command", params),
        declared=registry.declared("command", params),
    )
    base = study.layout
    return base, with_settings(
        base, {(k.replace("__", ".") if "__" in k else f"database.{k}"): v for k, v in changes.items()}
    )


def test_nothing_is_promised_of_a_database_that_nobody_declares() -> None:
    base, other = layouts(REDIS, appendfsync="everysec")
    assert judge(base).klass is NOT_KNOWN and judge(other).klass is NOT_KNOWN
    assert judge(base).reasons[0].startswith("nobody has declared what a power cut loses")
    assert any(r.startswith("appendfsync=everysec: nobody has declared") for r in judge(other).reasons)
    bar = Bar.of(NOTHING, base)
    # Compared among themselves; not with one that sets what nobody knows, nor with a weaker ZFS.
    assert bar.admits(with_settings(base, {"data.recordsize": "8K"}))
    assert not bar.admits(other)
    assert not bar.admits(with_settings(base, {"data.sync": "disabled"}))
    assert not Bar.of(CORRUPT, None).admits(base)
    # What is worst of all is known.
    assert judge(with_settings(base, {"data.checksum": "off"})).klass is CORRUPT


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, NOTHING),
        ({"appendfsync": "ALWAYS", "io_threads": "4"}, NOTHING),
        ({"appendfsync": "everysec"}, SECONDS),
        ({"appendfsync": "no"}, NOT_KNOWN),
        ({"appendfsync": "everysec", "data__sync": "disabled"}, SECONDS),
        ({"data__checksum": "off"}, CORRUPT),
    ],
)
def test_what_is_declared_counts(changes: dict[str, str], expected: DurabilityClass) -> None:
    base, other = layouts(REDIS + DECLARED, **changes)
    assert judge(base).klass is NOTHING
    assert judge(other).klass is expected
    assert Bar.of(NOTHING, base).admits(other) == (expected is NOTHING)
    # A stored layout says the same, and a declaration makes no other layout of it.
    again = parse_layout(other.to_json())
    assert judge(again).klass is expected and judge(again) == judge(other)
    assert replace(again, declared=None).hash == other.hash


def test_the_files_own_settings_count() -> None:
    base, _ = layouts((REDIS + DECLARED).replace('appendfsync = "always"', 'appendfsync = "everysec"'))
    assert judge(base).klass is SECONDS
    # `default` speaks of them, so what is in none of the lists is in it.
    without = DECLARED.replace('neutral = ["io_threads"]\n', "")
    base, other = layouts(REDIS + without, io_threads="4")
    assert judge(base).klass is NOTHING and judge(other).klass is NOT_KNOWN


@pytest.mark.parametrize(
    "declared, said",
    [
        ("[durability]\ndefault = 'nothing'", "redis.toml:16: durability.default is 'nothing'; "),
        ("[durability]\ndefault = 'not-known'", "durability.default is 'not-known'; input should be"),
        ("[durability]\ndefalt = 'corrupt'", '"defalt" is not a key of durability. Did you mean "default"?'),
        ("[durability]\nneutral = 'io_threads'", "durability.neutral is 'io_threads'"),
        ("[durability]\ntogether = -1", "durability.together is -1"),
        ("[durability]\nneutral = ['io_thread']", "'io_thread', which [settings] does not have."),
        ("[durability.settings]\nappendfsync = 'always'", "durability.settings.appendfsync is 'always'"),
        ("[durability.settings.appendfsync]\nno = 3", "durability.settings.appendfsync.no is 3"),
        ("[durability.settings.appendfsink]\nno = 'corrupt'", "'appendfsink', which [settings] does"),
    ],
)  # fmt: skip
def test_bad_declarations_get_their_sentence(declared: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        Command({"file": "redis.toml", "file_text": REDIS + declared})
    text = str(caught.value)
    assert said in text and text.startswith("redis.toml") and text.isprintable()


@pytest.mark.parametrize(
    "setting, value, expected",
    [
        ("shared_buffers", "1GB", NOTHING),
        ("page_size", "4096", NOTHING),
        ("fsync", "no", CORRUPT),
        ("fsync", "maybe", NOT_KNOWN),
        ("synchronous_commit", "local", NOTHING),
        ("synchronous_commit", "false", SECONDS),
        ("innodb_flush_log_at_trx_commit", "3", NOTHING),
        ("innodb_flush_log_at_trx_commit", "7", NOT_KNOWN),
        ("sync_binlog", "0", SECONDS),
        ("journal_mode", "memory", CORRUPT),
        ("manual_wal_flush", "true", SECONDS),
        ("full_page_writes", "perhaps", NOT_KNOWN),
        ("lua-time-limit", "5000", NOT_KNOWN),
    ],
)
def test_a_setting_that_no_database_of_ours_has(setting: str, value: str, expected: DurabilityClass) -> None:
    base = generic.build({"data", "wal"}).layout
    assert judge(base).klass is NOTHING
    assert judge(with_settings(base, {f"database.{setting}": value})).klass is expected


def test_every_setting_that_a_workload_makes_is_known() -> None:
    for entry in registry.entries():
        if entry.source != "ztune" or entry.name in ("command", "fio", "http"):
            continue
        settings = registry.settings_of(entry.name, {})
        study = adjusted(generic.build({"data"}), declared=registry.declared(entry.name, {}))
        layout = with_settings(study.layout, {f"database.{k}": v for k, v in settings.items()})
        assert not judge(layout).unknown, (entry.name, judge(layout).unknown)


STUDY = """
name = "live"
[layout]
[[layout.pool]]
name = "tank"
[[layout.pool.vdev]]
profile = "nvme"
[[layout.dataset]]
name = "tank/data"
roles = ["data"]
[layout.database]
appendfsync = "always"
[layout.durability]
default = "nothing-acknowledged"
settings.appendfsync.everysec = "last-seconds"
"""


def test_a_study_declares_for_a_database_that_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "live.toml"
    path.write_text(STUDY)
    study = adjusted(load_study(path), declared=Declared())
    assert judge(study.layout).klass is NOTHING
    assert judge(with_settings(study.layout, {"database.appendfsync": "everysec"})).klass is SECONDS
    assert judge(with_settings(study.layout, {"database.appendfsync": "no"})).klass is NOT_KNOWN
    path.write_text(STUDY.replace("settings.appendfsync.everysec", "setings.appendfsync.everysec"))
    with pytest.raises(InputError, match=r'"setings" is not a key of layout\.durability\. Did you mean'):
        load_study(path)


def test_what_a_study_declares_is_added_to_what_is_known(tmp_path: Path) -> None:
    known = Declared(known=True)
    raw: dict[str, Any] = {**generic.build({"data"}).to_json()}
    raw["layout"]["durability"] = {"neutral": ["plpgsql.check_asserts"]}
    study = adjusted(generic.build({"data"}).model_validate(raw), declared=known)
    changed = with_settings(study.layout, {"database.plpgsql.check_asserts": "off"})
    assert judge(changed).klass is NOTHING
    assert judge(with_settings(changed, {"database.fsync": "off"})).klass is CORRUPT


class Silent:
    """A third party's that says nothing."""


def test_a_third_partys_workload_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud(Silent):
        def __init__(self, values: object = None) -> None: ...

        def declared(self) -> Declared:
            return Declared(default=SECONDS)

    class Odd(Loud):
        def declared(self) -> Declared:
            return "nothing"  # type: ignore[return-value]

    found: dict[str, Any] = {"silent": Silent, "loud": Loud, "odd": Odd}
    monkeypatch.setattr(registry, "names", lambda: list(found))
    monkeypatch.setattr(registry, "get", found.__getitem__)
    monkeypatch.setattr(registry, "make", lambda name, params: found[name]())
    assert registry.declared("silent", {}) == registry.declared("gone", {}) == Declared()
    assert registry.declared("loud", {}).default is SECONDS
    with pytest.raises(InputError, match="'odd': what it declares of durability"):
        registry.declared("odd", {})
