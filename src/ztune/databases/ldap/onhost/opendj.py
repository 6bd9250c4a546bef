"""OpenDJ with its Java Edition backend: ``import-ldif`` and ``export-ldif`` without a server.

The instance is a directory with OpenDJ's own template of a configuration and one backend more. ``setup``,
which makes keys, asks for host names and starts the server, has no part in it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ztune.databases.ldap.onhost import subscribers
from ztune.databases.ldap.onhost.ldif import LdifFacts, line, written
from ztune.databases.ldap.onhost.server import DirectoryServer, Ground, indexes
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software
from ztune.units import parse_size

VERSION = "5.0.3"
SOFTWARE = f"opendj-{VERSION}"
BACKEND = "userRoot"
# What its import takes from the configuration of a JE backend (JEStorage, buildConfiguration); the rest is
# for a server that runs.
SETTINGS: dict[str, tuple[str, ...]] = {
    "db-log-file-max": (),
    "entries-compressed": ("true", "false"),
    "compact-encoding": ("true", "false"),
}
_OWNED = {
    "db-directory": "the role data says where the database lies",
    "db-cache-size": "an import takes a cache of 32 MB whatever it says",
    "je-property": "an import takes no notice of it",
}
_CLASSES = {"import": "org.opends.server.tools.ImportLDIF", "export": "org.opends.server.tools.ExportLDIF"}


class OpenDj(DirectoryServer):
    """OpenDJ's import and export."""

    title: ClassVar[str] = "OpenDJ"
    # The log of Java Edition is the database: there is no other that could lie elsewhere.
    roles: ClassVar[tuple[str, ...]] = ("source", "data", "temp")
    account: ClassVar[str] = "opendj"
    SETTINGS = SETTINGS
    OWNED = _OWNED
    _java: tuple[Path, str] | None = None

    def settings(self) -> dict[str, str]:
        """Return the settings that matter for I/O."""
        return {
            "db-log-file-max": str(100 << 20),
            "entries-compressed": "false",
            "compact-encoding": "true",
            **self.database,
        }

    def check(self) -> str:
        """Return the versions of OpenDJ and Java."""
        if self._java is None:
            self.check_settings()
            found = software.java()
            software.require(SOFTWARE, f"{self.title} {VERSION}", "ldap-import")
            self._java = found
        return f"{self.title} {VERSION}, Java {self._java[1]}"

    def configure(self, ground: Ground, facts: LdifFacts, telco: bool) -> None:
        """Write the configuration and the schema, and put the programs where the account can read them."""
        kept = software.require(SOFTWARE, f"{self.title} {VERSION}", "ldap-import")
        if not (ground.workdir.path / "lib").is_dir():
            software.lend(sorted(kept.glob("*.jar")), "lib", ground.workdir, ground.account)
        top = ground.instance
        shutil.rmtree(top, ignore_errors=True)
        for name in (
            "config/schema",
            "config/upgrade",
            "logs",
            "locks",
            "bak",
            "db",
            "classes",
            "import-tmp",
        ):
            (top / name).mkdir(mode=0o700, parents=True)
        for path in kept.glob("*.ldif"):
            # The schema's files begin with two digits, which say in which order they are read.
            folder = "config/schema" if path.name[:2].isdigit() else "config"
            shutil.copyfile(path, top / folder / path.name)
        # What the schema was when it was released: it looks for changes since.
        for path in kept.glob("schema.ldif.*"):
            shutil.copyfile(path, top / "config/upgrade" / path.name)
        shutil.copyfile(kept / "buildinfo", top / "config" / "buildinfo")
        (top / "config/schema/98-telco.ldif").write_bytes(subscribers.schema())
        config = (kept / "config.ldif").read_bytes()
        (top / "config/config.ldif").write_bytes(
            config.rstrip(b"\n") + b"\n\n" + self._backend(ground, facts, telco)
        )
        places.hand_over(top, ground.account)

    def _backend(self, ground: Ground, facts: LdifFacts, telco: bool) -> bytes:
        dn = f"ds-cfg-backend-id={BACKEND},cn=Backends,cn=config"
        backend = written(
            dn,
            [
                "top",
                "ds-cfg-backend",
                "ds-cfg-local-backend",
                "ds-cfg-pluggable-backend",
                "ds-cfg-je-backend",
            ],
            {
                "ds-cfg-backend-id": BACKEND,
                "ds-cfg-enabled": "true",
                "ds-cfg-java-class": "org.opends.server.backends.jeb.JEBackend",
                "ds-cfg-writability-mode": "enabled",
                "ds-cfg-base-dn": facts.suffix,
                "ds-cfg-db-directory": str(ground.paths["data"]),
                **{f"ds-cfg-{name}": value for name, value in self.settings().items()},
            },
        )
        branch = written(f"cn=Index,{dn}", ["top", "ds-cfg-branch"], {"cn": "Index"})
        found = [backend, branch]
        # Names are looked up by it, whatever else is indexed.
        for name, kinds in {"objectClass": ("equality",), **indexes(telco)}.items():
            entry = written(
                f"ds-cfg-attribute={name},cn=Index,{dn}",
                ["top", "ds-cfg-backend-index"],
                {"ds-cfg-attribute": name},
            )
            found.append(entry + b"".join(line("ds-cfg-index-type", kind) for kind in kinds))
        return b"\n".join(found)

    def import_command(self, ground: Ground, source: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
        """Return ``import-ldif --offline``."""
        checked = [] if self.params["input"] == "telco" else ["--skipSchemaValidation"]
        more: list[str | Path] = [
            "--tmpDirectory",
            ground.paths["temp"],
            "--rejectFile",
            ground.home / "rejected.ldif",
            *checked,
        ]
        return self._command("import", ground, source, *more)

    def export_command(self, ground: Ground, target: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
        """Return ``export-ldif --offline``."""
        return self._command("export", ground, target)

    def _command(
        self, what: str, ground: Ground, ldif: Path, *more: str | Path
    ) -> tuple[Sequence[str | Path], dict[str, str]]:
        assert self._java is not None
        top = ground.instance
        command: list[str | Path] = [
            self._java[0],
            f"-Xmx{parse_size(self.params['heap'])}",
            f"-Djava.io.tmpdir={ground.home}",
            "-cp",
            f"{ground.workdir.path / 'lib'}/*",
            _CLASSES[what],
            *("--configFile", top / "config" / "config.ldif", "--offline"),
            *("--backendID", BACKEND, "--ldifFile", ldif, *more),
        ]
        return command, {"INSTANCE_ROOT": str(top), "INSTALL_ROOT": str(top)}

    def log(self, ground: Ground) -> Path:
        """Return the log of errors, which has everything."""
        return ground.instance / "logs" / "errors"

    def claims(self, said: str) -> int | None:
        """Return how many entries ``import-ldif`` says it imported."""
        match = re.search(r"Processed (\d+) entries, imported (\d+)", said)
        return int(match[2]) if match else None

    def complaint(self, said: str) -> str:
        """Return the first line about an entry that was left out."""
        match = re.search(r"^.*severity=(?:ERROR|WARNING).*? msg=(.*)$", said, re.MULTILINE)
        return match[1].strip() if match else ""
