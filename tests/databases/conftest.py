"""What the databases' tests share: a Java that starts quickly, and compiles a program once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.errors import MissingError
from ztune.onhost.jobs import software

# The second compiler and the parallel collector pay in a program that runs for minutes; each of these ends
# within seconds, and takes half the processor's time without.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Each test compiles its program anew, most of them one that another has compiled: the same sources for the
# same jars. What came of it is kept, and laid where it is asked for.
COMPILER = """#!/bin/sh
to=
seen=
for word in "$@"; do
    [ "$seen" = -d ] && to=$word
    seen=$word
done
key=$(for word in "$@"; do
    case $word in
    *.java) cat "$word" ;;
    *'/*') ls "${{word%\\*}}" ;;
    -*) echo "$word" ;;
    esac
done | sha256sum | cut -c1-32)
[ -d "{kept}/$key" ] && exec cp -R "{kept}/$key/." "$to"
{javac} {words} "$@" || exit
cp -R "$to" "{kept}/$$" && mv -T "{kept}/$$" "{kept}/$key" || :
"""


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
    kept = home / "kept"
    kept.mkdir()
    kept.chmod(0o1777)  # the databases' user compiles
    (folder / "java").write_text(f'#!/bin/sh\nexec {java} {" ".join(QUICK)} "$@"\n')
    words = " ".join(f"-J{word}" for word in QUICK)
    (folder / "javac").write_text(COMPILER.format(javac=java.with_name("javac"), words=words, kept=kept))
    for program in folder.glob("java*"):
        if not program.is_symlink():
            program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        yield
