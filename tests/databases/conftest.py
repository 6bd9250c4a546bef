"""What the databases' tests share: a Java that starts quickly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.errors import MissingError
from ztune.onhost.jobs import software

# The second compiler and the parallel collector pay in a program that runs for minutes; each of these ends
# within seconds, and takes half the processor's time without.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def quick_java(open_parent: Path) -> Iterator[None]:
    """A Java home that is this machine's, but for what its ``java`` is started with."""
    try:
        java, _version = software.java()
    except MissingError:
        yield
        return
    home = open_parent / "java"
    folder = home / "bin"
    folder.mkdir(parents=True)
    for made, real in ((home, java.parents[1]), (folder, java.parent)):
        for path in real.iterdir():
            if path.name not in ("bin", "java"):
                (made / path.name).symlink_to(path)
    (folder / "java").write_text(f'#!/bin/sh\nexec {java} {QUICK} "$@"\n')
    (folder / "java").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        yield
