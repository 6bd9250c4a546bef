"""Writes the tables of parameters in ``docs/workloads.md`` from the parameters themselves.

``python -m ztune.databases.docs docs/workloads.md``; a test fails when the file isn't current.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ztune.databases import registry
from ztune.databases.workload import ParameterDoc
from ztune.errors import InputError

_BLOCK = re.compile(r"(<!-- parameters: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(parameters: list[ParameterDoc]) -> str:
    """Return the parameters as a Markdown table."""
    lines = [
        "| parameter | type | default | unit | allowed | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for p in parameters:
        cells = (f"`{p.name}`", p.type, f"`{p.default}`", p.unit, p.allowed, p.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def render(text: str) -> str:
    """Return the page ``text`` with the table of every marked block made anew.

    Raises:
        InputError: a block names no workload, or a workload of ours has no block.
    """
    seen = [match["name"] for match in _BLOCK.finditer(text)]
    lacking = [
        entry.name for entry in registry.entries() if entry.source == "ztune" and entry.name not in seen
    ]
    if lacking:
        raise InputError(f"docs: no block '<!-- parameters: {lacking[0]} -->' for the workload {lacking[0]}")
    return _BLOCK.sub(lambda m: m[1] + table(registry.get(m["name"]).Parameters.docs()) + m[3], text)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
