"""The beginning of a third party's package for a database: it works, on a tiny database of its own."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from pathlib import Path

from ztune.databases import database, registry
from ztune.errors import InputError

_NAME = re.compile(r"[a-z][a-z0-9]{0,30}")
_BLOCK = re.compile(r"(?P<head>```(?:python|toml)\n# (?P<path>\S+\.(?:py|toml))\n).*?```", re.DOTALL)
_ENDING = ".txt"  # so that nothing takes the templates for modules


def files(name: str) -> dict[str, str]:
    """Return path below the package's folder → text, for a database called ``name``.

    Raises:
        InputError: no such name can be used.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(
            f"{name!r} can't be a database's name: write small letters and digits, a letter first"
        )
    module = f"ztune_{name}"
    found: dict[str, str] = {}
    top = resources.files(__package__).joinpath("templates")
    for folder in ("", "package", "package/onhost", "tests"):
        for template in top.joinpath(folder).iterdir():
            if template.name.endswith(_ENDING):
                path = f"{folder}/{template.name.removesuffix(_ENDING)}".lstrip("/")
                path = path.replace("package/", f"{module}/", 1).replace("test_package", f"test_{name}")
                text = template.read_text("utf-8")
                for mark, value in (("name", name), ("Name", name.capitalize()), ("module", module)):
                    text = text.replace(f"@{mark}@", value)
                found[path] = text
    return dict(sorted(found.items()))


def write(name: str, into: Path) -> list[Path]:
    """Write the skeleton into the new folder ``ztune-NAME`` below ``into``; return its files.

    Raises:
        InputError: the name is taken or can't be used, or the folder is there or can't be written.
    """
    made = files(name)
    if name in [one.name for one in database.every()] or name in registry.names():
        raise InputError(f"there is a database or workload {name!r} already")
    top = into / f"ztune-{name}"
    try:
        top.mkdir()
        for path, text in made.items():
            (top / path).parent.mkdir(exist_ok=True, parents=True)
            (top / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{top} can't be made: {error.strerror}") from None
    return [top / path for path in made]


def render(page: str) -> str:
    """Return a page of the documentation with each block of code that begins with a file's path made anew.

    It shows that file of the skeleton for ``tinydb``.

    Raises:
        InputError: there is no such file.
    """
    written = files("tinydb")

    def block(match: re.Match[str]) -> str:
        if match["path"] not in written:
            raise InputError(f"docs: the skeleton has no file {match['path']}")
        return f"{match['head']}{written[match['path']].strip()}\n```"

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    shown = Path(sys.argv[1])
    shown.write_text(render(shown.read_text(encoding="utf-8")), encoding="utf-8")
