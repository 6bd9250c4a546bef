"""Makes the changes of a plan, and takes them back. The undo file is on disk before the first change."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from ztune import files
from ztune.advice.host import CommandError, Host, HostProperty, canonical
from ztune.advice.plan import Plan, PropertyChange
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.layout import check_dataset_name
from ztune.onhost.properties import PROPERTIES
from ztune.study import DurabilityClass

Say = Callable[[str], None]


class UndoEntry(BaseModel):
    """One change, and what was there before."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    guid: str
    name: str
    value: str  # what was set
    before: str
    source: str
    command: str = ""  # the equivalent command, for people; never run

    @field_validator("dataset")
    @classmethod
    def _dataset(cls, value: str) -> str:
        check_dataset_name(value)
        return value

    @field_validator("name")
    @classmethod
    def _property(cls, value: str) -> str:
        if value not in PROPERTIES:
            raise ValueError(f'"{value}" is not a property that ztune sets')
        return value

    @property
    def setting(self) -> PropertyChange:
        """The change that the entry takes back."""
        return PropertyChange(
            self.dataset, self.guid, self.name, self.value, HostProperty(self.before, self.source), why=""
        )


class UndoFile(BaseModel):
    """All changes of one ``ztune apply``, in the order in which they were made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["ztune-undo"] = "ztune-undo"
    version: Literal[1] = 1
    run: str
    layout: str
    on: str
    openzfs: str
    created: str
    changes: list[UndoEntry]


@dataclass(frozen=True)
class Undone:
    """What taking back came to: commands, sentences on what was left alone, and how many changes were never
    made, or are taken back already."""

    done: tuple[str, ...]
    left: tuple[str, ...]
    as_before: int


def undo_file(plan: Plan, host: Host) -> UndoFile:
    """Return what it takes to take ``plan`` back."""
    return UndoFile(
        run=plan.run,
        layout=plan.layout,
        on=host.on,
        openzfs=plan.version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        changes=[
            UndoEntry(
                dataset=s.dataset, guid=s.guid, name=s.name, value=s.value, before=s.before.value,
                source=s.before.source, command=shlex.join(s.undo),
            )
            for s in plan.settings
        ],
    )  # fmt: skip


def write_undo(undo: UndoFile, path: Path) -> None:
    """Write the undo file so that it survives a power cut. Raises InputError where that is not possible.

    An existing file is never overwritten: it may be all that is left to take an earlier change back.
    """
    text = json.dumps(undo.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    try:
        with contextlib.suppress(FileExistsError):  # a file in the way is found by open()
            path.parent.mkdir(parents=True)
        with path.open("x", encoding="utf-8") as file:
            # Whatever the umask: what a group may write is not believed later.
            os.fchmod(file.fileno(), 0o644 & ~files.umask())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        raise InputError(f"{path} exists already; name another undo file, nothing was changed") from None
    except OSError as error:
        raise InputError(
            f"the undo file {path} can't be written ({error.strerror}), so nothing was changed"
        ) from None


def read_undo(path: Path) -> UndoFile:
    """Return the undo file at ``path``. Raises InputError with one sentence."""
    try:
        raw: Any = json.loads(files.read(path, look=partial(_require_ours, path)))
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; an undo file of `ztune apply` is") from None
    try:
        return UndoFile.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise InputError(f"{path} is no undo file of ztune: {where}: {first['msg']}") from None


def _require_ours(path: Path, fd: int) -> None:
    """Raise InputError where another user could have written the undo file that is open: what it says would
    be done, as root."""
    if not own_directory.only_ours(fd, files.callers()):
        raise InputError(
            f"another user could have written {path}, and what it says would be done; "
            "read it, and name a copy of yours"
        )


def check_allowed(plan: Plan, accepted: DurabilityClass | None) -> None:
    """Raise InputError where the plan must not be carried out as it is."""
    if plan.refused:
        raise InputError(f"nothing was changed: {plan.refused[0]}")
    if plan.weaker and (accepted is None or accepted.rank < plan.after.rank):
        why = plan.reasons[0] if plan.reasons else ""
        raise InputError(
            f"nothing was changed: durability would go from {plan.before} to {plan.after} ({why}); if that "
            f"is what you want, add --accept-durability {plan.after}"
        )


def perform(plan: Plan, host: Host, path: Path, accepted: DurabilityClass | None, say: Say) -> int:
    """Make the changes of ``plan`` and check each; return how many are of datasets that a role lives on.

    The undo file is written to ``path`` first. If anything fails or is interrupted, what was done is taken
    back in reverse order; ``path`` is removed if that succeeds in full. Raises InputError before the first
    change, ZtuneError after a failure.
    """
    check_allowed(plan, accepted)
    settings = plan.settings
    if not settings:
        return 0
    for dataset in dict.fromkeys(s.dataset for s in settings):
        try:
            _require_same(host, next(s for s in settings if s.dataset == dataset))
        except OtherDatasetError as error:
            raise InputError(f"nothing was changed: {error}") from None
    write_undo(undo_file(plan, host), path)
    say(f"undo file: {path}")
    done: list[PropertyChange] = []
    try:
        for setting in settings:
            _require_same(host, setting)
            say(shlex.join(setting.command))
            done.append(setting)  # before it runs: a command that failed may have changed something
            host.run(setting.command)
            _check(host, setting)
    except (ZtuneError, KeyboardInterrupt) as error:
        _roll_back(host, done, path, say, error)
        raise
    targets = {target.dataset.name for target in plan.targets}
    return sum(setting.dataset in targets for setting in done)


class OtherDatasetError(ZtuneError):
    """The dataset of that name is not the one that the plan was made for."""


def _require_same(host: Host, setting: PropertyChange) -> None:
    """Raise OtherDatasetError unless the name of the dataset still is that of the one planned for: what is
    set is set by name, and so each time only after this.
    """
    now = current(host, setting.dataset, "guid").value
    if now != setting.guid:
        raise OtherDatasetError(
            f"{setting.dataset} is another dataset than when the plan was made (its guid is {now}, it was "
            f"{setting.guid})"
        )


def current(host: Host, dataset: str, name: str) -> HostProperty:
    """Return a property of a dataset as it is now."""
    value, _, source = (
        host.run(["zfs", "get", "-Hp", "-o", "value,source", name, dataset]).rstrip("\n").partition("\t")
    )
    return HostProperty(value, source)


def _check(host: Host, setting: PropertyChange) -> None:
    now = current(host, setting.dataset, setting.name)
    if canonical(setting.name, now.value) != setting.value or now.source != "local":
        raise ZtuneError(
            f"{setting.name} of {setting.dataset} is {now.value} ({now.source}) after it was set to "
            f"{setting.value}"
        )


def _roll_back(
    host: Host, done: Sequence[PropertyChange], path: Path, say: Say, error: BaseException
) -> None:
    """Take ``done`` back, newest first; raise ZtuneError that says what was and what was not."""
    left: dict[str, BaseException] = {}
    for setting in reversed(done):
        try:
            now = current(host, setting.dataset, setting.name)
            _require_same(host, setting)
            if now.source == "local" and (now.value, "local") != (
                setting.before.value,
                setting.before.source,
            ):
                say(shlex.join(setting.undo))
                host.run(setting.undo)
        except (ZtuneError, KeyboardInterrupt) as problem:
            left[f"{setting.name} of {setting.dataset}"] = problem
    # Only now: a dataset that inherits has its former value once those above it have theirs.
    for setting in done:
        name = f"{setting.name} of {setting.dataset}"
        try:
            _check_back(host, setting)
        except (ZtuneError, KeyboardInterrupt) as problem:
            left.setdefault(name, problem)
        else:
            # zfs may fail and have done it: a user who may set a property need not have the right to remount.
            if isinstance(left.get(name), CommandError):
                del left[name]
    what = str(error) or "it was interrupted"
    if left:
        said = "; ".join(f"{name} ({problem or 'interrupted'})" for name, problem in left.items())
        raise ZtuneError(
            f"{what}; taking back failed for {said}: `ztune apply --undo "
            f"{shlex.quote(str(path))} --yes` tries again"
        ) from error
    path.unlink(missing_ok=True)
    if isinstance(error, KeyboardInterrupt):
        say("interrupted; all is as it was before")
        return
    raise ZtuneError(f"{what}; all is as it was before") from error


def _check_back(host: Host, setting: PropertyChange) -> None:
    now = current(host, setting.dataset, setting.name)
    if canonical(setting.name, now.value) != canonical(setting.name, setting.before.value):
        raise ZtuneError(
            f"{setting.name} of {setting.dataset} is {now.value} ({now.source}) and not "
            f"{setting.before.value} ({setting.before.source}) again"
        )


def undo(file: UndoFile, host: Host, say: Say, *, yes: bool) -> Undone:
    """Take back the changes of ``file``, newest first; without ``yes`` only say which commands that takes.

    What someone changed since is left alone, and so is a dataset that is new under the old name; one that was
    renamed is found by its guid. A change that can't be taken back does not keep the others from being.
    """
    done: list[PropertyChange] = []
    left: list[str] = []
    as_before = 0
    called: dict[str, str] = {}
    for entry in {entry.dataset: entry for entry in file.changes}.values():
        try:
            called[entry.dataset] = _name_now(host, entry)
        except ZtuneError as error:
            left.append(str(error))
    for entry in reversed(file.changes):
        if entry.dataset not in called:
            continue
        entry = entry.model_copy(update={"dataset": called[entry.dataset]})
        setting = entry.setting
        try:
            now = current(host, entry.dataset, entry.name)
            # Last before the change, which goes by the name.
            if current(host, entry.dataset, "guid").value != entry.guid:
                left.append(f"{entry.dataset} is another dataset than the one that was changed")
                continue
            if _is_as_before(entry, now):
                as_before += 1
                continue
            if canonical(entry.name, now.value) != entry.value or now.source != "local":
                left.append(
                    f"{entry.name} of {entry.dataset} is {canonical(entry.name, now.value)} "
                    f"({now.source}), not the {entry.value} that was set: someone changed it since"
                )
                continue
            say(shlex.join(setting.undo))
            if yes:
                host.run(setting.undo)
            done.append(setting)
        except ZtuneError as error:
            left.append(str(error))
    for setting in done if yes else ():
        try:
            _check_back(host, setting)
        except ZtuneError as error:
            left.append(str(error))
    return Undone(tuple(shlex.join(s.undo) for s in done), tuple(left), as_before)


def _name_now(host: Host, entry: UndoEntry) -> str:
    """Return what the dataset that was changed is called by now. Raises ZtuneError where nothing is it, or
    what has its former name is another one."""
    listed = host.run(["zfs", "list", "-Hp", "-t", "filesystem,volume", "-o", "name,guid"])
    guids = dict(line.split("\t") for line in listed.splitlines())
    names = [name for name, guid in guids.items() if guid == entry.guid]
    if entry.dataset in names:
        return entry.dataset
    if entry.dataset in guids:
        now = f"; that one is {' or '.join(names)} now" if names else ""
        raise ZtuneError(f"{entry.dataset} is another dataset than the one that was changed{now}")
    if not names:
        raise ZtuneError(
            f"{entry.dataset} is not there, nor under another name: "
            "it is destroyed, or its pool is not imported"
        )
    if len(names) > 1:
        raise ZtuneError(f"{entry.dataset} is not there, and {' and '.join(names)} have its guid")
    return names[0]


def _is_as_before(entry: UndoEntry, now: HostProperty) -> bool:
    """Say whether the dataset itself has what it had: the same value, or again none of its own."""
    own = ("local", "received")
    if now.source not in own and entry.source not in own:
        return True
    return now.source == entry.source and canonical(entry.name, now.value) == canonical(
        entry.name, entry.before
    )
