"""What ``ldap-import`` needs of a directory server: where its files lie, its set-up, its two programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ztune.databases.ldap.onhost import subscribers
from ztune.databases.ldap.onhost.ldif import LdifFacts
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.settings import check as check_settings


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a server stands."""

    workdir: WorkDir
    home: Path
    """The account's, where the programs stand."""
    paths: Mapping[str, Path]
    """The directory of each role."""
    account: Account

    @property
    def instance(self) -> Path:
        """The directory of what is no part of the database: configuration, logs, locks.

        Not in ``home``: there the account could put a link in its place while root still fills it.
        """
        return self.workdir.path / "instance"


def indexes(telco: bool) -> dict[str, tuple[str, ...]]:
    """Return attribute → kinds of index: what both servers give a new database, and for ``telco`` entries
    what a subscriber is looked up by.
    """
    full = ("equality", "presence", "substring")
    found = dict.fromkeys(("cn", "givenName", "mail", "sn", "telephoneNumber"), full)
    return found | dict.fromkeys(("uid", "member", *(subscribers.INDEXED if telco else ())), ("equality",))


class DirectoryServer:
    """One server. Its programs import and export without the server itself: no port is ever opened."""

    title: ClassVar[str]
    """As messages call it."""
    roles: ClassVar[tuple[str, ...]]
    """The roles that its files can be parted into."""
    account: ClassVar[str]
    """The system user that it is to run as, where there is one."""
    SETTINGS: ClassVar[Mapping[str, tuple[str, ...]]]
    """What a layout may choose, and the words that each takes; none: a whole number."""
    OWNED: ClassVar[Mapping[str, str]]
    """What it may not, and why."""

    def __init__(
        self, params: Mapping[str, Any], database: Mapping[str, str], *, patience: float = 1.0
    ) -> None:
        self.params = params
        self.database = database
        self.patience = patience

    def check_settings(self) -> None:
        """Refuse settings that aren't the server's or not the layout's. Raises InputError."""
        check_settings(self.title, self.database, self.SETTINGS, self.OWNED)

    def check(self) -> str:
        """Return the version of what would run.

        Raises:
            MissingError: it isn't here.
            InputError: a setting of the layout is unknown here or not the layout's to set.
        """
        raise NotImplementedError

    def settings(self) -> dict[str, str]:
        """Return the settings that matter for I/O: the parameters, overridden by the layout's."""
        raise NotImplementedError

    def configure(self, ground: Ground, facts: LdifFacts, telco: bool) -> None:
        """Write the server's configuration for a database with the entries of ``facts``.

        Args:
            ground: where.
            facts: of the input.
            telco: whether they are ours, and are held against the schema; a user's own may be that of any.
        """
        raise NotImplementedError

    def import_command(self, ground: Ground, source: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
        """Return the program that imports the LDIF file ``source``, and its environment."""
        raise NotImplementedError

    def export_command(self, ground: Ground, target: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
        """Return the program that exports every entry into the LDIF file ``target``, and its environment."""
        raise NotImplementedError

    def log(self, ground: Ground) -> Path:
        """Return the file where the server writes what its programs do not say themselves."""
        raise NotImplementedError

    def claims(self, said: str) -> int | None:
        """Return how many entries the program says it imported, from what it ``said``; None: nothing."""
        raise NotImplementedError

    def complaint(self, said: str) -> str:
        """Return the first line of what it ``said`` that tells of an entry it left out, or nothing."""
        raise NotImplementedError

    def page_sizes(self) -> dict[str, int]:
        """Return the page size of the database, in bytes, by role: a log has none."""
        return {}
