"""The recordings that claims are replayed from: one for each job, with its parameters and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ztune.advice.trust import SHORT_TRACE_S
from ztune.claims.claim import Claim, ComparedLayout
from ztune.databases import memory, registry
from ztune.errors import InputError, ZtuneError
from ztune.runs.recordings import Record, kept, made, recorded
from ztune.study import ready
from ztune.trace.reader import Trace

SECONDS = round(SHORT_TRACE_S)
"""How long a job runs that takes a time: below it, when a transaction group falls decides too much."""


@dataclass
class Recordings:
    """Finds the recording of a claim's layout, and makes it where there is none.

    ``record``: runs a workload, and records it into a folder. ``params``: of all workloads that have such a
    parameter. ``given``: the one recording to use, and no other.
    """

    record: Record
    params: Mapping[str, str] = field(default_factory=dict)
    seconds: int | None = None
    given: Trace | None = None
    _known: dict[str, Trace | ZtuneError] = field(default_factory=dict)

    def of(self, claim: Claim, side: ComparedLayout) -> Trace:
        """Return the recording of the job under ``side``. Raises ZtuneError; the same again each time."""
        settings = _settings(side)
        if self.given is not None:
            _check_suits(self.given, claim, side, settings)
            return self.given
        parameters = self.parameters(claim, side)
        asked = json.dumps([claim.workload, parameters, settings], sort_keys=True)
        return self._once(
            asked, lambda: recorded(claim.workload, parameters, settings, "claims", self.record)
        )

    def again(self, claim: Claim, side: ComparedLayout) -> Trace | None:
        """Return a second recording of the job under ``side``, whose difference from the first is none of a
        layout's; None where there is the given one alone. Raises ZtuneError; the same again each time.
        """
        if self.given is not None:
            return None
        workload, first = kept(claim.workload, self.parameters(claim, side), _settings(side), "claims")
        path = first.with_name(f"{first.name.removesuffix('.trace')}-again.trace")
        return self._once(str(path), lambda: made(workload, path, self.record))

    def _once(self, asked: str, make: Callable[[], Trace]) -> Trace:
        if asked not in self._known:
            try:
                self._known[asked] = make()
            except ZtuneError as error:
                self._known[asked] = error
        found = self._known[asked]
        if isinstance(found, ZtuneError):
            raise found
        return found

    def parameters(self, claim: Claim, side: ComparedLayout) -> dict[str, Any]:
        """Return the job's parameters under ``side``: the publication's, the ready study's, the user's, and
        those that the claim speaks of.
        """
        fields = registry.get(claim.workload).Parameters.model_fields
        found: dict[str, Any] = {
            name: value for name, value in claim.source.parameters.items() if name in fields
        }
        # A publication has one study, and may speak of further workloads, with studies of their names.
        for name in (claim.source.study, claim.workload):
            study = ready.find(name) if name in ready.files() else None
            if study is not None and study.workload in (None, claim.workload):
                found |= study.parameters
                break
        if "seconds" in fields:
            found["seconds"] = SECONDS if self.seconds is None else self.seconds
        found |= {name: value for name, value in self.params.items() if name in fields}
        found |= side.parameters
        if memory.is_relative(fields, found):
            found.setdefault("arc", side.layout.arc)
        return found


def _settings(side: ComparedLayout) -> dict[str, str]:
    return {
        name.removeprefix("database."): str(value)
        for name, value in side.set.items()
        if name.startswith("database.")
    }


def _check_suits(trace: Trace, claim: Claim, side: ComparedLayout, settings: Mapping[str, str]) -> None:
    """Raise InputError if the recording is of something else than ``claim`` speaks of."""
    info = trace.manifest.workload
    asked: dict[str, object] = {**side.parameters, **settings}
    if info is None:
        if asked:
            raise InputError(
                f"nobody knows of {trace.path} what its database had as {', '.join(asked)}, "
                f"of which the claim speaks"
            )
        return
    if info.name != claim.workload:
        raise InputError(f"{trace.path} is of {info.name}, and the claim speaks of {claim.workload}")
    had: dict[str, object] = {
        **registry.settings_of(info.name, info.parameters),
        **registry.make(info.name, info.parameters).params.resolved(),
    }
    would = registry.make(info.name, {**info.parameters, **side.parameters}).params.resolved()
    for name in asked:
        has, wanted = str(had.get(name, "not set")), str({**settings, **would}[name])
        if has != wanted:
            raise InputError(f"{name} is {has} in {trace.path}, and {wanted} in {side.name} of the claim")
