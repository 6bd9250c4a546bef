"""The file that lists hosts: one on each line, as ssh takes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ztune import files
from ztune.errors import InputError
from ztune.places.ssh import parse_url

_SCHEME = "ssh://"


@dataclass(frozen=True)
class ListedHost:
    """A host that ssh knows."""

    name: str
    """As it is listed, without ssh://."""
    destination: str
    """For ssh: ``user@host``, or an alias of its configuration."""
    port: int | None


def read_hosts(path: Path) -> tuple[ListedHost, ...]:
    """Return the hosts in a file: ``[ssh://][user@]host[:port]`` a line; # begins a comment.

    Raises InputError for a file that can't be read or lists none, and for a line that is no host or one that
    is there twice, with its number.
    """
    try:
        lines = files.read(path).decode().splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"the hosts in {path} can't be read: {why}") from None
    found: dict[ListedHost, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name = words[0].removeprefix(_SCHEME)
        try:
            if len(words) > 1:
                raise InputError
            _host, destination, port = parse_url(_SCHEME + name)
        except InputError:
            raise InputError(
                f'{path}, line {number}: "{" ".join(words)}" is not a host; '
                "write HOST, USER@HOST or USER@HOST:PORT, one on each line"
            ) from None
        one = ListedHost(name.rstrip("/"), destination, port)
        if one in found:
            raise InputError(
                f"{path}, line {number}: {one.name} is in line {found[one]} already; leave one of them out"
            )
        found[one] = number
    if not found:
        raise InputError(f"{path} lists no host; write HOST, USER@HOST or USER@HOST:PORT, one on each line")
    return tuple(found)
