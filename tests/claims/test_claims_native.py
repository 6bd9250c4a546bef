"""A claim tried with the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_traces import make_trace

from ztune.claims import claim as known
from ztune.claims.conclusion import conclude
from ztune.claims.recordings import Recordings
from ztune.claims.replaying import Conditions, Hearing, Replays
from ztune.claims.support import supported
from ztune.errors import MissingError
from ztune.places import engine as engines
from ztune.runs.observer import Observer
from ztune.store.db import Store


class Silent(Observer):
    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_small_records_write_less(tmp_path: Path) -> None:
    try:
        engine = engines.check()
    except MissingError as error:
        pytest.skip(str(error))
    trace = make_trace(tmp_path / "t.trace", size=32 << 20, writes=200)
    claim = known.find("guide-postgresql-8k")

    def test(store: Store) -> tuple[str, tuple[str, ...]]:
        recordings = Recordings(lambda *_: pytest.fail("nothing is to be recorded"), given=trace)
        hearing = Hearing(Silent, lambda _: None)
        replays = Replays(store, engine, recordings, Conditions(("nvme",), (64 << 20,)), hearing)
        (tried,) = replays.test([claim])[claim.id]
        # 200 pages of 8K lie in other records of 128K, each read and written whole.
        assert tried.compared[0].ratio < 0.5
        said = conclude(claim, supported(claim), [tried])
        return said.word.value, said.trials

    with Store.open() as store:
        word, trials = test(store)
        assert word == "holds" and len(trials) == 2
        assert test(store) == (word, trials)
        assert len(store.runs()) == 1
