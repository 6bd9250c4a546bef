"""389 Directory Server 2.x with Berkeley DB: ``ns-slapd ldif2db`` and ``db2ldif`` on an instance of our own.

The instance is a configuration directory, made from the template that the package brings; ``dscreate``, which
wants systemd or root, has no part in it, and no server ever runs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from ztune.databases.ldap.onhost import subscribers
from ztune.databases.ldap.onhost.ldif import LdifFacts, line, written
from ztune.databases.ldap.onhost.server import DirectoryServer, Ground, indexes
from ztune.errors import MissingError
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.packages import install_command
from ztune.units import parse_size

BACKEND = "userRoot"
_TEMPLATE = Path("/usr/share/dirsrv/data/template-dse-minimal.ldif")
_DATABASES = "cn=ldbm database,cn=plugins,cn=config"
# By default 389 takes half of the free memory for the import (nsslapd-import-cache-autosize), and an entry
# cache of 512,000 bytes, which an import's queue of entries is a quarter of: it crawls.
_ENTRY_CACHE = 512 << 20
# Of pages, for what is not an import. Its default is too small for large ones.
_EXPORT_CACHE = 64 << 20
_PAGES = ("4096", "8192", "16384", "32768", "65536")
SETTINGS: dict[str, tuple[str, ...]] = {
    "nsslapd-db-page-size": _PAGES,
    "nsslapd-db-index-page-size": _PAGES,
    "nsslapd-import-cachesize": (),
    "nsslapd-cachememsize": (),
}
_KINDS = {"equality": "eq", "presence": "pres", "substring": "sub"}
_OWNED = {
    "nsslapd-directory": "the role data says where the database lies",
    "nsslapd-db-logdirectory": "an import writes no log",
    "nsslapd-import-cache-autosize": "it would follow from free memory; set nsslapd-import-cachesize",
    "nsslapd-cache-autosize": "it would follow from the memory there is; set nsslapd-cachememsize",
}


class Server389(DirectoryServer):
    """``ns-slapd``'s import and export."""

    title: ClassVar[str] = "389 Directory Server"
    # An import is not a transaction: nothing is ever written where nsslapd-db-logdirectory says.
    roles: ClassVar[tuple[str, ...]] = ("source", "data")
    account: ClassVar[str] = "dirsrv"
    SETTINGS = SETTINGS
    OWNED = _OWNED
    _version = ""

    def settings(self) -> dict[str, str]:
        """Return the settings that matter for I/O."""
        page = str(parse_size(self.params["page_size"]))
        return {
            "nsslapd-db-page-size": page,
            "nsslapd-db-index-page-size": self.database.get("nsslapd-db-page-size", page),
            "nsslapd-import-cachesize": str(parse_size(self.params["cache"])),
            "nsslapd-cachememsize": str(_ENTRY_CACHE),
            **self.database,
        }

    def check(self) -> str:
        """Return the version."""
        if not self._version:
            self.check_settings()
            version = software.version_of(
                [_program(), "-v"], r"389-Directory/(\d[\w.]*)", patience=self.patience
            )
            self._version = f"{self.title} {version}"
        return self._version

    def configure(self, ground: Ground, facts: LdifFacts, telco: bool) -> None:
        """Write ``dse.ldif`` and the schema, and make the directories that it names."""
        top = ground.instance
        shutil.rmtree(top, ignore_errors=True)
        names = ("conf", "conf/schema", "log", "lock", "tmp", "region")
        folders = {name: top / name for name in names}
        for path in (top, *folders.values()):
            path.mkdir(mode=0o700)
        (folders["conf/schema"] / "98telco.ldif").write_bytes(subscribers.schema())
        (folders["conf"] / "dse.ldif").write_bytes(self._dse(ground, folders, facts.suffix, telco))
        # The template names it: orders of national alphabets, of which our indexes have none.
        (folders["conf"] / "slapd-collations.conf").touch()
        places.hand_over(top, ground.account)

    def _dse(self, ground: Ground, folders: Mapping[str, Path], suffix: str, telco: bool) -> bytes:
        values = {
            "schema_dir": folders["conf/schema"],
            "lock_dir": folders["lock"],
            "run_dir": folders["lock"],
            "inst_dir": folders["conf"],
            "config_dir": folders["conf"],
            "cert_dir": folders["conf"],
            "log_dir": folders["log"],
            "db_dir": ground.paths["data"],
            "fqdn": "localhost",
            "ds_port": "0",
            "ds_user": ground.account.name,
            "rootdn": "cn=Directory Manager",
        }
        text = _TEMPLATE.read_text(encoding="utf-8")
        text = re.sub(r"%(\w+)%", lambda match: str(values.get(match[1], folders["tmp"])), text)
        # Nobody ever binds: the manager has no password; no socket, whose path could be too long.
        text = re.sub(r"^nsslapd-(?:rootpw|ldapi\w*):.*\n", "", text, flags=re.MULTILINE)
        head, _, rest = text.partition("\n\n")
        word = "on" if telco else "off"
        head += f"\nnsslapd-schemacheck: {word}\nnsslapd-syntaxcheck: {word}\n"
        settings = self.settings()
        berkeley = {
            "nsslapd-db-logdirectory": str(folders["region"]),
            "nsslapd-db-home-directory": str(folders["region"]),
            "nsslapd-cache-autosize": "0",
            "nsslapd-dbcachesize": str(_EXPORT_CACHE),
            "nsslapd-import-cache-autosize": "0",
            **{name: value for name, value in settings.items() if name != "nsslapd-cachememsize"},
        }
        # A name as the value of a name (RFC 4514).
        tree = re.sub(r"""[\\=,+"<>;#]""", lambda match: f"\\{ord(match[0]):02X}", suffix)
        more = [
            written(f"cn=bdb,cn=config,{_DATABASES}", ["extensibleObject"], {"cn": "bdb", **berkeley}),
            written(
                f"cn={BACKEND},{_DATABASES}",
                ["top", "extensibleObject", "nsBackendInstance"],
                {
                    "cn": BACKEND,
                    "nsslapd-suffix": suffix,
                    "nsslapd-directory": str(ground.paths["data"] / BACKEND),
                    "nsslapd-cachememsize": settings["nsslapd-cachememsize"],
                },
            ),
            written(f"cn=index,cn={BACKEND},{_DATABASES}", ["top", "extensibleObject"], {"cn": "index"}),
            *(_index(name, kinds) for name, kinds in indexes(telco).items()),
            written(
                f"cn={tree},cn=mapping tree,cn=config",
                ["top", "extensibleObject", "nsMappingTree"],
                {"cn": suffix, "nsslapd-state": "backend", "nsslapd-backend": BACKEND},
            ),
        ]
        return b"\n".join([head.encode(), rest.strip("\n").encode() + b"\n", *more])

    def import_command(self, ground: Ground, source: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
        """Return ``ns-slapd ldif2db``."""
        return self._command("ldif2db", ground, "-i", source), {}

    def export_command(self, ground: Ground, target: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
        """Return ``ns-slapd db2ldif``."""
        return self._command("db2ldif", ground, "-a", target), {}

    def _command(self, mode: str, ground: Ground, *more: str | Path) -> list[str | Path]:
        return [_program(), mode, "-D", ground.instance / "conf", "-n", BACKEND, *more]

    def log(self, ground: Ground) -> Path:
        """Return the log of errors, which has everything."""
        return ground.instance / "log" / "errors"

    def claims(self, said: str) -> int | None:
        """Return how many entries ``ldif2db`` says it processed."""
        found = re.findall(r"Processed (\d+) entries", said)
        return int(found[-1]) if found else None

    def complaint(self, said: str) -> str:
        """Return the first line about an entry that was left out."""
        match = re.search(r"^.*?((?:WARNING: )?[Ss]kipping.*)$", said, re.MULTILINE)
        return match[1].strip() if match else ""

    def page_sizes(self) -> dict[str, int]:
        """Return Berkeley DB's page size."""
        return {"data": int(self.settings()["nsslapd-db-page-size"])}


def _program() -> Path:
    # Where it lies is not on everybody's path.
    found = shutil.which("ns-slapd", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if found is None or not _TEMPLATE.is_file():
        raise MissingError(
            f"389 Directory Server's ns-slapd was not found; install it with `{install_command('389-ds')}`"
        )
    return Path(found)


def _index(name: str, kinds: Sequence[str]) -> bytes:
    entry = written(
        f"cn={name},cn=index,cn={BACKEND},{_DATABASES}",
        ["top", "nsIndex"],
        {"cn": name, "nsSystemIndex": "false"},
    )
    return entry + b"".join(line("nsIndexType", _KINDS[kind]) for kind in kinds)
