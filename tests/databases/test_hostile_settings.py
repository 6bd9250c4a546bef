"""Configuration files of what any user can make look like a server: none holds its reader for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ztune.databases.mariadb.onhost import settings as mariadb
from ztune.databases.mongodb import settings as mongodb
from ztune.databases.postgresql.onhost import settings as postgresql
from ztune.databases.valkey.onhost import settings as valkey
from ztune.errors import ZtuneError
from ztune.onhost.look.reading import Configuration, Instance, Process, size

LONG = 200_000
PARSERS = pytest.mark.parametrize(
    ("parse", "line"),
    [
        (mariadb.parse_options, "!include {}"),
        (valkey.parse_options, "include {}"),
        (postgresql.parse_conf, "include '{}'"),
    ],
)


@PARSERS
@pytest.mark.parametrize(("included", "lines"), [("evil", 12), ("nil", 250)], ids=["itself", "nothing"])
def test_a_file_that_includes_without_end_ends(
    tmp_path: Path, parse: Callable[[Path], dict[str, str]], line: str, included: str, lines: int
) -> None:
    path = tmp_path / "evil"
    path.write_text(f"{line.format(tmp_path / included)}\n" * lines)
    with pytest.raises(ZtuneError, match="is included, and more than 200 files before it"):
        parse(path)


@PARSERS
def test_all_files_together_have_an_end(
    tmp_path: Path, parse: Callable[[Path, Configuration], dict[str, str]], line: str
) -> None:
    (tmp_path / "more").write_text("#" * 600)
    path = tmp_path / "evil"
    path.write_text(f"{line.format(tmp_path / 'more')}\n" * 2)
    with pytest.raises(ZtuneError, match="with what it includes it is larger than 16M"):
        parse(path, Configuration(200, 1000))


def test_long_lines_take_no_time(tmp_path: Path) -> None:
    # Each of these took a time that grows with the square of its length: minutes.
    path = tmp_path / "conf"
    path.write_text(f"[mysqld]\ninnodb_page_size=4k{' ' * LONG}x\n")
    assert mariadb.parse_options(path).keys() == {"innodb_page_size"}
    path.write_text(f"fsync{' ' * LONG}#\nfsync = off\n")
    assert postgresql.parse_conf(path) == {"fsync": "off"}
    words = ("redis-server", "a" * LONG, "*:7000")
    assert valkey._addresses(Process(2**22 + 1, "redis-server", words, None, None)) == [
        ("-h", "127.0.0.1", "-p", "7000")
    ]


def test_what_is_no_yaml_of_mongodbs_is_said(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "mongod.conf"
    path.write_text("a: " + "[" * 5000)
    assert set(mongodb.read(Instance(path)).unknown.values()) == {
        f"{path} is no YAML that can be read: it is too deep"
    }
    path.write_text(" " * (300 << 10))
    assert set(mongodb.read(Instance(path)).unknown.values()) == {
        f"{path} is larger than 256K, and was not read"
    }


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000 + "k", "1" * 21, "-" + "9" * 400])
def test_what_is_larger_than_any_size_stays_text(text: str) -> None:
    assert size(text) == text
    assert postgresql.value_of(text, "8kB") == text
