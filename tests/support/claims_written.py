"""A claim and its publication as files of the user's own: fio on 16K and 128K."""

from __future__ import annotations

from pathlib import Path

CLAIM = """
publication = "mine"

[[claim]]
id = "{id}"
sentence = "Small records are better."
wording = "quoted"
metric = "{metric}"
relation = "less"
layouts = [
  {{ name = "16K", set = {{ "data.recordsize" = "16K" }} }},
  {{ name = "128K", set = {{ "data.recordsize" = "128K" }}{more} }},
]
"""
PUBLISHED = """
title = "Somebody's"
year = 2020
database = "fio"
system = "a machine"
workload = "fio"
study = "mine"

[layout]
arc = "64M"

[[layout.pool]]
name = "tank"

[[layout.pool.vdev]]
profile = "hdd-7200"

[[layout.dataset]]
name = "tank/data"
roles = ["data"]

[[layout.dataset]]
name = "tank/wal"
roles = ["wal"]
"""


def write(home: Path, name: str, metric: str = "time", more: str = "") -> None:
    """Write the claim ``name``; ``more``: further keys of its second layout."""
    path = home / "studies" / "claims" / f"{name}.toml"
    path.write_text(CLAIM.format(id=name, metric=metric, more=more))
