"""The pages that people write: links lead somewhere, lines are not too long, words are spelled one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench/README.md", ROOT / "dtrace/README.md"]
)
LONGEST = 110
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
PATH = re.compile(
    r"`((?:src/ztune|tests|bench|scripts|studies|recorder|engine|mount|disk|lab|dtrace)/[\w./-]+)`"
)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
# CONTRIBUTING.md, "Style". What stands in `code` is a name or a message, and tested where it is made.
ONE_SPELLING = {
    r"\bcannot\b": "can't",
    r"\b(behavi|col|fav|hon|neighb)or": "…our",
    r"\b(analy|organi|optimi|recogni|normali|summari|synchroni|utili|virtuali|initiali)z": "…s…",
    r"\b(label|model|cancel)(ed|ing)\b": "…ll…",
    r"\b(center|gray|license)\b": "centre, grey, licence",
}
TITLES = {"An introduction to disk drive modeling"}


def lines(page: Path) -> list[str]:
    return page.read_text(encoding="utf-8").splitlines()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of ``page``."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    wrong = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


def missing_paths(page: Path) -> list[str]:
    """A reader's own database, tinydb, is not here."""
    found = PATH.findall(page.read_text(encoding="utf-8"))
    return [path for path in found if "tinydb" not in path and not (ROOT / path).exists()]


def long_lines(page: Path) -> list[str]:
    """Tables can't be broken, nor can a link."""
    return [
        f"{number}: {line}"
        for number, line in enumerate(lines(page), 1)
        if len(line) > LONGEST
        and not line.lstrip().startswith("|")
        and not re.search(r"\]\(\S{60,}\)?", line)
    ]


def other_spellings(page: Path) -> list[str]:
    text = " ".join(CODE.sub("", page.read_text(encoding="utf-8")).split())
    for title in TITLES:
        text = text.replace(title, "")
    return [
        f"{match[0]} (here: {ours})"
        for theirs, ours in ONE_SPELLING.items()
        for match in re.finditer(theirs, text, re.IGNORECASE)
    ]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert wrong_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert missing_paths(page) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_have_a_normal_length(page: Path) -> None:
    assert long_lines(page) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_words_are_spelled_one_way(page: Path) -> None:
    assert other_spellings(page) == []


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
    assert set(index.parent.glob("*.md")) - linked == {index}


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page, and more\n\n[good](#a-page-and-more) [gone](gone.md) [none](page.md#none) [out](https://x.y/)\n"
        "It cannot be modeled `cannot` in `src/ztune/gone.py`, `src/ztune/units.py`.\n| "
        + "table " * 30
        + "\n"
        + "word " * 30
        + "\n"
    )
    assert wrong_links(page) == ["gone.md", "page.md#none"]
    assert missing_paths(page) == ["src/ztune/gone.py"]
    assert other_spellings(page) == ["cannot (here: can't)", "modeled (here: …ll…)"]
    [line] = long_lines(page)
    assert line.startswith("6: word")
