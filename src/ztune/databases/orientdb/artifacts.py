"""What each version of OrientDB needs, pinned."""

from __future__ import annotations

from pathlib import Path

from ztune.databases.artifacts import Artifact, Jars, pins_of
from ztune.databases.orientdb.onhost.release import RELEASES

ORIENTDB = Artifact(
    name=RELEASES["3.2"].software,
    coordinates=f"com.orientechnologies:orientdb-community:{RELEASES['3.2'].number}:tar.gz",
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


def _pinned(name: str) -> Jars:
    return Jars(name=name, pins=pins_of(Path(__file__).with_name(f"{name}.sha256")))


# Both need jars beside their own, of the versions that 1.7.4 asks for: 1.6.4 asks for snapshots of Blueprints
# that are gone.
ORIENTDB_1 = {version: _pinned(RELEASES[version].software) for version in ("1.7.4", "1.6.4")}
"""By the parameter ``version``."""

LUCENE_1 = {version: _pinned(RELEASES[version].lucene) for version in ("1.7.4",)}
"""By the parameter ``version``: the plug-in, where it is none of OrientDB's own jars, with its Lucene."""
