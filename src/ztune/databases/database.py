"""A database: one folder, and what its file ``database.toml`` declares.

Ours are the folders beside this file; others' are packages that an entry point of the group
``ztune.databases`` names. Nothing of a database is imported before it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ztune import shipped
from ztune.databases import entry_points
from ztune.databases.rules import RoleRule, compile_glob
from ztune.errors import InputError
from ztune.onhost.declared import ANY, Declared, KnownClass
from ztune.onhost.words import DurabilityClass, Role

AllowedClass = Annotated[KnownClass, AfterValidator(DurabilityClass)]
"""A class of durability that can be asked for or declared, as TOML writes it."""
GROUP = "ztune.databases"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FAMILIES = ("debian", "fedora", "suse", "arch", "alpine", "freebsd", "")
"""Of operating systems, as ``ztune.packages.os_family`` has them; the last: any other."""


def _reference(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise ValueError(f"{text!r} should be MODULE:CLASS, with a module of the folder")
    return text


def _rule(text: str) -> str:
    try:
        RoleRule.parse(text)
    except InputError as error:
        raise ValueError(str(error)) from None
    return text


def _glob(text: str) -> str:
    try:
        compile_glob(text, text)
    except InputError as error:
        raise ValueError(str(error)) from None
    return text


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _families(names: dict[str, str]) -> dict[str, str]:
    for family in names:
        if family not in _FAMILIES:
            raise ValueError(f"{family!r} is none of {', '.join(map(repr, _FAMILIES))}")
    if not {"debian", ""} & set(names):
        raise ValueError('it names no packages for debian, nor for any other system ("")')
    return names


Reference = Annotated[str, AfterValidator(_reference)]


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BeforeInstall(_Facts):
    """A command that must come before a package is installed, so that it changes nothing else on the host."""

    package: str
    family: str = Field(default="", description="The systems that need it; without it all.")
    unless: str = Field(default="", description="Not needed where this package is installed already.")
    shell: str = Field(description="A line for /bin/sh, run as root.")
    undo: str = Field(default="", description="Run at the end, whatever came of the installation.")
    why: str = Field(description="What `ztune setup` says of it.")


class Files(_Facts):
    """The files of a database, as its documentation names them."""

    name: str = Field(description="How sentences call the database, in small letters.")
    source: str = Field(description="The documentation that names the files.")
    strength: Literal["endings", "folders"] = Field(
        default="endings",
        description="What the rules go by: those by folders override those by the ending of a name.",
    )
    rules: tuple[Annotated[str, AfterValidator(_rule)], ...] = Field(
        description="GLOB=ROLE, a later one overrides an earlier one; the role `-`: none."
    )
    anchors: tuple[Annotated[str, AfterValidator(_glob)], ...] = Field(
        default=(),
        description="Globs of files that no other database has. Where none of them is at hand, other files "
        "that the rules match are not taken for this database's.",
    )
    beside: Literal["", "folder", "name"] = Field(
        default="",
        description="Where an anchor must be for the rules to match at all: in the file's folder, or there "
        "with its name up to the ending. Without it a rule gives its role wherever anchors are.",
    )
    in_place: bool = Field(
        default=False,
        description="Whether a server reads its files and writes their pages over: files that a process "
        "writes once, from front to back, and that nobody reads, are a copy of a database then.",
    )
    preallocated: tuple[Annotated[str, AfterValidator(_expression)], ...] = Field(
        default=(),
        description=(
            "Regular expressions for the ends of paths of files that are allocated in full before use."
        ),
    )
    logs: tuple[Annotated[str, AfterValidator(_expression)], ...] = Field(
        default=(),
        description=(
            "Regular expressions, one for each log, for the ends of paths of files of the role `wal` that "
            "one thread syncs for all who wait to commit."
        ),
    )
    buffered: tuple[Annotated[str, AfterValidator(_expression)], ...] = Field(
        default=(),
        description=(
            "Regular expressions for the ends of paths of files that are opened with O_DIRECT only where the "
            "kernel says how large a block of their disk is. Of ZFS it does not."
        ),
    )

    @property
    def parsed(self) -> tuple[RoleRule, ...]:
        """The rules."""
        return tuple(RoleRule.parse(text) for text in self.rules)

    @property
    def anchor(self) -> re.Pattern[str] | None:
        """What a path of one of the anchors looks like, None where there are none."""
        found = [compile_glob(text, text).pattern for text in self.anchors]
        return re.compile("|".join(f"(?:{one})" for one in found), re.DOTALL) if found else None


class Observed(_Facts):
    """A kind of database that ``ztune observe`` finds and reads."""

    kind: str = Field(description="How an observation calls it.")
    reader: str = Field(description="The folder's module with `find` and `read`.")
    alone: bool = Field(
        default=False,
        description="Its files are a database without a server: they are looked for below what was asked "
        "for, not above it.",
    )
    page: str = Field(default="", description="The setting that holds the size of its pages.")
    cache: tuple[str, ...] = Field(
        default=(), description="The settings whose sizes together are its own cache."
    )


class Loses(_Facts):
    """Values with which a power cut loses something."""

    values: tuple[str, ...] = Field(description="In small letters; `*` stands for any other value.")
    why: str = Field(description="The sentence after the setting's name.")


class Setting(_Facts):
    """What the values of one setting mean for durability. A value that is not here is not known."""

    source: str = Field(description="The documentation that says so.")
    safe: tuple[str, ...] = Field(default=(), description="Values with which nothing acknowledged is lost.")
    last_seconds: Loses | None = Field(
        default=None, alias="last-seconds", description="Values with which the last commits are lost."
    )
    corrupt: Loses | None = Field(default=None, description="Values with which the database may be damaged.")
    torn_page: int | None = Field(
        default=None,
        gt=0,
        description=(
            "It protects against torn pages, unless it is off: "
            "the bytes of a page where no setting says otherwise."
        ),
    )

    def answers(self, name: str) -> dict[str, tuple[DurabilityClass, str]]:
        """Return value → class, and the sentence behind it; of the setting ``name``."""
        found = dict.fromkeys(self.safe, (DurabilityClass.NOTHING, ""))
        for klass, loses in (
            (DurabilityClass.CORRUPT, self.corrupt),
            (DurabilityClass.LAST_SECONDS, self.last_seconds),
        ):
            for value in loses.values if loses is not None else ():
                assert loses is not None
                found[value] = (klass, f"{name if value == ANY else f'{name}={value}'}: {loses.why}")
        return found


class Combined(_Facts):
    """Settings that only together lose something."""

    source: str
    settings: dict[str, tuple[str, ...]] = Field(description="Setting → the values meant.")
    defaults: dict[str, str] = Field(default_factory=dict, description="Values of settings that are not set.")
    class_: AllowedClass = Field(alias="class")
    why: str

    def holds(self, settings: Mapping[str, str]) -> bool:
        """Say whether ``settings`` are so."""
        given = {**self.defaults, **settings}
        return all(given.get(name, "").lower() in values for name, values in self.settings.items())


class Durability(_Facts):
    """What a power cut loses of the database."""

    default: AllowedClass | None = Field(
        default=None, description="As it is set up unless told otherwise; none: not known."
    )
    together: int | None = Field(
        default=None,
        ge=0,
        description="The most operations that one sync acknowledges, such as the number of clients; 0: they "
        "are not acknowledged one by one.",
    )
    source: str = Field(default="", description="Where `neutral` is from.")
    neutral: tuple[str, ...] = Field(
        default=(), description="Settings that make no difference, whatever their value."
    )
    settings: dict[str, Setting] = Field(default_factory=dict)
    combined: tuple[Combined, ...] = ()


class Offer(_Facts):
    """Settings that are worth trying together where the files are on ZFS."""

    set: dict[str, str] = Field(min_length=1, description="Setting → value, as a layout has it.")
    where: dict[str, str] = Field(
        default_factory=dict, description="Only where these settings are so; none: wherever it differs."
    )
    source: str = Field(description="Who advises it.")


class Settings(_Facts):
    """What else is to be known of settings."""

    reload: tuple[str, ...] = Field(
        default=(), description="In force after the server reads its configuration again."
    )
    anew: tuple[str, ...] = Field(default=(), description="In force only in a database that is made anew.")
    pages: dict[str, int] = Field(
        default_factory=dict, description="Settings that hold the size of a page → bytes that they count in."
    )
    direct: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Settings that have files of the roles data and index opened with O_DIRECT → the values.",
    )
    offers: tuple[Offer, ...] = Field(
        default=(),
        description="What `ztune tune` tries on top of the layout found, the most promising first.",
    )


class Facts(_Facts):
    """``database.toml``."""

    title: str = Field(description="How sentences call the database.")
    listed: int = Field(default=1000, description="Where its workloads stand in lists; else by name.")
    workloads: dict[str, Reference] = Field(
        default_factory=dict, description="Workload → `module:Class` in the folder."
    )
    jobs: dict[str, Reference] = Field(
        default_factory=dict,
        description="Names of jobs in specs of earlier versions; no new ones.",
    )
    crash: dict[str, Reference] = Field(
        default_factory=dict, description="Workload → the class that crash tests run."
    )
    packages: dict[str, Annotated[dict[str, str], AfterValidator(_families)]] = Field(
        default_factory=dict,
        description="What must be installed → family of systems → names of packages, between spaces.",
    )
    before_install: tuple[BeforeInstall, ...] = Field(
        default=(), description="Commands that come before a package is installed."
    )
    apart: dict[Role, str] = Field(
        default_factory=dict,
        description="Roles whose files a setting puts into a directory of their own → the setting. Without "
        "it a role whose files lie beside another's has no dataset of its own.",
    )
    files: tuple[Files, ...] = ()
    observed: tuple[Observed, ...] = ()
    durability: Durability = Durability()
    settings: Settings = Settings()


@dataclass(frozen=True)
class Database:
    """One database."""

    name: str
    """Of its folder, or of a third party's entry point."""
    module: str
    """Of the folder, as Python imports it."""
    source: str
    """``ztune``, or the name of the package that brought it."""
    folder: Path
    facts: Facts

    @property
    def own(self) -> bool:
        """Whether it is ztune's own."""
        return self.source == "ztune"

    def reference(self, inside: str) -> str:
        """Return ``module:Class`` of what the facts call ``inside``."""
        return f"{self.module}.{inside}"

    def load(self, inside: str) -> Any:
        """Import what the facts call ``inside``: ``module:Class``, or a module.

        Raises:
            InputError: it can't be imported; of ours, what was raised.
        """
        module, _, attribute = inside.partition(":")
        try:
            found = importlib.import_module(f"{self.module}.{module}")
            return getattr(found, attribute) if attribute else found
        except (Exception, SystemExit) as error:
            if self.own:
                raise
            raise InputError(
                f"{self.reference(inside)} of database {self.name!r}, package {self.source!r}, can't be "
                f"loaded: {entry_points.one_line(error)}"
            ) from error

    @property
    def declared(self) -> Declared:
        """What its facts declare of its durability, for one that is not ztune's own."""
        durability = self.facts.durability
        return Declared(
            default=durability.default,
            settings={
                name: {value: klass for value, (klass, _) in setting.answers(name).items()}
                for name, setting in durability.settings.items()
                if setting.torn_page is None
            },
            neutral=durability.neutral,
            together=durability.together,
        )


@dataclass(frozen=True)
class Broken:
    """What a third party offers and can't be used."""

    name: str
    source: str
    why: str
    """A sentence."""


def every() -> tuple[Database, ...]:
    """Return all databases: ours in the order of their facts, then others' by name."""
    return tuple(one for one in _found() if isinstance(one, Database))


@functools.cache
def endings(kind: Literal["preallocated", "logs", "buffered"]) -> tuple[re.Pattern[str], ...]:
    """Return what whole paths of files look like that databases declare to be of a kind of ``Files``."""
    known = (end for one in every() for files in one.facts.files for end in getattr(files, kind))
    return tuple(re.compile(f".*(?:{end})") for end in known)


@functools.cache
def in_place() -> frozenset[str]:
    """Return the names of the ``Files`` whose pages a server writes over."""
    return frozenset(files.name for one in every() for files in one.facts.files if files.in_place)


class _File(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def role(self) -> str | None: ...


_OfOne = TypeVar("_OfOne", bound=_File)


def logs_among(files: Iterable[_OfOne]) -> list[list[_OfOne]]:
    """Return those of ``files`` that are of each log that one thread syncs for all who wait to commit.

    Two directories have two logs: several databases may be recorded together.
    """
    found: dict[tuple[re.Pattern[str], str], list[_OfOne]] = {}
    for file in files:
        for end in endings("logs") if file.role == "wal" else ():
            if end.fullmatch(file.path):
                found.setdefault((end, file.path.rpartition("/")[0]), []).append(file)
    return list(found.values())


def own() -> tuple[Database, ...]:
    """Return ours."""
    return tuple(one for one in every() if one.own)


def broken() -> tuple[Broken, ...]:
    """Return what others offer and can't be used."""
    return tuple(one for one in _found() if isinstance(one, Broken))


def parse(raw: Mapping[str, Any], where: str) -> Facts:
    """Return the facts in ``raw``. Raises InputError, which begins with ``where``."""
    try:
        return Facts.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{where}: {place}: {first['msg'].removeprefix('Value error, ')}") from None


@functools.cache
def _found() -> tuple[Database | Broken, ...]:
    here = Path(__file__).parent
    ours = [
        Database(name, f"{__package__}.{name}", "ztune", here / name, parse(raw, f"{name}/{shipped.FACTS}"))
        for name, raw in shipped.folders().items()
    ]
    ours.sort(key=lambda one: (one.facts.listed, one.name))
    theirs = sorted(_third_party({one.name for one in ours}), key=lambda one: one.name)
    return (*ours, *theirs)


def _third_party(taken: set[str]) -> Iterator[Database | Broken]:
    offered: dict[str, list[EntryPoint]] = {}
    # A package whose entry points can't be read at all is the registry's to name.
    for _, points, _ in entry_points.by_package(GROUP):
        for point in points:
            offered.setdefault(point.name, []).append(point)
    for name, points in offered.items():
        packages = sorted(entry_points.package(point) for point in points)
        source = " and ".join(packages)
        try:
            if name in taken:
                raise InputError("ztune has one of that name itself")
            if len(points) > 1:
                raise InputError(f"it is offered by the packages {source}; uninstall all but one")
            found = _read(name, points[0].value.partition(":")[0].strip(), source)
            shipped.add(name, tomllib.loads((found.folder / shipped.FACTS).read_text("utf-8")))
            yield found
        except (Exception, SystemExit) as error:
            yield Broken(name, source, entry_points.one_line(error))


def _read(name: str, module: str, source: str) -> Database:
    """Return the database whose folder is the package ``module``. Raises InputError, or what importing the
    packages above it raises.
    """
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        raise InputError(f"its package {module} is not there ({error})") from None
    where = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    if not where:
        raise InputError(f"{module} is no package, so it has no {shipped.FACTS}")
    file = next((folder / shipped.FACTS for folder in where if (folder / shipped.FACTS).is_file()), None)
    if file is None:
        raise InputError(f"package {module} has no file {shipped.FACTS}")
    try:
        raw = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} can't be read: {entry_points.one_line(error)}") from None
    return Database(name, module, source, file.parent, parse(raw, str(file)))


def of_workload(name: str) -> Database | None:
    """Return the database whose workload is called ``name``, or None."""
    return next((one for one in every() if name in one.facts.workloads), None)


def of_layouts(names: set[str]) -> list[Database]:
    """Return the databases whose files' layouts are among ``names``."""
    return [one for one in every() if any(files.name in names for files in one.facts.files)]
