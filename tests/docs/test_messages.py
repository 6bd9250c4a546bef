"""Strings of the source that a line wrapper broke: fragments of a sentence, quotes left in docstrings.

ruff finds strings joined by accident (ISC) and f-strings without a field (F541); these two it does not find.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "src" / "ztune").rglob("*.py"))
FRAGMENT, SENTENCE = 3, 6  # words
IGNORED = {tokenize.NL, tokenize.COMMENT}


def joined(text: str) -> Iterator[list[tokenize.TokenInfo]]:
    """Yield the strings that stand side by side, and so are one."""
    run: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            run.append(token)
        elif token.type not in IGNORED:
            if len(run) > 1:
                yield run
            run = []


def words(token: tokenize.TokenInfo) -> list[str]:
    """The words of a string in double quotes; none where it is something else: bytes, a pattern."""
    found = re.fullmatch(r'f?"(.*)"', token.string)
    return found[1].split() if found else []


def fragments(text: str) -> list[str]:
    """A piece of one to three words beside a sentence: the line before it had been wrapped already."""
    return [
        f"{token.start[0]}: {token.string}"
        for run in joined(text)
        if any(len(words(token)) >= SENTENCE for token in run)
        for token in run
        if 0 < len(words(token)) <= FRAGMENT and re.fullmatch(r'"[A-Za-z\',.;:()` -]+"', token.string)
    ]


def broken_docstrings(text: str) -> list[str]:
    return [
        f"{node.body[0].lineno}: {found}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and (found := ast.get_docstring(node, clean=False)) is not None
        and re.search(r'"\s*\n\s*"', found)
    ]


def test_no_string_was_broken() -> None:
    found = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}:{line}" for line in [*fragments(text), *broken_docstrings(text)]]
    assert found == []


def test_a_broken_string_is_found() -> None:
    broken = '''
def read():
    """Return the plan, where the host was "
    "read."""
    raise ValueError(
        "this sentence was as long as a line may be, and then "
        "it grew "
        "by some words"
    )
'''
    assert [line.partition(":")[0] for line in fragments(broken)] == ["7", "8"]
    assert [line.partition(":")[0] for line in broken_docstrings(broken)] == ["3"]
