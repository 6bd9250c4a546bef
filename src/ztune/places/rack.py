"""Several hosts of the user's for the trials of one run, from a TOML file: ``ztune run --on fleet.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ztune.errors import InputError
from ztune.onhost.fields import from_json
from ztune.places.placing import DEFAULT_FILE_SIZE, Placing
from ztune.places.ssh import Ssh
from ztune.toml.positions import line_of, positions
from ztune.toml.reading import Hints, explain, read_toml

KIND = "fleet"


class _Host(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    on: str
    pool: str | None = None
    parents: dict[str, str] = Field(default_factory=dict)
    disks: dict[str, list[str]] = Field(default_factory=dict)
    files: str | None = None
    size: str = DEFAULT_FILE_SIZE

    def placing(self) -> Placing:
        """Return where pools go there. Raises InputError, with the words of the command line."""
        return Placing.parse(
            pool=self.pool,
            parents=[f"{pool}={dataset}" for pool, dataset in self.parents.items()],
            disks=[f"{pool}={','.join(paths)}" for pool, paths in self.disks.items()],
            files=self.files,
            size=self.size,
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    host: list[_Host]


@dataclass(frozen=True)
class Rack:
    """Hosts that each run one trial of a run at a time. ``name``: of the file."""

    name: str
    places: tuple[Ssh, ...]

    def describe(self) -> dict[str, Any]:
        """Return what a run keeps of them, from which ``of`` makes them again."""
        return {
            "kind": KIND,
            "accel": "none",
            "dilation": 1.0,
            "patience": 1.0,
            "hosts": [{"name": place.name, "place": place.placing.to_json()} for place in self.places],
        }

    @classmethod
    def of(cls, target: Mapping[str, Any]) -> Rack:
        """Return the hosts that a stored run has as its target."""
        hosts: Sequence[Mapping[str, Any]] = target["hosts"]
        return cls(str(target["name"]), tuple(Ssh(h["name"], from_json(Placing, h["place"])) for h in hosts))


def is_file(on: str) -> bool:
    """Whether the word after ``--on`` names such a file."""
    return on.endswith(".toml")


def read(path: Path) -> Rack:
    """Return the hosts in a file (docs/fleet.md). Raises InputError with file, line and key."""
    raw, text = read_toml(path)
    names = list(_Host.model_fields)
    hints = Hints(
        lambda loc: names if loc[0] == "host" and len(loc) > 1 else ["host"],
        lambda _: "",
        lambda loc: "" if loc[-1] != "on" else '; write on = "ssh://HOST"',
    )
    try:
        file = _File.model_validate(raw)
    except ValidationError as error:
        raise InputError(explain(error, raw, text, path, hints, "a file of hosts")) from None
    found = positions(text)
    places: dict[str, Ssh] = {}
    for i, host in enumerate(file.host):
        where = f"{path}:{line_of(found, ('host', i))}: host[{i}]"
        try:
            place = Ssh(host.on, host.placing())
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if place.name in places:
            raise InputError(f"{where}: {place.name} is there twice; leave one of them out")
        places[place.name] = place
    if not places:
        raise InputError(f"{path} lists no host; write a table [[host]] for each, with on and where pools go")
    return Rack(path.name, tuple(places.values()))
