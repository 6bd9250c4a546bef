"""Where workloads are found: in the databases' folders, and by the entry-point group ``ztune.workloads``.

That group is the old way for a third party to offer a workload; ``ztune.databases`` offers a whole database.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

from ztune.databases import database
from ztune.databases.artifacts import Fetched
from ztune.databases.database import Database
from ztune.databases.entry_points import WORKLOADS, by_package, one_line, package
from ztune.databases.workload import ParameterDoc, Parameters, Workload
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.declared import Declared
from ztune.packages import packages_of

GROUP = WORKLOADS


@dataclass(frozen=True, slots=True)
class ListedWorkload:
    """One line of ``ztune list workloads``."""

    name: str
    summary: str
    source: str
    """``ztune``, or the name of the package that brought it."""
    parameters: list[ParameterDoc]
    roles: str = ""
    """The roles of its files, or where they come from."""
    needs: tuple[str, ...] = ()
    """The packages that bring what it needs on this system."""
    version: str = ""
    """Of what would run here; empty if something is missing."""
    missing: str = ""
    """What is missing here, and the command that brings it."""
    trouble: str = ""
    """What is wrong with what a third party says of it, in a sentence."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A third party's workload."""

    package: str
    reference: str
    load: Callable[[], Any]


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of ``group``; a package whose file of them can't be read has none."""
    return [point for _, points, _ in by_package(group) for point in points]


def _ours() -> dict[str, Database]:
    return {name: one for one in database.own() for name in one.facts.workloads}


def _third_party() -> dict[str, list[_Offer]]:
    # A name of ours can't be taken over: what `postgres-oltp` means must not depend on what else is
    # installed.
    found: dict[str, list[_Offer]] = defaultdict(list)
    for one in database.every():
        for name, inside in one.facts.workloads.items() if not one.own else ():
            found[name].append(_Offer(one.source, one.reference(inside), partial(one.load, inside)))
    for point in entry_points(group=GROUP):
        offer = _Offer(package(point), point.value.replace(" ", ""), point.load)
        # A package may offer the same in both ways, for earlier versions of ztune.
        if (offer.package, offer.reference) not in [(o.package, o.reference) for o in found[point.name]]:
            found[point.name].append(offer)
    ours = _ours()
    return {name: offers for name, offers in found.items() if name not in ours}


def names() -> list[str]:
    """Return the names of all workloads: ours first, then others' in order of name."""
    return [*_ours(), *sorted(_third_party())]


def get(name: str) -> type[Workload]:
    """Return the class of the workload ``name``; ``make`` makes one.

    Raises:
        InputError: there is none of that name, or the package that brings it is broken.
    """
    ours = _ours().get(name)
    if ours is not None:
        found = ours.load(ours.facts.workloads[name])
        assert isinstance(found, type)
        return found
    offers = _third_party().get(name, [])
    if not offers:
        close = get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names())}"
        raise InputError(f"there is no workload {name!r}; {hint}")
    if len(offers) > 1:
        whose = " and ".join(sorted(repr(offer.package) for offer in offers))
        raise InputError(f"workload {name!r} is offered by the packages {whose}; uninstall all but one")
    what = f"workload {name!r} of package {offers[0].package!r}"
    try:
        loaded = offers[0].load()
    # A module may end the process at its import; that is no reason for ztune to end.
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} can't be loaded: {one_line(error)}") from error
    try:
        wrong = _wrong_with(loaded)
    except Exception as error:
        wrong = one_line(error)
    if wrong:
        raise InputError(f"{what} is not a workload: {wrong}")
    checked: type[Workload] = loaded
    return checked


def make(name: str, params: Mapping[str, object] | None = None) -> Workload:
    """Return a workload ``name`` with ``params``.

    Raises:
        InputError: no such workload, a parameter is wrong, or another's class can't be made.
    """
    wanted = get(name)
    try:
        return wanted(params)
    except ZtuneError:
        raise
    except Exception as error:
        if name in _ours():
            raise
        raise InputError(f"workload {name!r} can't be made: {one_line(error)}") from error


def _wrong_with(loaded: object) -> str:
    """Return what keeps an entry point's object from being a workload; empty if nothing does."""
    lacking = [part for part in _REQUIRED if not hasattr(loaded, part)]
    if not isinstance(loaded, type) or lacking:
        return f"it has no {', '.join(lacking) or 'class'}"
    if inspect.isabstract(loaded):
        methods: frozenset[str] = vars(loaded)["__abstractmethods__"]
        return f"its class is abstract: it lacks {', '.join(sorted(methods))}"
    for part in ("name", "summary"):
        if not isinstance(getattr(loaded, part), str):
            return f"its {part} is no text"
    parameters = getattr(loaded, "Parameters")  # noqa: B009
    if not isinstance(parameters, type) or not issubclass(parameters, Parameters):
        return "its Parameters are no subclass of ztune.databases.workload.Parameters"
    parameters.docs()
    needs, artifacts = getattr(loaded, "needs", ()), getattr(loaded, "artifacts", ())
    if not isinstance(needs, tuple | list) or not all(isinstance(one, str) for one in needs):
        return "its needs are no tuple of names"
    if not isinstance(artifacts, tuple | list) or not all(isinstance(one, Fetched) for one in artifacts):
        return "its artifacts are no tuple of what ztune.databases.artifacts has"
    _roles(loaded)
    return ""


def settings_of(name: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that the workload ``name`` makes in its database with ``params``, in the database's
    own words; nothing for one whose job does not say.

    Raises:
        InputError: no such workload, or a parameter is wrong.
    """
    settings = getattr(getattr(make(name, params), "job", None), "settings", None)
    return {} if settings is None else dict(settings())


def declared(name: str, params: Mapping[str, Any]) -> Declared:
    """Return what the workload ``name`` with ``params`` declares of its database's durability: nothing where
    it has nothing to say, or is not here.

    Raises:
        InputError: what it declares can't be understood.
    """
    if name not in names():
        return Declared()
    wanted = get(name)
    try:
        made = make(name, params)
    except InputError:  # recorded by a version with other parameters
        found = getattr(wanted, "durability", None)
    else:
        asked = getattr(made, "declared", None)
        found = asked() if callable(asked) else None
    if found is None or found == Declared():
        # Its class says nothing; its database's facts may.
        theirs = database.of_workload(name)
        found = theirs.declared if theirs is not None and not theirs.own else found
    if found is not None and not isinstance(found, Declared):
        raise InputError(
            f"workload {name!r}: what it declares of durability is no ztune.databases.workload.Declared"
        )
    return found or Declared()


def together(name: str | None) -> tuple[str, ...]:
    """Return the roles that can't have another dataset than ``data`` with the workload ``name``; none for one
    that is not here.
    """
    return tuple(getattr(get(name), "roles_together", ())) if name in names() and name else ()


_REQUIRED = (
    *("name", "summary", "Parameters", "check", "prepare", "load", "start", "pids", "run", "verify", "stop"),
    *("cleanup", "role_paths", "page_sizes", "info"),
)


def entries() -> list[ListedWorkload]:
    """Describe every workload; nothing is run. One that can't be loaded is named with its error."""
    found = []
    third = _third_party()
    for name in names():
        source = " and ".join(sorted(offer.package for offer in third[name])) if name in third else "ztune"
        try:
            workload = get(name)
        except InputError as error:
            found.append(ListedWorkload(name, f"broken: {error}", source, []))
            continue
        needs, trouble = _needs(workload)
        found.append(
            ListedWorkload(
                name,
                workload.summary,
                source,
                workload.Parameters.docs(),
                roles=_roles(workload),
                needs=(*needs, *(artifact.name for artifact in getattr(workload, "artifacts", ()))),
                trouble=trouble,
            )
        )
    found += [
        ListedWorkload(
            whose, f"broken: the entry points of package {whose!r} can't be read: {why}", whose, []
        )
        for whose, _, why in by_package(GROUP)
        if why
    ]
    found += [
        ListedWorkload(
            one.name, f"broken: database {one.name!r} of package {one.source!r}: {one.why}", one.source, []
        )
        for one in database.broken()
    ]
    return found


def _needs(workload: type[Workload]) -> tuple[list[str], str]:
    """Return the packages that a workload needs, and what is wrong with what it asks for."""
    packages: list[str] = []
    trouble = ""
    for thing in getattr(workload, "needs", ()):
        try:
            packages += packages_of(thing)
        except InputError as error:
            trouble = trouble or f"it needs what ztune can't install: {error}"
    return packages, trouble


def examined(entry: ListedWorkload, params: Mapping[str, object] | None = None) -> ListedWorkload:
    """Return ``entry`` with what is here for ``params`` (default: none are given): the version that would
    run, or what is missing. Runs programs.
    """
    try:
        return replace(entry, version=str(make(entry.name, params).check()))
    except MissingError as error:
        return replace(entry, missing=str(error))
    except ZtuneError:
        # It can't do without a parameter, so there is nothing to ask yet.
        return entry
    except Exception as error:
        if entry.source == "ztune":
            raise
        return replace(entry, missing=f"its check failed: {one_line(error)}")


def _roles(workload: type[Workload]) -> str:
    stated = str(getattr(workload, "roles_from", ""))
    job = getattr(workload, "job_class", None)
    return stated or ", ".join(getattr(job, "ROLES", ()))
