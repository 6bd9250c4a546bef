"""What is printed to be pasted into a shell is quoted: paths have spaces."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import ztune
from ztune.places.mount_points import MountPoint

SOURCE = Path(ztune.__file__).parent
# A command that has begun and not ended where a value stands.
COMMAND = re.compile(
    r"(?:^|[`\s:])(?:ztune [a-z]+|sudo|sh|zfs create|zpool [a-z]+|export|pip install|pytest)\b[^`;,.]*$"
)
FREE = {
    "path", "trace", "directory", "folder", "partial", "target", "script", "store", "on", "parent", "dataset",
}  # fmt: skip


def unquoted(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                before += str(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            named = ast.unparse(part.value)
            last = re.split(r"[.(\[]", named.removesuffix("()"))[-1]
            if last in FREE and COMMAND.search(before):
                yield f"{before}{{{named}}}"
            before += "X"


def test_the_rule_finds_what_it_is_for() -> None:
    assert list(unquoted("f'Next: ztune trace show {trace.path}'")) == ["Next: ztune trace show {trace.path}"]
    assert list(unquoted("f'`ztune umount {point.directory}` unmounts'"))
    assert not list(unquoted("f'`ztune show {run.id}` lists {path}'"))
    assert not list(unquoted("f'ztune trace show {shlex.quote(str(path))}'"))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_command_has_a_path_that_is_not_quoted(path: Path) -> None:
    assert list(unquoted(path.read_text())) == []


def test_a_mounts_directory_is_quoted() -> None:
    point = MountPoint.__new__(MountPoint)
    vars(point)["directory"] = Path("/srv/Spür 1")
    assert shlex.split(f"ztune umount {point.pasted}") == ["ztune", "umount", "/srv/Spür 1"]
