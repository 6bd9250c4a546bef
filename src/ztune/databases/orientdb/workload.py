"""The workloads on OrientDB: what can be asked of them. The jobs are in ``onhost``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.artifacts import Fetched
from ztune.databases.memory import OptionalSize
from ztune.databases.orientdb.artifacts import LUCENE_1, ORIENTDB, ORIENTDB_1
from ztune.databases.orientdb.onhost import embedded as orientdb
from ztune.databases.orientdb.onhost import export as orientdb_export
from ztune.databases.orientdb.onhost import files as orientdb_files
from ztune.databases.orientdb.onhost import graph as orientdb_graph
from ztune.databases.workload import PowerOfTwo, Size, arc_param, param
from ztune.units import parse_size


class OrientParameters(base.InputParameters):
    """The parameters that all workloads on OrientDB have."""

    version: Literal["3.2", "1.7.4"] = "3.2"
    """Which OrientDB works. The study of the graph had 1.7.4; `ztune setup` with `-p version=1.7.4` fetches
    it."""
    input: Literal["wordnet", "debian", "file"] = "wordnet"
    """Where the triples come from. `wordnet`: synsets, words, relations and glosses of WordNet 3.0, the same
    everywhere. `debian`: packages, relations, sections, maintainers, tags and descriptions that this system's
    package lists have. `file`: your own."""
    file: str = ""
    """Path of your own N-Triples file, plain or `.gz`. `input` is then `file`. It must be there on the
    machine where the job runs."""
    triples: int = param(50_000, ge=0, le=1_000_000_000)
    """How many triples are taken from its beginning. 0: all."""
    size: OptionalSize = "0"
    """About the size of a database of OrientDB 3.2 instead of `triples`. 0: `triples` counts. All of WordNet
    makes about 185 MB; a size beyond the input is refused."""
    arc: Size = arc_param()
    page_size: PowerOfTwo = param("64K", ge=4096, le=65536)
    """Page of the database's files: a power of two. OrientDB's own default is 64 KiB."""
    disk_cache: Size = param("64M", ge=8 << 20)
    """OrientDB's own cache of pages. Small beside the database, so that its reads reach the file system;
    OrientDB would take most of the memory."""
    heap: Size = param("512M", ge=128 << 20)
    """Most memory that Java takes for objects."""
    final_checkpoint: bool = True
    """End the recorded part with all pages written and synced, as they would be sooner or later. OrientDB
    alone would leave most of them in memory until the log is 6 GB long."""

    @model_validator(mode="after")
    def _pages_fit_version(self) -> OrientParameters:
        if self.version != "3.2" and self.page_size != 65536:
            raise ValueError("OrientDB 1.x fails to read records from smaller pages than its 64K")
        return self


class VersionParameters(OrientParameters):
    """The parameters of the workloads that a study had on OrientDB 1.6.4."""

    version: Literal["3.2", "1.7.4", "1.6.4"] = "3.2"  # type: ignore[assignment]
    """Which OrientDB works. The study of the import had 1.6.4, that of the graph 1.7.4; `ztune setup` with
    `-p version=1.7.4` fetches it."""
    compression: Literal["default", "nothing", "snappy", "gzip"] = "default"
    """How OrientDB 1.x compresses records by itself; its own default is `snappy`. 3.2 does not compress."""

    @model_validator(mode="after")
    def _compression_fits_version(self) -> VersionParameters:
        if self.version == "3.2" and self.compression not in ("default", "nothing"):
            raise ValueError(
                f"OrientDB 3.2 does not compress; compression={self.compression} takes version=1.7.4 or 1.6.4"
            )
        return self


class GraphParameters(VersionParameters):
    """The parameters of ``orientdb-graph``."""

    commit_every: int = param(1, ge=1, le=1_000_000, unit="triples")
    """How many triples a transaction holds. 1 is what the study did."""


class OrientWorkload(base.JobWorkload):
    """What all of them share."""

    needs = ("java", "wordnet")
    artifacts = (ORIENTDB,)
    durability = base.KNOWN

    def to_fetch(self) -> tuple[Fetched, ...]:
        """Return the OrientDB of the version asked for."""
        return (ORIENTDB_1.get(self.params.version, ORIENTDB),)

    def resolved(self) -> dict[str, Any]:
        """Return the parameters with as many triples as a database of that size has."""
        found = super().resolved()
        if found["size"] != "0":
            found["triples"] = orientdb.triples_for(parse_size(found["size"]))
        return found


class OrientdbGraph(OrientWorkload):
    """Triples into a graph."""

    name = "orientdb-graph"
    summary = "loads triples into an OrientDB graph: look up or create vertices, edge, commit"
    Parameters = GraphParameters
    job_class = orientdb_graph.OrientdbGraph


class ImportParameters(VersionParameters):
    """The parameters of ``orientdb-import``."""

    export: str = ""
    """Path of your own JSON export, plain or packed with gzip, instead of one made of triples: `input`,
    `file` and `triples` then don't count. It must be there on the machine where the job runs."""
    export_pin: str = ""
    """Size and SHA-256 of that export, as `BYTES:SHA256`: ztune notes them where the file is at hand, and
    another file is refused."""

    @model_validator(mode="before")
    @classmethod
    def _own_export(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("export"):
            if values.get("file"):
                raise ValueError("an export and a file of triples are named; leave one out")
            return {**values, "export": str(Path(str(values["export"])).absolute())}
        return values


class OrientdbImport(OrientWorkload):
    """A JSON export into an empty database."""

    name = "orientdb-import"
    summary = "imports a JSON export of a graph into an empty OrientDB database"
    Parameters = ImportParameters
    job_class = orientdb_files.OrientdbImport

    def resolved(self) -> dict[str, Any]:
        """Return the parameters with the pin of the export: a record must say which file it was."""
        found = super().resolved()
        if found["export"] and not found["export_pin"] and Path(found["export"]).is_file():
            found["export_pin"] = orientdb_export.pin(Path(found["export"]))
        return found


class BackupParameters(OrientParameters):
    """The parameters of ``orientdb-backup``."""

    method: Literal["backup", "export"] = "backup"
    """`backup` packs the database's files into a zip; `export` writes its records as JSON, packed with
    gzip."""
    level: int = param(0, ge=0, le=9)
    """How hard `backup` compresses: 0 not at all, so that the file system can; 9 is OrientDB's own
    default."""


class OrientdbBackup(OrientWorkload):
    """A database into a file."""

    name = "orientdb-backup"
    summary = "backs an OrientDB graph up into one file, or exports it as JSON"
    Parameters = BackupParameters
    job_class = orientdb_files.OrientdbBackup


class ArchiveParameters(OrientParameters):
    """The parameters of ``orientdb-archive``."""

    level: int = param(0, ge=0, le=9)
    """How hard the backup that is moved was compressed: 0 not at all, so that the archive's dataset can do
    it; 9 is OrientDB's own default."""


class OrientdbArchive(OrientWorkload):
    """A backup into the archive."""

    name = "orientdb-archive"
    summary = "moves a backup of an OrientDB graph into the archive's dataset"
    Parameters = ArchiveParameters
    job_class = orientdb_files.OrientdbArchive


class OrientdbLucene(OrientWorkload):
    """A full-text index."""

    name = "orientdb-lucene"
    summary = "builds a Lucene full-text index over the vertices of an OrientDB graph"
    Parameters = OrientParameters
    job_class = orientdb_files.OrientdbLucene

    def to_fetch(self) -> tuple[Fetched, ...]:
        """Return the OrientDB of the version asked for, and the plug-in that 1.7.4 lacks."""
        plugin = LUCENE_1.get(self.params.version)
        return (*super().to_fetch(), *([] if plugin is None else [plugin]))
