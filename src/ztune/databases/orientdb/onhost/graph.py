"""``orientdb-graph``: triples become vertices and edges, with a commit after every one or every N."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ztune.databases.orientdb.onhost.embedded import OrientJob, latency
from ztune.errors import ZtuneError
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress

# An upper estimate, to refuse a disk that is too small: each commit of one triple logs the pages it changed.
_LOG_BYTES_PER_TRIPLE = 2500


class OrientdbGraph(OrientJob):
    """Look up or create two vertices, create the edge, commit."""

    name: ClassVar[str] = "orientdb-graph"

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the input, and make an empty database with classes and index."""
        self.write_input(progress)
        self.make_database(self.talk(), self.path("data"), progress)
        self.stop()

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes each role will hold when all triples are in."""
        return {**super().expected_bytes(), "wal": (8 << 20) + self.expected_lines() * _LOG_BYTES_PER_TRIPLE}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Load every triple."""
        talk, step = self.opened, "load the triples"
        if self.input is None:
            raise ZtuneError(f"{self.name}: load comes before this step")
        every = int(self.params["commit_every"])
        found = talk.ask(
            "triples", self.source, every, self.input.lines,
            seconds=self.limit(), on_progress=lambda done: progress(step, done),
        )  # fmt: skip
        progress(step, 1.0)
        result = WorkloadResult(
            seconds=float(found["seconds"]),
            operations=int(found["triples"]),
            unit="triple",
            latency_ms=latency(found),
            offered_per_second=0.0,
            details={
                "commits": found["commits"],
                "vertices_created": found["created"],
                "vertices_found": found["found"],
                **self.details(),
            },
        ).undilated(self.dilation)
        self.synch(result, progress)
        return result

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks, of a database that was closed and opened again.

        Vertices are as many as the file has different terms, each is in the index once, edges are as many as
        triples, and they are the very triples of the file.

        Raises:
            ZtuneError: a check does not hold.
        """
        wanted = self.input
        assert wanted is not None
        counts, found = self.reopened()
        every = int(self.params["commit_every"])
        checks = (
            Check("triples loaded", wanted.lines, result.operations),
            Check("commits", -(-wanted.lines // every), result.details["commits"]),
            *self.prove(counts, found),
        )
        return replace(result, checks=checks).require_ok(self.name)
