"""Which crash tests stand behind a durability class: the figures that bench/crash.py has written."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ztune.advice.facts import database_of
from ztune.analysis.stats import upper_bound
from ztune.study import DurabilityClass
from ztune.units import counted

PAGE = "docs/durability.md"


@dataclass(frozen=True, slots=True)
class CrashTested:
    """One row of the table in docs/durability.md."""

    name: str
    workload: str
    database: str
    """With its version."""
    openzfs: str
    what: str
    """The settings that matter."""
    promised: DurabilityClass
    found: DurabilityClass
    cuts: int
    commits: int
    """Acknowledged."""
    lost: int
    cuts_with_loss: int
    cuts_with_corruption: int
    most_lost: int
    """In one cut."""
    oldest_s: float
    """How long before the cut the oldest lost commit was acknowledged."""

    def sentence(self) -> str:
        """Say what was found."""
        head = f"{self.database} on {self.openzfs} with {self.what}"
        cuts = f"{self.cuts:,} modelled power cuts"
        if self.found is DurabilityClass.CORRUPT:
            return f"{head} was corrupt after {self.cuts_with_corruption:,} of {cuts}."
        if self.found is DurabilityClass.LAST_SECONDS:
            return (
                f"{head} lost the last {self.oldest_s:.2g} s, up to {counted(self.most_lost, 'commit')}, in "
                f"{self.cuts_with_loss:,} of {cuts}, and was consistent after each."
            )
        return (
            f"{head} lost none of {self.commits:,} acknowledged commits in {cuts}: a loss "
            f"in at most {upper_bound(self.cuts):.1%} of cuts, with 95 % confidence."
        )


def parse(text: str) -> tuple[CrashTested, ...]:
    """Return the tests in the text of an evidence file."""
    rows = tomllib.loads(text).get("test", [])
    return tuple(
        CrashTested(
            **{
                **row,
                "promised": DurabilityClass(row["promised"]),
                "found": DurabilityClass(row["found"]),
            }
        )
        for row in rows
    )


@cache
def on_record() -> tuple[CrashTested, ...]:
    """Return the tests that come with ztune."""
    return parse(files("ztune.advice").joinpath("durability_evidence.toml").read_text(encoding="utf-8"))


def cited(
    classes: Iterable[DurabilityClass],
    database: str | None,
    tests: Sequence[CrashTested] | None = None,
) -> dict[str, list[str]]:
    """Return for each of ``classes`` the sentences that its layouts cite: what crash tests of it have found.

    Those of the workload's own ``database``, as `database_of` calls it, if there are any; else of others,
    which is said. A class that no test has tried is judged by its settings alone, which is said too.
    """
    known = on_record() if tests is None else tests
    return {str(klass): _of_class(klass, database, known) for klass in sorted(set(classes), key=_rank)}


def _rank(klass: DurabilityClass) -> int:
    return klass.rank


def _of_class(klass: DurabilityClass, database: str | None, tests: Sequence[CrashTested]) -> list[str]:
    if klass is DurabilityClass.NOT_KNOWN:
        return [f"No crash test on record stands behind what nobody has declared ({PAGE})."]
    found = [test for test in tests if test.promised is klass]
    if not found:
        return [f"No crash test of this class is on record: it is judged by its settings alone ({PAGE})."]
    own = [test for test in found if database is not None and database_of(test.workload, None) == database]
    others = "known to be of" if database is None else "of"
    whose = "" if own else f", none of them {others} this workload's database"
    return [f"Crash tests ({PAGE}){whose}:", *(test.sentence() for test in own or found)]
