"""What each version of OrientDB needs, pinned."""

from __future__ import annotations

from ztune.databases.artifacts import Artifact, Jars
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

# What both need beside their own jars, of the versions that 1.7.4 asks for: 1.6.4 asks for snapshots of
# Blueprints that are gone.
_BOTH: tuple[tuple[str, str], ...] = (
    (
        "com.tinkerpop.blueprints:blueprints-core:2.5.0:jar",
        "c6cb6638eaa71389f1a5513c6f0dffbaefc27c60ec564e1d8d50ceae3de559ee",
    ),
    (
        "commons-configuration:commons-configuration:1.6:jar",
        "46b71b9656154f6a16ea4b1dc84026b52a9305f8eff046a2b4655fa1738e5eee",
    ),
    (
        "commons-lang:commons-lang:2.4:jar",
        "2c73b940c91250bc98346926270f13a6a10bb6e29d2c9316a70d134e382c873e",
    ),
    (
        "commons-logging:commons-logging:1.1.1:jar",
        "ce6f913cad1f0db3aad70186d65c5bc7ffcc9a99e3fe8e0b137312819f7c362f",
    ),
    (
        "com.googlecode.concurrentlinkedhashmap:concurrentlinkedhashmap-lru:1.4:jar",
        "48f823692a8c26414a98b18572b3a07c4099d3cd04afe8babda62337d5540a95",
    ),
    (
        "net.java.dev.jna:jna:4.0.0:jar",
        "dac270b6441ce24d93a96ddb6e8f93d8df099192738799a6f6fcfc2b2416ca19",
    ),
)
ORIENTDB_1 = {
    "1.7.4": Jars(
        name=RELEASES["1.7.4"].software,
        pins=(
            *_BOTH,
            (
                "com.orientechnologies:orient-commons:1.7.4:jar",
                "90d54f4c6081f22702463d98d2662d4cf8a5ead95cfa1fbb01fc2c7a19ac9667",
            ),
            (
                "com.orientechnologies:orientdb-core:1.7.4:jar",
                "90a04216c7ee0fb2f5b40b2ce91dd98e3424b95da204f56e0d499fb27eec8668",
            ),
            (
                "com.orientechnologies:orientdb-graphdb:1.7.4:jar",
                "6a9ab3baa09ffd3375d7db80fd43d416b6fac7a91e374497199e7e0886f4b3ab",
            ),
            (
                "com.orientechnologies:orientdb-nativeos:1.7.4:jar",
                "27a7d73f010229aed9301735ce4f80e20b93f5fbbc35d88d2269f7d581a51c5d",
            ),
            (
                "org.xerial.snappy:snappy-java:1.1.0.1:jar",
                "563eacba41f76f5dc086afe2cfca60ec1c961b70b69f1e94d7b34740dc3e3af5",
            ),
        ),
    ),
    "1.6.4": Jars(
        name=RELEASES["1.6.4"].software,
        pins=(
            *_BOTH,
            (
                "com.orientechnologies:orient-commons:1.6.4:jar",
                "c2e824008acf10218014d307cc14b6e3fa72ec9164b4b2be20712fdd4ad67382",
            ),
            (
                "com.orientechnologies:orientdb-core:1.6.4:jar",
                "15640720f5fe73e6315087b682f953c6ff651b6e54960924391259f1f1bdf84a",
            ),
            (
                "com.orientechnologies:orientdb-graphdb:1.6.4:jar",
                "3ee04091f88283047a8e03dc6d84785605e73c10538e33bec23567d40a273a51",
            ),
            (
                "com.orientechnologies:orientdb-nativeos:1.6.4:jar",
                "989a8c49d5fa2e6a932287faf527ed43e457cdefd9e88000cf3fbb998a48bf3b",
            ),
            (
                "org.iq80.snappy:snappy:0.3:jar",
                "d79099dbbbe0c47d9794bf75fc27578991c9b2d8e4a355dc65d98cd7b5262d09",
            ),
        ),
    ),
}
"""By the parameter ``version``."""
