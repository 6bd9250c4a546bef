from __future__ import annotations

import pytest
from workloads_made import job_workload

from ztune.databases import memory, registry
from ztune.databases.postgresql.workload_oltp import OltpParameters, PostgresOltp
from ztune.databases.workload import JobWorkload, Parameters, PowerOfTwo, param
from ztune.errors import InputError


def test_text_and_typed_values_mean_the_same() -> None:
    text = OltpParameters.parse(
        "w", {"scale": "3", "full_page_writes": "off", "shared_buffers": "16MB", "rate": "10"}
    )
    typed = OltpParameters.parse(
        "w", {"scale": 3, "full_page_writes": False, "shared_buffers": 16 << 20, "rate": 10.0}
    )
    assert text == typed


def test_resolved_parameters_make_the_same_parameters_again() -> None:
    params = OltpParameters.parse("w", {"size": "100M", "script": "mix21", "wal_recycle": "off"})
    assert OltpParameters.parse("w", params.resolved()) == params


def test_a_load_has_one_pace() -> None:
    assert OltpParameters.parse("w", {"busy": "60"}).busy == 60
    # As a record has it, when the rate was found.
    assert OltpParameters.parse("w", {"busy": 0, "rate": 812.5}).rate == 812.5
    with pytest.raises(InputError, match=r"^workload w: busy finds the rate, and a rate is given too"):
        OltpParameters.parse("w", {"busy": 60, "rate": 100})
    with pytest.raises(InputError, match=r"parameter 'busy': .*less than or equal to 95"):
        OltpParameters.parse("w", {"busy": 100})


def test_size_decides_the_scale() -> None:
    assert PostgresOltp({"size": "1M"}).job.scale == 1
    assert PostgresOltp({"scale": 7}).job.scale == 7
    # Rounded up: never smaller than asked for.
    assert 27 <= PostgresOltp({"size": "400M", "scale": 7}).job.scale <= 29
    for kind in ("postgres-oltp", "postgres-backup", "postgres-restore"):
        made = registry.get(kind)({"size": "cached", "arc": "800M"})
        assert isinstance(made, JobWorkload)
        assert made.resolved()["size"] == "400M" and 27 <= made.job.scale <= 29
        # The ARC matters only where the size is relative to it.
        fields = made.Parameters.model_fields
        assert memory.is_relative(fields, {"size": "3x"}) and not memory.is_relative(fields, {})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scael": 3}, ["no parameter 'scael'", "did you mean 'scale'"]),
        ({"zzz": 3}, ["no parameter 'zzz'", "clients"]),
        ({"scale": 0}, ["'scale'", "greater than or equal to 1", "got 0"]),
        ({"scale": "many"}, ["'scale'", "integer", "'many'"]),
        ({"script": "tpcc"}, ["'script'", "'tpcb' or 'mix21'", "'tpcc'"]),
        ({"shared_buffers": "lots"}, ["'shared_buffers'", "64M", "'lots'"]),
        ({"max_wal_size": "16M"}, ["'max_wal_size'", "greater than or equal"]),
        ({"checkpoint_timeout": 10}, ["'checkpoint_timeout'", "30"]),
        ({"wal_recycle": "perhaps"}, ["'wal_recycle'", "boolean", "'perhaps'"]),
    ],
)
def test_bad_parameters_get_one_sentence(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        PostgresOltp(values)
    text = str(caught.value)
    assert "postgres-oltp" in text and "\n" not in text
    for word in words:
        assert word in text


def test_every_parameter_is_documented() -> None:
    docs = {doc.name: doc for doc in OltpParameters.docs()}
    assert list(docs) == list(OltpParameters.model_fields)
    for doc in docs.values():
        assert doc.meaning.endswith("."), doc.name
        assert doc.type and doc.default, doc.name
    assert docs["shared_buffers"].default == "32M" and docs["shared_buffers"].type == "size"
    assert docs["script"].allowed == "tpcb, mix21"
    assert docs["full_page_writes"].default == "on"
    assert docs["clients"].allowed == "≥ 1, ≤ 1000"


def test_every_workload_of_ours_says_what_its_parameters_mean() -> None:
    for entry in registry.entries():
        for parameter in entry.parameters if entry.source == "ztune" else ():
            assert parameter.meaning.endswith("."), (entry.name, parameter.name)


class Described(Parameters):
    """Its parameters say what they mean in both ways."""

    size: memory.OptionalSize = "0"
    """How large. 0: by
    itself."""
    page: PowerOfTwo = param("8K", ge=4096)
    """Of a page."""
    rate: float = param(1.5, ge=0, unit="rows/s", meaning="As packages for earlier versions say it.")


def test_meaning_unit_and_limits_are_told() -> None:
    size, page, rate = Described.docs()
    assert size.meaning == f"How large. 0: by itself. {memory.MEANING}" and size.unit == "bytes"
    assert (page.type, page.default, page.unit, page.allowed) == ("size", "8K", "bytes", "≥ 4K")
    assert rate.meaning == "As packages for earlier versions say it." and rate.unit == "rows/s"
    with pytest.raises(InputError, match=r"'page': it should be a power of two \(got '12K'\)"):
        Described.parse("w", {"page": "12K"})


def test_size_decides_how_much_is_imported() -> None:
    for name, key, each in (("ldap-import", "entries", 5620), ("mongo-restore", "documents", 400)):
        made = job_workload(name, {"size": "uncached", "arc": "64M"})
        found = made.resolved()
        assert found["size"] == "384M" and found[key] == (384 << 20) // each
        usual = job_workload(name).resolved()
        assert usual["size"] == "0" and usual[key] == {"entries": 20_000, "documents": 200_000}[key]
        with pytest.raises(InputError, match="size is for"):
            registry.get(name)({"size": "3x", "file": "/srv/mine"})
