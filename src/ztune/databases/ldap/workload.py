"""``ldap-import``: what can be asked of it. ``ztune.databases.ldap.onhost.importing`` does it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from ztune.databases import workload as base
from ztune.databases.artifacts import Artifact
from ztune.databases.ldap.onhost import importing as ldap_import
from ztune.databases.ldap.onhost import opendj as ldap_opendj
from ztune.databases.memory import OptionalSize
from ztune.databases.workload import PowerOfTwo, Seed, Size, arc_param, param
from ztune.units import parse_size

OPENDJ = Artifact(
    name=ldap_opendj.SOFTWARE,
    coordinates=f"org.openidentityplatform.opendj:opendj-server-legacy:{ldap_opendj.VERSION}:zip",
    sha256="efcaaa6ff9e1d57e5d14f670de2a5832ef5338f74964608327a8f73caeb7d07c",
    # Of 84 MB what import and export need: no server, no web, no other database's driver.
    members=(
        *(f"lib/{name}.jar" for name in ("opendj", "opendj-slf4j-adapter", "opendj-je-backend")),
        *(f"lib/{name}*.jar" for name in ("com.sleepycat", "com.fasterxml", "de.odysseus", "org.slf4j")),
        *(f"lib/{name}*.jar" for name in ("org.bouncycastle", "io.reactivex", "org.reactivestreams")),
        *("lib/org.openidentityplatform.commons.*.jar", "lib/com.google.guava*.jar"),
        *(
            f"lib/org.openidentityplatform.opendj.opendj-{name}.jar"
            for name in ("cli", "config", "core", "rest2ldap")
        ),
        *("template/config/config.ldif", "template/config/admin-backend.ldif"),
        *("template/config/buildinfo", "template/config/schema/*.ldif"),
        "template/config/upgrade/schema.ldif.*",
    ),
)


class LdapParameters(base.InputParameters):
    """The parameters of ``ldap-import``."""

    server: Literal["389-ds", "opendj"] = "389-ds"
    """Who imports: 389 Directory Server with Berkeley DB (`ns-slapd ldif2db`), or OpenDJ with its Java
    Edition backend (`import-ldif --offline`)."""
    input: Literal["telco", "file"] = "telco"
    """Where the entries come from. `telco`: subscribers of a telephone company, the same for the same
    `entries`, `services` and `seed` everywhere. `file`: your own."""
    file: str = ""
    """Path of your own LDIF file, plain or `.gz`: one tree, its root first. `input` is then `file`. It must
    be there on the machine where the job runs."""
    entries: int = param(20_000, ge=0, le=1_000_000_000)
    """How many entries are imported, from its beginning. 0: all of your file."""
    size: OptionalSize = "0"
    """About the size of the LDIF of `telco` instead of `entries`. 0: `entries` counts."""
    arc: Size = arc_param()
    imports: int = param(1, ge=1, le=100)
    """How often the same file is imported, each time into an empty database: what is read once is found in no
    cache. The time is that of all; `last_import_s` of the result is that of the last."""
    services: int = param(16, ge=0, le=1000)
    """How many services a `telco` subscriber has: some 200 bytes each. 16 make entries of 4.4 KB, near the
    study's 4.7."""
    page_size: PowerOfTwo = param("8K", ge=4096, le=65536)
    """Page of 389 Directory Server's files: a power of two. 8 KiB is its own default."""
    cache: Size = param("16M", ge=1 << 20)
    """Pages that 389 Directory Server keeps while it imports (`nsslapd-import-cachesize`), by default half of
    the memory that is free."""
    heap: Size = param("512M", ge=256 << 20)
    """Most memory that OpenDJ's Java takes for objects; the import sorts in a part of it."""
    seed: Seed = 1
    """Decides the `telco` subscribers."""

    @model_validator(mode="after")
    def _is_whole(self) -> LdapParameters:
        if self.input == "file" and self.size != "0":
            raise ValueError("size is for input=telco; of your own file `entries` are taken")
        if self.input == "telco" and self.entries < 3:
            raise ValueError("entries must be 3 at least: the root, its branch and a subscriber")
        return self


class LdapImport(base.JobWorkload):
    """An LDIF file into a directory server's database."""

    name = "ldap-import"
    summary = "imports an LDIF file into 389 Directory Server or OpenDJ"
    Parameters = LdapParameters
    job_class = ldap_import.LdapImport
    durability = base.KNOWN
    needs = ("389-ds", "java")
    artifacts = (OPENDJ,)
    roles_from = "source, data; temp too with server=opendj"

    def resolved(self) -> dict[str, Any]:
        """Return the parameters with as many entries as an LDIF of that size has."""
        found = super().resolved()
        if found["size"] != "0":
            each = ldap_import.bytes_per_entry(int(found["services"]))
            found["entries"] = max(3, parse_size(found["size"]) // each)
        return found
