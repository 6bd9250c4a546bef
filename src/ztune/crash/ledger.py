"""What the clients were told is committed, and whether a recovered database agrees.

Each client moves amounts between accounts, one transaction after the other, and each transaction leaves a row
in a ledger. So the two tables prove each other: an account's balance is the sum of the ledger's rows that
name it, its version their number. The acknowledgements are kept by the tester, outside what is cut.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ztune.databases.crash_test import Found, Transaction
from ztune.units import counted

_SHOWN = 3
"""How many cases of one kind of damage a sentence names."""


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """What became of the acknowledged commits."""

    acknowledged: int
    """Since the check before."""
    lost: int
    oldest_s: float | None
    """How long before the cut the oldest lost commit was acknowledged."""
    unanswered: int
    """Commits that are there although no client was told: allowed, one for each client."""
    problems: tuple[str, ...]
    """Each a sentence; any makes the database corrupt."""

    @property
    def corrupt(self) -> bool:
        """Whether what is there is not what any order of the transactions leaves."""
        return bool(self.problems)


@dataclass(slots=True)
class _Book:
    """One client's side."""

    settled: int = 0
    """How many of its transactions the last check found."""
    answered: list[tuple[float, float]] = field(default_factory=list)
    """Of those since: when each was begun and acknowledged."""
    flying: float | None = None
    """When the one was begun that was not acknowledged yet."""


class Ledger:
    """The tester's side. Clients work on it from threads of their own."""

    def __init__(self, clients: int, accounts: int, seed: str, file: Path | None = None) -> None:
        """Begin an empty ledger; ``file``: where each acknowledgement is written, too."""
        self.accounts = accounts
        self._seed = seed
        self._books = {client: _Book() for client in range(1, clients + 1)}
        self._lock = threading.Lock()
        self._closed_at: float | None = time.monotonic()
        self._era = 0
        self._file = file.open("a", encoding="ascii", buffering=1) if file is not None else None

    @property
    def clients(self) -> list[int]:
        """The clients' numbers."""
        return list(self._books)

    @property
    def acknowledged(self) -> int:
        """Commits acknowledged since the last check."""
        return sum(len(book.answered) for book in self._books.values())

    def open(self) -> None:
        """From now on acknowledgements count."""
        with self._lock:
            self._closed_at = None
            # A transaction that is done again after a loss is another one, so that neither is taken for the
            # other.
            self._era += 1

    def close(self) -> None:
        """The power goes now: what is answered from here on was heard by nobody."""
        with self._lock:
            if self._closed_at is None:
                self._closed_at = time.monotonic()

    def begin(self, client: int) -> Transaction | None:
        """Return the client's next transaction; ``None`` when the ledger is closed."""
        with self._lock:
            if self._closed_at is not None:
                return None
            book = self._books[client]
            book.flying = time.monotonic()
            number = book.settled + len(book.answered) + 1
            era = self._era
        return Transaction.make(f"{self._seed}:{era}", client, number, self.accounts)

    def acknowledge(self, transaction: Transaction) -> bool:
        """Note that the client was told that it is committed; whether that was in time."""
        now = time.monotonic()
        with self._lock:
            if self._closed_at is not None:
                return False
            book = self._books[transaction.client]
            assert book.flying is not None and transaction.number == book.settled + len(book.answered) + 1
            book.answered.append((book.flying, now))
            book.flying = None
            if self._file is not None:
                self._file.write(f"{transaction.client} {transaction.number} {now:.6f}\n")
        return True

    def check(self, found: Found) -> CutVerdict:
        """Say what became of the acknowledged commits, and whether what is there is consistent."""
        with self._lock:
            problems = [*found.complaints]
            if not found.entries and not found.accounts and problems:
                # It could not be read: nothing is known of single commits.
                return CutVerdict(self.acknowledged, 0, None, 0, tuple(problems))
            lost, survivors, unanswered = self._compare(found, problems)
            oldest = min((at for _, at in lost), default=None)
            if oldest is not None:
                after = sum(begun > oldest for begun in survivors)
                if after:
                    problems.append(
                        f"{after} of the commits that are there were begun after a lost one was acknowledged"
                    )
            problems += _accounts(found, self.accounts)
            age = None if oldest is None or self._closed_at is None else max(0.0, self._closed_at - oldest)
            return CutVerdict(self.acknowledged, len(lost), age, unanswered, tuple(problems))

    def _compare(
        self, found: Found, problems: list[str]
    ) -> tuple[list[tuple[float, float]], list[float], int]:
        """Return the lost commits, when those that survived were begun, and how many nobody was told of."""
        there: dict[int, Counter[int]] = {client: Counter() for client in self._books}
        strange = [entry for entry in found.entries if entry.client not in there]
        for entry in found.entries:
            if entry.client in there:
                there[entry.client][entry.number] += 1
        lost: list[tuple[float, float]] = []
        survivors: list[float] = []
        unanswered = 0
        twice: list[str] = []
        gone: list[str] = []
        gaps: list[str] = []
        invented: list[str] = [f"{entry.client}/{entry.number}" for entry in strange]
        for client, book in self._books.items():
            numbers = there[client]
            twice += [f"{client}/{number}" for number, count in numbers.items() if count > 1]
            gone += [f"{client}/{n}" for n in range(1, book.settled + 1) if n not in numbers]
            told = book.settled + len(book.answered)
            allowed = told + (book.flying is not None)
            invented += [f"{client}/{n}" for n in numbers if not 1 <= n <= allowed]
            for number, times in enumerate(book.answered, book.settled + 1):
                if number in numbers:
                    survivors.append(times[0])
                else:
                    lost.append(times)
            if book.flying is not None and allowed in numbers:
                unanswered += 1
                survivors.append(book.flying)
            last = max((n for n in numbers if n <= allowed), default=0)
            gaps += [f"{client}/{n}" for n in range(book.settled + 1, last) if n not in numbers]
        broken = [f"{entry.client}/{entry.number}" for entry in found.entries if not entry.whole]
        for cases, what in (
            (twice, "in the ledger more than once"),
            (gone, "gone that the check before found"),
            (gaps, "missing although a later one of the same client is there"),
            (invented, "in the ledger that no client ever began"),
            (broken, "in the ledger with a wrong checksum"),
        ):
            if cases:
                problems.append(f"{counted(len(cases), 'commit')} {what}: {_some(cases)}")
        return lost, survivors, unanswered

    def settle(self, found: Found) -> None:
        """Go on from what was found: what is lost is lost once."""
        last = Counter(dict.fromkeys(self._books, 0))
        for entry in found.entries:
            last[entry.client] = max(last[entry.client], entry.number)
        with self._lock:
            for client, book in self._books.items():
                book.settled, book.answered, book.flying = last[client], [], None

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _accounts(found: Found, count: int) -> list[str]:
    """Return what does not agree between the accounts and the ledger."""
    balance: Counter[int] = Counter()
    version: Counter[int] = Counter()
    for entry in found.entries:
        balance[entry.source] -= entry.delta
        balance[entry.target] += entry.delta
        version[entry.source] += 1
        version[entry.target] += 1
    problems = []
    ids = Counter(account.id for account in found.accounts)
    for cases, what in (
        ([n for n in range(1, count + 1) if n not in ids], "missing"),
        ([n for n, times in ids.items() if times > 1], "there more than once"),
        ([n for n in ids if not 1 <= n <= count], "there that was never made"),
        (
            [a.id for a in found.accounts if a.balance != balance[a.id]],
            "with a balance that is not the sum of the ledger's rows",
        ),
        (
            [a.id for a in found.accounts if a.version != version[a.id]],
            "with a version that is not the number of the ledger's rows",
        ),
        ([a.id for a in found.accounts if not a.fits], "with a note that is not its last transaction's"),
    ):
        if cases:
            problems.append(f"{counted(len(cases), 'account')} {what}: {_some(cases)}")
    return problems


def _some(cases: Iterable[object]) -> str:
    names = [str(case) for case in cases]
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
