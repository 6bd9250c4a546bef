"""How every run ends, whatever ends it: its status is in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ztune.places.channel import Lost
from ztune.store.db import Store
from ztune.store.records import Run


@contextmanager
def ending(store: Store, run: Run) -> Iterator[None]:
    """Store how the body ended: done if any trial has a result, interrupted if it can go on, else failed.

    A KeyboardInterrupt leaves with a note that says how it goes on, which ``ztune.cli.main`` prints.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        store.finish_run(run.id, "interrupted")
        stopped.add_note(f"`ztune {'run' if run.measured else 'screen'} --resume {run.id}` goes on")
        raise
    except Lost:
        store.finish_run(run.id, "interrupted")
        raise
    except BaseException:
        store.finish_run(run.id, "failed")
        raise
    store.finish_run(run.id, "done" if any(t.ok for t in store.trials(run.id)) else "failed")
