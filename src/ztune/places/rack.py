"""Several hosts of the user's for the trials of one run, from a TOML file: ``ztune run --on fleet.toml``."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ztune.errors import InputError, ZtuneError
from ztune.onhost.fields import from_json
from ztune.places import bundle
from ztune.places.channel import ask
from ztune.places.placing import DEFAULT_FILE_SIZE, Placing
from ztune.places.ssh import Ssh
from ztune.toml.positions import line_of, positions
from ztune.toml.reading import Hints, explain, read_toml

KIND = "fleet"
CHECK_S = 120.0


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


@dataclass(frozen=True)
class RackCheck:
    """What one host answered: what it is, and what is in the way of a trial there, a sentence each."""

    name: str
    about: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def openzfs(self) -> str:
        """The version in its kernel; empty without it."""
        return str((self.about.get("openzfs") or {}).get("kernel", ""))


def check(rack: Rack) -> list[RackCheck]:
    """Ask every host, side by side, whether trials can run there; return the answers in order.

    One that hangs is a problem of its own after two minutes.
    """
    bundle.build()  # once, and not by all of them at a time
    found: dict[str, RackCheck] = {}

    def ask_one(place: Ssh) -> None:
        try:
            with place:
                about = place.about_host()
                found[place.name] = RackCheck(place.name, about, tuple(_lacking(place)))
        except ZtuneError as error:
            found[place.name] = RackCheck(place.name, problems=(str(error),))

    threads = [threading.Thread(target=ask_one, args=(place,), daemon=True) for place in rack.places]
    for thread in threads:
        thread.start()
    until = time.monotonic() + CHECK_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    hangs = f"it did not answer within {CHECK_S:.0f} s"
    return [found.get(place.name) or RackCheck(place.name, problems=(hangs,)) for place in rack.places]


def _lacking(place: Ssh) -> Iterator[str]:
    """Yield what is missing of where pools go, and say what a trial left."""
    placing = place.placing
    for dataset in dict.fromkeys(placing.parents.values()):
        if ask(place, ["zfs", "list", "-H", "-o", "name", dataset])[0] != 0:
            made = f"zfs create {shlex.quote(dataset)}"
            yield f"there is no dataset {dataset}; make it (`{made}`) or name another"
    for classes in placing.disks.values():
        for path in (path for paths in classes.values() for path in paths):
            if ask(place, ["test", "-b", path])[0] != 0:
                yield f"{path} is no disk"
    if placing.files is not None and ask(place, ["test", "-d", placing.files])[0] != 0:
        yield f"{placing.files} is no directory; make it"
    code, out, errors = ask(place, ["python3", place.put(bundle.build()), "list", "--state", place.state])
    if code != 0:
        yield errors.splitlines()[-1] if errors else f"what trials left can't be listed (exit code {code})"
        return
    trials = json.loads(out.splitlines()[-1]).get("trials", [])
    if running := [str(one["trial"]) for one in trials if one.get("running")]:
        yield f"a trial runs there: {', '.join(running)}"
    elif trials:
        yield f"trials left something there; `ztune clean --on {shlex.quote(place.name)}` shows it"


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
