"""The workloads on OrientDB: what can be asked of them. ``ztune.trial.jobs.orientdb*`` do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from ztune.trial.jobs import orientdb, orientdb_files, orientdb_graph
from ztune.trial.jobs.base import Job
from ztune.workloads import base
from ztune.workloads.artifacts import Artifact, Fetched
from ztune.workloads.base import Size, param

ORIENTDB = Artifact(
    name=orientdb.SOFTWARE,
    coordinates=f"com.orientechnologies:orientdb-community:{orientdb.VERSION}:tar.gz",
    sha256="b275121bd0ef355a1de7982b6f29346240df7a6689be36d2f8cae64e79c335ab",
    # Of 84 MB what an embedded database with full text needs: no server, no cluster, no script engine.
    members=(
        *(
            f"lib/{name}-*.jar"
            for name in ("orientdb-core", "orientdb-lucene", "lucene", "concurrentlinked*")
        ),
        *(f"lib/{name}-*.jar" for name in ("lz4-java", "jffi", "jnr", "commons-lang", "commons-io", "hppc")),
        *(f"lib/{name}-*.jar" for name in ("jts-core", "s2-geometry-library-java", "spatial4j", "noggit")),
        *(f"lib/{name}-*.jar" for name in ("jackson-core", "asm", "asm-*")),
    ),
)


class OrientParameters(base.Parameters):
    """The parameters that all workloads on OrientDB have."""

    input: Literal["wordnet", "debian", "file"] = param(
        "wordnet",
        meaning="Where the triples come from. `wordnet`: synsets, words, relations and glosses of WordNet "
        "3.0, the same everywhere. `debian`: packages, relations, sections, maintainers, tags and "
        "descriptions that this system's package lists have. `file`: your own.",
    )
    file: str = param(
        "",
        meaning="Path of your own N-Triples file, plain or `.gz`. `input` is then `file`. It must be there "
        "on the machine where the job runs.",
    )
    triples: int = param(
        50_000, ge=0, le=1_000_000_000, meaning="How many triples are taken from its beginning. 0: all."
    )
    page_size: Size = param(
        "64K",
        ge=4096,
        le=65536,
        unit="bytes",
        meaning="Page of the database's files: a power of two. OrientDB's own default is 64 KiB.",
        validate_default=True,
    )
    disk_cache: Size = param(
        "64M",
        ge=8 << 20,
        unit="bytes",
        meaning="OrientDB's own cache of pages. Small beside the database, so that its reads reach the file "
        "system; OrientDB would take most of the memory.",
        validate_default=True,
    )
    heap: Size = param(
        "512M",
        ge=128 << 20,
        unit="bytes",
        meaning="Most memory that Java takes for objects.",
        validate_default=True,
    )
    final_checkpoint: bool = param(
        True,
        meaning="End the recorded part with all pages written and synced, as they would be sooner or later. "
        "OrientDB alone would leave most of them in memory until the log is 6 GB long.",
    )

    @model_validator(mode="before")
    @classmethod
    def _own_file(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("file"):
            if values.get("input", "file") != "file":
                raise ValueError(f"input is {values['input']!r}, but a file is named too; leave one out")
            return {**values, "input": "file", "file": str(Path(str(values["file"])).absolute())}
        return values

    @model_validator(mode="after")
    def _is_whole(self) -> OrientParameters:
        if self.input == "file" and not self.file:
            raise ValueError("input is file, but no file is named; add -p file=PATH")
        if self.page_size & (self.page_size - 1):
            raise ValueError("page_size must be a power of two from 4K to 64K")
        return self


class GraphParameters(OrientParameters):
    """The parameters of ``orientdb-graph``."""

    commit_every: int = param(
        1,
        ge=1,
        le=1_000_000,
        unit="triples",
        meaning="How many triples a transaction holds. 1 is what the study did.",
    )


class OrientdbGraph(base.JobWorkload):
    """Triples into a graph."""

    name: ClassVar[str] = "orientdb-graph"
    summary: ClassVar[str] = "loads triples into an OrientDB graph: look up or create vertices, edge, commit"
    Parameters: ClassVar[type[base.Parameters]] = GraphParameters
    needs: ClassVar[tuple[str, ...]] = ("java", "wordnet")
    artifacts: ClassVar[tuple[Fetched, ...]] = (ORIENTDB,)
    job_class: ClassVar[type[Job]] = orientdb_graph.OrientdbGraph


class OrientdbImport(base.JobWorkload):
    """A JSON export into an empty database."""

    name: ClassVar[str] = "orientdb-import"
    summary: ClassVar[str] = "imports a JSON export of a graph into an empty OrientDB database"
    Parameters: ClassVar[type[base.Parameters]] = OrientParameters
    needs: ClassVar[tuple[str, ...]] = ("java", "wordnet")
    artifacts: ClassVar[tuple[Fetched, ...]] = (ORIENTDB,)
    job_class: ClassVar[type[Job]] = orientdb_files.OrientdbImport


class BackupParameters(OrientParameters):
    """The parameters of ``orientdb-backup``."""

    method: Literal["backup", "export"] = param(
        "backup",
        meaning="`backup` packs the database's files into a zip; `export` writes its records as JSON, "
        "packed with gzip.",
    )
    level: int = param(
        0,
        ge=0,
        le=9,
        meaning="How hard `backup` compresses: 0 not at all, so that the file system can; 9 is OrientDB's "
        "own default.",
    )


class OrientdbBackup(base.JobWorkload):
    """A database into a file."""

    name: ClassVar[str] = "orientdb-backup"
    summary: ClassVar[str] = "backs an OrientDB graph up into one file, or exports it as JSON"
    Parameters: ClassVar[type[base.Parameters]] = BackupParameters
    needs: ClassVar[tuple[str, ...]] = ("java", "wordnet")
    artifacts: ClassVar[tuple[Fetched, ...]] = (ORIENTDB,)
    job_class: ClassVar[type[Job]] = orientdb_files.OrientdbBackup


class ArchiveParameters(OrientParameters):
    """The parameters of ``orientdb-archive``."""

    level: int = param(
        0,
        ge=0,
        le=9,
        meaning="How hard the backup that is moved was compressed: 0 not at all, so that the archive's "
        "dataset can do it; 9 is OrientDB's own default.",
    )


class OrientdbArchive(base.JobWorkload):
    """A backup into the archive."""

    name: ClassVar[str] = "orientdb-archive"
    summary: ClassVar[str] = "moves a backup of an OrientDB graph into the archive's dataset"
    Parameters: ClassVar[type[base.Parameters]] = ArchiveParameters
    needs: ClassVar[tuple[str, ...]] = ("java", "wordnet")
    artifacts: ClassVar[tuple[Fetched, ...]] = (ORIENTDB,)
    job_class: ClassVar[type[Job]] = orientdb_files.OrientdbArchive


class OrientdbLucene(base.JobWorkload):
    """A full-text index."""

    name: ClassVar[str] = "orientdb-lucene"
    summary: ClassVar[str] = "builds a Lucene full-text index over the vertices of an OrientDB graph"
    Parameters: ClassVar[type[base.Parameters]] = OrientParameters
    needs: ClassVar[tuple[str, ...]] = ("java", "wordnet")
    artifacts: ClassVar[tuple[Fetched, ...]] = (ORIENTDB,)
    job_class: ClassVar[type[Job]] = orientdb_files.OrientdbLucene
