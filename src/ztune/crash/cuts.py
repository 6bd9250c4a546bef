"""The test itself: load, cut, mount, recover, check; again and again on the same files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ztune.crash.ledger import CutVerdict, Ledger
from ztune.crash.plan import CrashPlan, Moment, plans
from ztune.crash.power import Power
from ztune.crash.result import Cut, Result
from ztune.databases.crash_test import CrashClient, Found, TestedDatabase
from ztune.errors import ZtuneError
from ztune.onhost.host import interrupt, room
from ztune.onhost.host.interrupt import signals_as_interrupt, uninterrupted
from ztune.onhost.host.workdir import WorkDir

ACCOUNTS = 10_000
"""About 3 MB of pages that are written over and over, beside a ledger that only grows."""
# A little longer than such a thing took last time, so that cuts fall on its end, too.
_BEYOND = 1.2
_GUESS_S = 0.3
_JOIN_S = 60.0

Report = Callable[[Cut], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Cutting:
    """How a database's power is cut."""

    count: int
    """How many cuts."""
    seed: int
    """Decides their moments, and what the clients do."""
    clients: int = 4
    """How many work at the same time."""
    window_s: float = 2.0
    """The longest that they work before a cut."""
    keep: bool = False
    """Stop at the first check that finds more damage than promised, and leave all where it is."""
    parent: Path | None = None
    """Where the work directory is made."""
    accounts: int = ACCOUNTS
    """Rows of the table that is written over."""


class _KeptError(Exception):
    """A check failed, and what it looked at is to be kept."""


class CrashTest:
    """One test of one database on one layout."""

    def __init__(
        self,
        database: Callable[[], TestedDatabase],
        power: Callable[[Path], Power],
        result: Result,
        cutting: Cutting,
        *,
        report: Report = lambda cut: None,
        say: Say = lambda text: None,
    ) -> None:
        """Take the settings; nothing is started.

        Args:
            database: makes one that is new, and so on for each fresh load.
            power: makes the directories' power, below a folder.
            result: is filled.
            cutting: how many cuts, and how.
            report: is told each cut when its check is done. say: what is being done.
        """
        self._make_database, self._make_power = database, power
        self.result = result
        self._how, self._report, self._say = cutting, report, say
        self._plans = plans(cutting.count, cutting.seed, checkpoints=database().checkpoints)
        self._pending: list[Cut] = []
        self._loads = 0
        self._recovery_s = self._checkpoint_s = _GUESS_S
        self._workdir: WorkDir | None = None
        self._database: TestedDatabase | None = None
        self._power: Power | None = None
        self._ledger: Ledger | None = None

    # What there is from the load on.

    @property
    def database(self) -> TestedDatabase:
        """The database."""
        assert self._database is not None
        return self._database

    @property
    def power(self) -> Power:
        """The directories' power."""
        assert self._power is not None
        return self._power

    @property
    def ledger(self) -> Ledger:
        """The acknowledgements."""
        assert self._ledger is not None
        return self._ledger

    def run(self) -> Result:
        """Do all cuts and return the result.

        Raises:
            ZtuneError: something else than a cut went wrong: no server, a full pool, a mount that died.
        """
        began = time.monotonic()
        with signals_as_interrupt():
            try:
                place = self._how.parent or WorkDir.default_parent()
                with room.RoomWatch("the crash test", lambda: [place]):
                    self._load()
                    for plan in self._plans:
                        self._cut(plan)
                    self._come_back("none")
            except _KeptError:
                self._keep_it()
            except ZtuneError as error:
                interrupt.check()
                failure = self._reason(error)
                if not self._how.keep or self._workdir is None:
                    raise failure from error
                self._keep_it()
                raise ZtuneError(f"{failure} (kept: {self.result.kept})") from error
            finally:
                with uninterrupted():
                    self._end(keep=self.result.kept is not None)
                self.result.seconds = time.monotonic() - began
        return self.result

    def _reason(self, error: ZtuneError) -> ZtuneError:
        """Return what is behind ``error``: a database says little where its directory has gone."""
        try:
            if self._power is not None:
                self._power.watch()
        except ZtuneError as reason:
            return reason
        return error

    def _keep_it(self) -> None:
        assert self._workdir is not None
        self.result.kept = str(self._workdir.path)

    def _load(self) -> None:
        """Make a new database and bring it to the disks in order: what a cut meets was all acknowledged."""
        self._say("loading")
        self._loads += 1
        # Named as one to be kept, so that no other run takes it for a leftover once we have ended.
        self._workdir = WorkDir.create("crashtest", parent=self._how.parent, keep=self._how.keep)
        folder = self._workdir.path
        self._database = self._make_database()
        self._power = self._make_power(folder)
        self._ledger = Ledger(
            self._how.clients, self._how.accounts, f"{self._how.seed}:{self._loads}", folder / "acknowledged"
        )
        self.power.up("none")
        self.result.openzfs = self.power.version
        self.database.prepare(self._workdir, self.power.places)
        self.database.load(self._how.accounts)
        self.power.down()

    def _end(self, *, keep: bool = False) -> None:
        """End everything at once; remove it, unless it is to be kept."""
        try:
            if self._power is not None:
                self._power.cut()
            if self._database is not None:
                self._database.end()
        finally:
            if self._power is not None:
                self._power.clear()
            if self._ledger is not None:
                self._ledger.end()
            if self._workdir is not None and not keep:
                self._workdir.keep = False
                self._workdir.remove()
        self._power = self._database = self._ledger = None

    def _cut(self, plan: CrashPlan) -> None:
        if plan.moment is Moment.RECOVERY:
            after = self._in_recovery(plan)
        else:
            self._come_back(plan.cache)
            after = self._under_load(plan)
        self._pending.append(Cut(plan.number, plan.moment, plan.cache, after))
        self.result.cuts.append(self._pending[-1])

    def _off(self) -> None:
        """The power goes. First the ledger, so that no later answer counts; then disks and database."""
        self.ledger.close()
        self.power.cut()
        self.database.cut()

    # Coming back.

    def _come_back(self, cache: str) -> None:
        """Mount, recover, and check what the cuts since the last check have left."""
        found = self._recover(cache)
        if found is not None and self._judge(found):
            self._recover(cache)

    def _judge(self, found: Found) -> bool:
        """Note what the pending cuts have left; return whether it was damage, and all is loaded anew."""
        verdict = self.ledger.check(found)
        self._note(verdict)
        if self._how.keep and self.result.broken:
            raise _KeptError
        if verdict.corrupt:
            self._end()
            self._load()
        else:
            self.ledger.settle(found)
        return verdict.corrupt

    def _recover(self, cache: str) -> Found | None:
        """Return what is there after the pending cuts; ``None`` if there were none."""
        self._say("mounting")
        problem = self._mount(cache)
        if problem is not None:
            return problem
        self._say("recovering")
        began = time.monotonic()
        try:
            self.database.start()
        except ZtuneError as error:
            interrupt.check()
            self.power.watch()
            if not self._pending:
                raise
            return Found(complaints=[f"the database does not start any more: {error}"])
        self._recovery_s = time.monotonic() - began
        if not self._pending:
            return None
        self._pending[-1].recovery_s = self._recovery_s
        self._say("checking")
        found = self.database.read()
        # Damage that a mount makes when it dies is not a cut's.
        self.power.watch()
        return found

    def _mount(self, cache: str) -> Found | None:
        """Mount; return what the pending cuts have left where that fails for them."""
        try:
            replayed = self.power.up(cache)
        except ZtuneError as error:
            interrupt.check()  # what fails while it is being stopped is no damage
            if not self._pending:
                raise
            return Found(complaints=[f"it can't be mounted any more: {error}"])
        if self._pending:
            self._pending[-1].replayed = replayed
        return None

    def _note(self, verdict: CutVerdict) -> None:
        pending, self._pending = self._pending, []
        last = pending[-1]
        last.checked = True
        last.acknowledged = verdict.acknowledged
        last.lost, last.oldest_s = verdict.lost, verdict.oldest_s
        last.unanswered, last.problems = verdict.unanswered, verdict.problems
        for cut in pending:
            self._report(cut)

    # The moments of a cut. Each returns the seconds after which it came.

    def _in_recovery(self, plan: CrashPlan) -> float:
        self._say("cutting a recovery")
        found = self._mount(plan.cache)
        if found is not None:
            self._judge(found)
            self._mount(plan.cache)
        after = plan.share * _BEYOND * self._recovery_s
        try:
            self.database.start(after)
        except ZtuneError:
            # Whatever it is, the start after this cut meets it again, and has its time.
            interrupt.check()
            self.power.watch()
        self._off()
        self.power.clear()
        return after

    def _under_load(self, plan: CrashPlan) -> float:
        self._say(f"working, to be cut {plan.moment}")
        sessions = [self.database.client() for _ in self.ledger.clients]
        extra = self.database.client() if plan.moment is Moment.CHECKPOINT else None
        fallen: list[CrashClient] = []
        self.ledger.open()
        threads = [
            threading.Thread(target=self._work, args=(client, session, fallen), daemon=True)
            for client, session in zip(self.ledger.clients, sessions, strict=True)
        ]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        if extra is None:
            time.sleep(plan.share * self._how.window_s)
        else:
            time.sleep(plan.begin * self._how.window_s)
            began = time.monotonic()
            thread = threading.Thread(target=self._checkpoint, args=(extra, fallen), daemon=True)
            threads.append(thread)
            thread.start()
            time.sleep(plan.share * _BEYOND * self._checkpoint_s)
        after = time.monotonic() - began
        self.power.watch()
        self.database.watch()
        if fallen:
            raise ZtuneError(f"a client of {self.result.workload} ended by itself: {fallen[0].said()}")
        self._off()
        for thread in threads:
            thread.join(_JOIN_S)
        self.power.clear()
        return after

    def _work(self, client: int, session: CrashClient, fallen: list[CrashClient]) -> None:
        while (transaction := self.ledger.begin(client)) is not None:
            if not session.commit(transaction):
                fallen.append(session)
                return
            self.ledger.acknowledge(transaction)

    def _checkpoint(self, session: CrashClient, fallen: list[CrashClient]) -> None:
        began = time.monotonic()
        done = session.checkpoint()
        taken = time.monotonic() - began
        # One that a cut has ended would have taken longer; how much is not known.
        self._checkpoint_s = taken if done else max(self._checkpoint_s, 1.5 * taken)
        if not done:
            fallen.append(session)
