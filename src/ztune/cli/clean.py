"""``ztune clean``: destroy what trials left behind, and nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ztune import native, output, temporary
from ztune.analysis.units import amount
from ztune.cli._options import option, takes
from ztune.cli._waiting import waiting
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.fleet import kept
from ztune.native import openzfs as versions
from ztune.places import bundle, loaded, mount_points
from ztune.places import named as places
from ztune.places.channel import Place, ask, states
from ztune.places.placing import Placing
from ztune.places.rack import Rack
from ztune.runs import prepared, trial
from ztune.runs.named import resolve
from ztune.store.db import Store
from ztune.store.deletion import orphans
from ztune.store.records import Run

_SHOWN = 8
"""So many paths or names of one thing are shown."""


@click.command("clean")
@takes
def command(
    on: str = option(
        "--on",
        default="local",
        metavar="local|mount|ssh://HOST",
        help="Where to look. A lab has nothing left: its machine is gone.",
    ),
    run_id: str | None = option("--run", metavar="RUN", help="Look where this run ran."),
    prepared: bool = option(
        "--prepared",
        help="Remove what ztune keeps loaded in its cache instead: databases of trials, pools of "
        "replays, recordings that a worker of a fleet was sent.",
    ),
    openzfs: bool = option(
        "--openzfs",
        help="Instead, remove the versions of OpenZFS that `ztune setup openzfs` unpacked, "
        "and the programs that were built against them.",
    ),
    forget: str | None = option(
        "--forget",
        metavar="[TRIAL:]DISK",
        help="Instead, forget a disk that clean-up refuses since it is somebody else's by now, of all dead "
        "trials or of one, and a pool that can't be removed without it. It is neither opened nor changed.",
    ),
    yes: bool = option("--yes", help="Do it. Without --yes it is only shown."),
    as_json: bool = option("--json", help="Print what is left, as JSON."),
) -> int:
    """Show what trials left behind, with its paths, names and processes, and destroy it with --yes.

    It destroys only what a trial's journal or ztune's own properties say ztune made, and looks at each
    thing again on the live system first. What may be somebody else's stays and is named. A journal that
    another user could have written is not believed. Trials that still run are left alone, and so is a version
    of OpenZFS that anything works with. What a ztune of this user's had for the time of one command only, in
    /tmp, in memory or in the state directory, and left where it was killed, is removed too. Traces and series
    in the state directory that no run goes with are named, and left to you, also where this user is not root
    and more can't be looked at.

    \b
    Examples:
      ztune clean                        what is left on this host
      ztune clean --yes
      ztune clean --on ssh://db7 --yes
      ztune clean --on mount             what trials on a mount left, without root
      ztune clean --run 7f3k2a           where that run ran
      ztune clean --prepared             the loaded databases and pools in the cache, and their sizes
      ztune clean --forget /dev/sdb      which dead trials had that disk, and why it is refused
      ztune clean --openzfs --yes        other versions of OpenZFS: `ztune setup openzfs` brings them again

    Exit code 1 if something stayed, 3 if this user may not look.
    """
    if prepared + openzfs + (forget is not None) > 1:
        raise InputError("--prepared, --openzfs and --forget are things of their own; give one of them")
    if prepared:
        return _prepared(yes, as_json)
    if openzfs:
        return _openzfs(yes, as_json)
    place: Place
    alone: list[Path] = []
    ours: list[Path] = []
    if run_id is not None:
        with Store.open() as store:
            found = resolve(run_id, "run", store=store)
        if not found.measured or found.target.get("kind") == "lab":
            where = "in a lab" if found.measured else "a replay"
            output.echo(
                f"run {found.id} left no dataset and no pool: it was {where}; `ztune clean` has the rest"
            )
            return 0
        again = places.again(found)
        if isinstance(again, Rack) and forget is not None:
            raise InputError(f"run {found.id} ran on several hosts; say whose disk it is, by --on ssh://HOST")
        if isinstance(again, Rack):
            return _of_rack(again, yes, as_json)
        place = again
    elif on == "lab":
        output.echo("a lab has nothing left: its machine is gone")
        return 0
    else:
        # Where pools go does not matter for removing them.
        place = places.make(on, None if on == "mount" else Placing(files="/"))
        if on in ("local", "mount") and forget is None:
            ours = _temporary(yes)
        if on == "local" and forget is None:
            with Store.open() as store:
                alone = orphans(store)
            for path in alone[:_SHOWN]:
                output.echo(f"no run in {store.path} goes with {path}", err=True)
            if len(alone) > _SHOWN:
                output.echo(f"and {len(alone) - _SHOWN} more; --json lists all", err=True)
            if alone:
                output.echo("remove it, unless another store has the run or it is made just now", err=True)
    with contextlib.ExitStack() as up:
        try:
            with waiting(f"waiting for {place.name}"):
                up.enter_context(place)
        except MissingError:
            if place.name != "local":
                raise
            if as_json:  # null: not looked at
                unknown = {"trials": None, "datasets": None}
                output.print_json({"state": place.state, **unknown, **_beside(alone, ours)})
            raise MissingError(
                "what trials left on this host was not looked at, since that takes root: `sudo ztune clean` "
                "looks; `ztune clean --on mount` names what trials on a mount left, without root"
            ) from None
        if forget is not None:
            return _forget(place, forget, yes, as_json)
        return _clean(place, yes, as_json, _beside(alone, ours))


def _of_rack(rack: Rack, yes: bool, as_json: bool) -> int:
    """Look on each host of a run; one that can't be reached costs its own line, and exit code 1."""
    code, found = 0, []
    for place in rack.places:
        try:
            with contextlib.ExitStack() as up:
                with waiting(f"waiting for {place.name}"):
                    up.enter_context(place)
                if as_json:
                    program, left = _look(place)
                    found.append({"host": place.name, **left})
                    if yes:
                        done = trial.clean(place, program, _say, waits=_say)
                        code |= bool(done.stayed)
                else:
                    code |= _clean(place, yes, as_json)
        except ZtuneError as error:
            output.echo(f"not looked at: {output.line(str(error))}", err=True)
            code = 1
    if as_json:
        output.print_json(found)
    return code


def _temporary(yes: bool) -> list[Path]:
    """Return what a ztune that was killed left here of its own; say it, and with ``yes`` remove it."""
    found = temporary.left_here()
    if yes:
        temporary.remove_left_here()
    for path in found:
        gone = yes and not path.exists()
        what = "removed what a ztune that was killed left" if gone else "a ztune that was killed left"
        output.echo(f"{what}: {output.line(str(path))}", err=True)
    if found and not yes:
        output.echo("--yes removes it, and so does the next ztune that needs such a thing", err=True)
    return found


def _beside(alone: Sequence[Path], ours: Sequence[Path]) -> dict[str, Any]:
    return {"orphans": [str(path) for path in alone], "temporary": [str(path) for path in ours]}


def _clean(place: Place, yes: bool, as_json: bool, beside: Mapping[str, Any] | None = None) -> int:
    program, known = _look(place)
    found = {**known, **(beside or _beside((), ()))}
    trials, datasets = found["trials"], found["datasets"]
    if as_json:
        output.print_json(found)
    elif not trials and not datasets:
        output.echo(f"nothing is left on {place.name}")
    else:
        for one in trials:
            _show(one)
        for one in datasets:
            name, of = output.line(one["name"]), output.line(one["trial"])
            why = f"; {output.line(one['problem'])}" if one.get("problem") else ""
            output.echo(f"without a journal: {name}, which says that it is of trial {of}{why}")
    if not trials and not datasets:
        return 0
    if not yes:
        would = [one for one in datasets if not one.get("problem")]
        if not as_json and (would or not all(one.get("running") for one in trials)):
            output.echo("Nothing was changed; --yes destroys it.")
        return 0
    left = trial.clean(place, program, _say, waits=_say).stayed
    for sentence in left:
        output.echo(f"stayed: {output.line(sentence)}", err=True)
    if any(sentence.startswith("disk ") for sentence in left):
        said = "a disk that is somebody else's for good: `ztune clean --forget DISK` has it looked at no more"
        output.echo(said, err=True)
    if not left:
        output.echo("done: all of it is gone", err=as_json)
    return 1 if left else 0


def _forget(place: Place, named: str, yes: bool, as_json: bool) -> int:
    """Have dead trials at ``place`` forget a disk, or say what they know of it."""
    of_trial, _, disk = named.rpartition(":") if not named.startswith("/") else ("", "", named)
    if not disk.startswith("/"):
        raise InputError(f"--forget {named}: {disk} is no path of a disk; write it as `ztune clean` shows it")
    found: list[dict[str, Any]] = []
    with waiting(f"asking {place.name} which trials had it"):
        program = place.put(bundle.build())
        for state in states(place):
            words = ["forget", "--state", state, "--disk", disk]
            words += [*(["--trial", of_trial] if of_trial else []), *(["--yes"] if yes else [])]
            found += _answer(place, program, words, state).get("things", [])
    if not found:
        raise InputError(
            f"no dead trial on {place.name} has a disk {named}; `ztune clean` names what each has"
        )
    if as_json:
        output.print_json(found)
    else:
        for one in found:
            _show_forgotten(one)
        if any(one["kind"] == "disk" and not one["named"] and not one["why"] for one in found):
            output.echo(
                "A disk that is forgotten with its pool keeps the trial's labels: wipe it if it is yours."
            )
        if not yes:
            output.echo("Nothing was changed; --yes has it forgotten, and changes nothing on any disk.")
    return 1 if yes and not all(one["forgotten"] for one in found) else 0


def _show_forgotten(one: dict[str, Any]) -> None:
    about = [text for text in (one["identity"], amount(one["size"]) if one["size"] else "") if text]
    thing = f"{one['kind']} {one['name']}" + (f" ({', '.join(about)})" if about else "")
    output.echo(f"trial {output.line(one['trial'])}: {output.line(thing)}")
    if one["refused"]:
        output.echo(f"  refused before: {output.line(one['refused'])}")
    if one["why"]:
        output.echo(f"  not to be forgotten: {output.line(one['why'])}; `ztune clean --yes` looks at it")
    elif one["forgotten"]:
        output.echo("  forgotten; nothing on it was changed")
    else:
        output.echo("  would be forgotten: clean-up would look at it no more")


def _say(text: str) -> None:
    output.echo(f"  {output.line(text)}", err=True)


def _look(place: Place) -> tuple[str, dict[str, Any]]:
    """Return the trial program there, and what is left in the state directories of a place, as one answer.

    Raises ZtuneError.
    """
    found: dict[str, Any] = {"state": place.state, "trials": [], "datasets": []}
    with waiting(f"looking for what trials left on {place.name}"):
        program = place.put(bundle.build())
        for state in states(place):
            answer = _answer(place, program, ["list", "--state", state], state)
            found["trials"] += [{"state": state, **one} for one in answer.get("trials", [])]
            found["datasets"] += answer.get("datasets", [])
    return program, found


def _answer(place: Place, program: str, words: list[str], state: str) -> dict[str, Any]:
    """Return what the trial program says of a state directory; nothing of an old one that is not root's.

    Raises ZtuneError.
    """
    code, out, errors = ask(place, ["python3", program, *words])
    if code != 0:
        said = errors.splitlines()[-1] if errors else f"{words[0]} failed with exit code {code}"
        if code == InputError.exit_code and state != place.state:
            output.echo(f"left alone: {output.line(said)}", err=True)
            return {}
        raise ZtuneError(said)
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def _show(one: dict[str, Any]) -> None:
    running = "  (still runs: left alone)" if one.get("running") else ""
    problem = f"  {output.line(one['problem'])}" if one.get("problem") else ""
    output.echo(f"trial {output.line(one['trial'])}{running}{problem}")
    for thing in one.get("things", []):
        why = f"  refused before: {output.line(thing['refused'])}" if thing.get("refused") else ""
        half = "" if thing.get("made") else "  (half made)"
        output.echo(f"  {output.line(thing['kind']):12} {output.line(thing['id'])}{half}{why}")
        _list(thing.get("what", []), but=str(thing["id"]))
    _list(one.get("directories", []))


def _list(what: list[str], but: str = "") -> None:
    """Print what would go, the first few."""
    rows = [text for text in what if text != but]
    for text in rows[:_SHOWN]:
        output.echo(f"  {'':12} {output.line(text)}")
    if len(rows) > _SHOWN:
        output.echo(f"  {'':12} and {len(rows) - _SHOWN} more; --json lists all")


def _prepared(yes: bool, as_json: bool) -> int:
    states = prepared.prune(limit=-1) if yes else prepared.states()
    found = [(str(Path(s.path)), s.job, s.bytes) for s in states]
    found += [(str(path), "replay", room) for path, room in loaded.kept().items()]
    found += [(str(path), "fleet", room) for path, room in kept.kept().items()]
    if yes:
        loaded.drop()
        kept.drop()
    if as_json:
        rows = [{"path": path, "job": job, "bytes": room, "removed": yes} for path, job, room in found]
        output.print_json(rows)
        return 0
    for path, job, room in found:
        output.echo(f"{'removed ' if yes else ''}{path}  {job}  {amount(room)}")
    if not found:
        output.echo("no loaded database is kept")
    elif not yes:
        output.echo("Nothing was changed; --yes removes them.")
    return 0


def _openzfs(yes: bool, as_json: bool) -> int:
    rows: list[dict[str, Any]] = []
    with Store.open() as store:
        live = [run for run in store.runs() if store.is_live(run)]
    mounted = _mounted()
    for one in versions.libraries():
        with contextlib.ExitStack() as held:
            used = _user_of(one, live, mounted)
            try:
                held.enter_context(native.alone(one))
            except BlockingIOError:
                used = used or "another ztune works with it"
            except FileNotFoundError:  # another ztune removed it just now
                continue
            gone = yes and not used
            rows.append(
                {
                    "version": one.version,
                    "path": str(one.root.parent),
                    "bytes": versions.size(one),
                    "removed": gone,
                    "used": used,
                }
            )
            if gone:
                native.forget(one)
                versions.remove(one)
    stays = yes and any(row["used"] for row in rows)
    if as_json:
        output.print_json(rows)
        return 1 if stays else 0
    for row in rows:
        what = f"{row['path']}  OpenZFS {row['version']}  {amount(row['bytes'])}"
        used = f"  (left alone: {output.line(row['used'])})" if row["used"] else ""
        output.echo(f"{'removed ' if row['removed'] else ''}{what}{used}")
    if not rows:
        output.echo("no other version of OpenZFS is unpacked")
    elif not yes:
        output.echo("Nothing was changed; --yes removes them.")
    return 1 if stays else 0


def _user_of(library: versions.Library, live: Sequence[Run], mounted: Mapping[Path, Path]) -> str:
    """Return what works with ``library`` now: a run whose process lives, or a mount. ``mounted``: directory →
    program.
    """
    for run in live:
        if run.versions.get("openzfs") == library.version:
            return f"run {run.id} works with it"
    folder = native.MOUNT.against(library).folder_in_cache()
    return next((f"{top} is mounted with it" for top, at in mounted.items() if folder in at.parents), "")


def _mounted() -> dict[Path, Path]:
    """Return directory → the program that has it mounted. Raises MountError where one can't be asked."""
    found = {}
    for point in mount_points.every()[0]:
        if (mount := point.mount()) is not None:
            found[point.directory] = Path(f"/proc/{mount.pid}/exe").resolve()
    return found
