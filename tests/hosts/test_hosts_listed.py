"""The file of hosts: what is a host, and one sentence for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune.errors import InputError
from ztune.hosts.listed import ListedHost, read_hosts


def test_hosts_are_as_ssh_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    file.write_text("# rack 1\ndb1\nroot@db2:2222  # the old one\n\nssh://me@[::1]:22/\n")
    assert read_hosts(file) == (
        ListedHost("db1", "db1", None),
        ListedHost("root@db2:2222", "root@db2", 2222),
        ListedHost("me@[::1]:22", "me@::1", 22),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("db1\n-oProxyCommand=sh\n", 'line 2: "-oProxyCommand=sh" is not a host; write HOST, USER@HOST'),
        ("db1 db2\n", 'line 1: "db1 db2" is not a host'),
        ("db1:port\n", "line 1:"),
        ("http://db1\n", "line 1:"),
        ("db1\n\ndb1\n", "line 3: db1 is in line 1 already"),
        ("# nobody\n", "lists no host"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "hosts.txt"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_hosts(file)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read_hosts(tmp_path / "gone")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_hosts(tmp_path / "bytes")
