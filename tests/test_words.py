"""A fixed word has one meaning: one class of that name, in the room that the word belongs to."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ztune"
# The word → the room of its one class. CONTRIBUTING.md says how words are chosen.
WORDS = {
    **dict.fromkeys(("Layout", "Vdev", "Pool", "Dataset", "Role", "DurabilityClass"), "onhost"),
    **dict.fromkeys(("Study", "Objective"), "study"),
    **dict.fromkeys(("Run", "Trial"), "store"),
    **dict.fromkeys(("Place", "Outcome", "Channel", "Lost", "Engine"), "places"),
    **dict.fromkeys(("Spec", "Journal", "Door", "Window", "Events"), "onhost"),
    **dict.fromkeys(("Job", "Probe", "Disk", "Mount", "MountOptions", "Server", "Zfs"), "onhost"),
    **dict.fromkeys(("Options",), "runs"),
    **dict.fromkeys(("Plan", "Target", "Recommendation"), "advice"),
    **dict.fromkeys(("Trace", "Manifest", "Op", "Recording", "Recorder"), "trace"),
    **dict.fromkeys(("Observation",), "observe"),
    **dict.fromkeys(("Metric",), "analysis"),
    **dict.fromkeys(("Workload",), "databases"),
    **dict.fromkeys(("Refused",), "errors.py"),
}
# They say that there is something, and not what.
SAY_NOTHING = {"base.py", "common.py", "helpers.py", "hello.py", "misc.py", "own.py", "types.py", "utils.py"}


@cache
def classes() -> dict[str, list[str]]:
    """Return the name of each class, and of each named choice of words, → the files that define one."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        names += [
            node.targets[0].id
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and ast.unparse(node.value).startswith("Literal[")
        ]
        for name in names:
            found[name].append(str(file.relative_to(SOURCE)))
    return found


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_one_class(word: str) -> None:
    found = classes()[word]
    assert len(found) == 1, (
        f"{word} is defined in {', '.join(found) or 'no file'}; name the other for what it is"
    )
    assert found[0].split("/")[0] == WORDS[word]


def test_a_public_class_has_a_name_of_its_own() -> None:
    # A database's folder is a house of its own: its client is called Client as another's is.
    shared = {
        name: [file for file in files if file.count("/") < 2 or not file.startswith("databases/")]
        for name, files in classes().items()
        if not name.startswith("_")
    }
    twice = {name: files for name, files in shared.items() if len(files) > 1}
    assert twice == {}, "name one of the two for what it is"


def test_files_are_named_for_what_is_in_them() -> None:
    assert not [file for file in SOURCE.rglob("*.py") if file.name in SAY_NOTHING]
