"""One recording under several versions of OpenZFS: a run for each, on the same layouts.

The first decides which layouts are tried; the others have theirs from it (``Run.source_run``). No ranking
mixes them: ``ztune.analysis.across`` sets them side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ztune import native
from ztune.analysis.across import family
from ztune.errors import InputError
from ztune.places import engine as engines
from ztune.places.engine import Engine
from ztune.places.executor import Executor
from ztune.runs import recordings, screening
from ztune.runs.observer import Observer
from ztune.runs.options import ScreenOptions
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.trace.reader import Trace


def asked(words: str) -> list[Engine]:
    """Return the engines of the versions in ``words``, such as "2.3.2,2.4", in that order.

    Raises InputError where two mean the same one, a word is none, or the engines are of different sources;
    MissingError where one is not here.
    """
    found: dict[str, Engine] = {}
    for word in (word.strip() for word in words.split(",")):
        if not word:
            raise InputError(f'--openzfs: "{words}" is no list of versions; write 2.3.2,2.4.4')
        engine = engines.of_version(word)
        if engine.openzfs in found:
            raise InputError(f"--openzfs: OpenZFS {engine.openzfs} is named twice in {words}")
        found[engine.openzfs] = engine
    sources = sorted({engine.version for engine in found.values()})
    if len(sources) > 1:
        raise InputError(
            f"--openzfs: the engines are not of the same sources ({', '.join(sources)}), so what differs "
            f"would not be OpenZFS alone; `{native.setup_command()}` builds this machine's own anew"
        )
    return list(found.values())


def also(
    store: Store,
    first: Run,
    trace: Trace,
    engine: Engine,
    options: ScreenOptions,
    *,
    command: Sequence[str] = (),
    observer: Observer | None = None,
    executor: Executor | None = None,
) -> Run:
    """Screen the layouts of ``first`` with ``engine`` and return that run; one that was cut goes on.

    Raises as ``screening.start`` and ``screening.resume`` do.
    """
    now = screening.versions(engine)
    for run in family(store, first):
        if {**run.versions, "ztune": now["ztune"]} == now:
            return run if run.status == "done" else screening.resume(
                store, run, trace, engine, replace(options, seed=None), observer=observer,
                executor=executor,
            )  # fmt: skip
    study = first.resolved_study
    return screening.start(
        store, trace, study, engine, replace(options, seed=first.seed),
        name=f"{first.name}, OpenZFS {engine.openzfs}", command=command, observer=observer, like=first,
        others=recordings.of_run(store, first), executor=executor,
    )  # fmt: skip
