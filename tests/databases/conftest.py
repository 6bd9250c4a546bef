"""What the databases' tests share: a Java that starts quickly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.errors import MissingError
from ztune.onhost.jobs import software

# The second compiler and the parallel collector pay in a program that runs for minutes; each of these ends
# within seconds, and takes half the processor's time without.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@pytest.fixture(scope="session", autouse=True)
def quick_java(open_parent: Path) -> Iterator[None]:
    """A Java home that is this machine's, but for what its machine and its compiler are started with."""
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
            if path.name not in ("bin", "java", "javac"):
                (made / path.name).symlink_to(path)
    for name, prefix in (("java", ""), ("javac", "-J")):
        program = folder / name
        words = " ".join(f"{prefix}{word}" for word in QUICK)
        program.write_text(f'#!/bin/sh\nexec {java.with_name(name)} {words} "$@"\n')
        program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        yield
