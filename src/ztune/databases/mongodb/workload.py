"""``mongo-restore``: what can be asked of it. ``ztune.databases.mongodb.onhost.restore`` does it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.artifacts import Wheel
from ztune.databases.memory import OptionalSize
from ztune.databases.mongodb.onhost import restore as mongo_restore
from ztune.databases.mongodb.onhost import wiredtiger
from ztune.databases.workload import PowerOfTwo, Seed, Size, arc_param, param
from ztune.units import parse_size

WIREDTIGER = Wheel(
    package=wiredtiger.PACKAGE,
    version=wiredtiger.VERSION,
    sha256={
        "cpython-311-x86_64": "0a21af2f488d5263c45beb328e68cea989217edf6a385fc491c24ea62ac3cec0",
        "cpython-310-x86_64": "b248b4b1372460ed1d83c4d58b39cfbf0ef23b6b161e561a592420fc49898e82",
        "cpython-312-x86_64": "6240de589ec53a4de0701d026e9131097464ac5a1eaa47eb0001c5fcb76a9150",
        "cpython-313-x86_64": "17e39ed4b962be8f79d7554e06b9d5f02f8fb4f27cde7ed454f9024f645d00c1",
        "cpython-311-aarch64": "ba26333efc24f3b6c621ffa0b463a15e0d5f75ed34b33f6eeede8a3f9af2a64e",
    },
    probe=wiredtiger.TAG,
    user=wiredtiger.WiredTiger.user,
    # The engine with its binding, and what that is linked with: none of the server that is built on it.
    members=("wiredtiger/*", "secantusdb.libs/*"),
)


class MongoRestoreParameters(base.InputParameters):
    """The parameters of ``mongo-restore``."""

    input: Literal["wordnet", "debian", "file"] = "wordnet"
    """What is in the archive. `wordnet`: a document for each synset of WordNet 3.0, the same everywhere.
    `debian`: one for each package that this system's package lists have. `file`: your own."""
    file: str = ""
    """Path of your own dump: what `mongodump --gzip` writes, an archive (`--archive`) or a collection's
    `.bson.gz`. `input` is then `file`. It must be there on the machine where the job runs."""
    documents: int = param(200_000, ge=1, le=1_000_000_000)
    """How many documents are made. Behind the last one of the source they begin again, with other
    identifiers. Of your own file all are taken."""
    size: OptionalSize = "0"
    """About the size of the documents instead of `documents`, before any compression. 0: `documents`
    counts."""
    arc: Size = arc_param()
    seed: Seed = 1
    """Decides the documents' identifiers."""
    engine: Literal["auto", "mongod", "wiredtiger"] = "auto"
    """`mongod`: MongoDB, by `mongorestore`. `wiredtiger`: its storage engine without MongoDB. `auto`: the
    former where both programs are on the PATH."""
    sync: bool = True
    """Wait until a batch is in the log on the disk, as mongorestore does by default (write concern majority).
    Off: the log is flushed every 100 ms, so a power cut loses that much."""
    batch: int = param(1000, ge=1, le=100_000, unit="documents")
    """How many are acknowledged together. 1000 is what mongorestore does, and can't be changed with
    `mongod`."""
    cache: Size = param("64M", ge=8 << 20)
    """WiredTiger's own cache. MongoDB takes half of the memory; small beside the database, pages are written
    while the restore goes on, as they are in a long one."""
    leaf_page: PowerOfTwo = param("32K", ge=4096, le=16 << 20)
    """Most that a page of documents holds before it is compressed. 32 KiB is MongoDB's."""
    block_compressor: Literal["default", "none", "snappy", "lz4", "zlib", "zstd"] = "default"
    """How WiredTiger compresses pages; ZFS can hardly shrink such pages further. `default` is `snappy` with
    `mongod`, as there, and `lz4` with `wiredtiger`, which has no snappy here. `lz4` works with `wiredtiger`
    only, `snappy` and `zstd` with `mongod` only."""
    checkpoint_every: int = param(60, ge=1, le=86_400, unit="s")
    """Time between checkpoints, which write all changed pages and sync them. 60 s is MongoDB's."""
    final_checkpoint: bool = True
    """End the timed part with a checkpoint, so that all documents are in the data files, as they would be
    within a minute."""

    @model_validator(mode="after")
    def _is_whole(self) -> MongoRestoreParameters:
        if self.input == "file" and self.size != "0":
            raise ValueError("size is for documents that are made; of your own file all are taken")
        return self


class MongoRestore(base.JobWorkload):
    """A gzip archive of documents into an empty database."""

    name = "mongo-restore"
    summary = "restores a gzip archive of documents with mongorestore, or into WiredTiger alone"
    Parameters = MongoRestoreParameters
    needs = ("wordnet",)
    artifacts = (WIREDTIGER,)
    job_class = mongo_restore.MongoRestore
    durability = base.KNOWN

    def resolved(self) -> dict[str, Any]:
        """Return the parameters with as many documents as make that size."""
        found = super().resolved()
        if found["size"] != "0":
            each = mongo_restore.BYTES_PER_DOCUMENT[found["input"]]
            found["documents"] = max(1, parse_size(found["size"]) // each)
        return found
