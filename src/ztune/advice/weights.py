"""How much each job of a database counts: from a TOML file. docs/recommendation.md documents its keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ztune.errors import InputError
from ztune.onhost.fields import KeyedError
from ztune.toml.reading import Hints, explain, read_toml


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Entry(_Strict):
    run: str = Field(min_length=1)
    weight: float | None = Field(default=None, gt=0)
    per_day: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one(self) -> _Entry:
        if (self.weight is None) == (self.per_day is None):
            raise KeyedError((), "a job has either a weight or per_day, how many times a day it runs")
        return self


class _File(_Strict):
    job: tuple[_Entry, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _alike(self) -> _File:
        for i, entry in enumerate(self.job):
            if (entry.weight is None) != (self.job[0].weight is None):
                raise KeyedError(("job", i), "the jobs have all a weight, or all per_day")
        return self


@dataclass(frozen=True)
class JobWeight:
    """What a file says of one run. ``per_day``: ``value`` is how many times a day the recorded job runs; else
    it is the job's share, in any unit."""

    run: str
    value: float
    per_day: bool


def read(path: Path) -> tuple[JobWeight, ...]:
    """Return what the file ``path`` says, two runs or more. Raises InputError with one sentence."""
    raw, text = read_toml(path)
    try:
        found = _File.model_validate(raw)
    except ValidationError as error:
        hints = Hints.of(["run", "weight", "per_day"])
        raise InputError(explain(error, raw, text, path, hints, "a file of weights")) from None
    return tuple(
        JobWeight(e.run, e.weight, False)
        if e.weight is not None
        else JobWeight(e.run, e.per_day or 0.0, True)
        for e in found.job
    )
