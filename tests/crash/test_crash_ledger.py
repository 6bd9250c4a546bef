"""The ledger and its check, on rows that are removed and damaged by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ztune.crash.ledger import CutVerdict, Ledger
from ztune.databases.crash_test import Found, FoundAccount, FoundEntry, Transaction

ACCOUNTS = 50


def told(ledger: Ledger, rounds: int, *, flying: tuple[int, ...] = ()) -> list[Transaction]:
    """``rounds`` commits of every client, all acknowledged, by turns; then those of ``flying`` begin one."""
    done = []
    for _ in range(rounds):
        for client in ledger.clients:
            transaction = ledger.begin(client)
            assert transaction is not None and ledger.acknowledge(transaction)
            done.append(transaction)
    for client in flying:
        transaction = ledger.begin(client)
        assert transaction is not None
        done.append(transaction)
    return done


def kept(transactions: list[Transaction]) -> Found:
    """What a database holds in which exactly these were done."""
    accounts = {n: FoundAccount(n, 0, 0, True) for n in range(1, ACCOUNTS + 1)}
    for t in transactions:
        for id_, delta in ((t.source, -t.delta), (t.target, t.delta)):
            old = accounts[id_]
            accounts[id_] = replace(old, balance=old.balance + delta, version=old.version + 1)
    entries = [FoundEntry(t.client, t.number, t.source, t.target, t.delta, True) for t in transactions]
    return Found(entries, list(accounts.values()))


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(3, ACCOUNTS, "seed")
    made.open()
    return made


def closed(ledger: Ledger, found: Found) -> CutVerdict:
    ledger.close()
    return ledger.check(found)


def test_all_there_is_nothing_lost(ledger: Ledger) -> None:
    verdict = closed(ledger, kept(told(ledger, 20)))
    assert verdict == CutVerdict(60, 0, None, 0, ())


def test_one_more_of_each_client_is_allowed_and_no_other(ledger: Ledger) -> None:
    done = told(ledger, 5, flying=(1, 3))
    assert closed(ledger, kept(done)) == CutVerdict(15, 0, None, 2, ())
    # Or it is not there: it was never acknowledged.
    assert ledger.check(kept(done[:-1])) == CutVerdict(15, 0, None, 1, ())
    late = Transaction.make("other", 2, 6, ACCOUNTS)
    verdict = ledger.check(kept([*done, late]))
    assert verdict.problems == ("1 commit in the ledger that no client ever began: 2/6",)


def test_the_last_ones_lost_is_a_loss_and_no_damage(ledger: Ledger) -> None:
    done = told(ledger, 10)
    verdict = closed(ledger, kept(done[:-4]))
    assert (verdict.lost, verdict.corrupt) == (4, False)
    assert verdict.oldest_s is not None and verdict.oldest_s >= 0
    # Lost once: the next check goes on from there, with other transactions under the same numbers.
    ledger.settle(kept(done[:-4]))
    assert ledger.acknowledged == 0
    ledger.open()
    again = ledger.begin(1)
    assert again is not None and again.number == 9 + (done[-4].client > 1)
    assert again.checksum not in {t.checksum for t in done}


def test_a_later_one_without_an_earlier_one_is_damage(ledger: Ledger) -> None:
    done = told(ledger, 10)
    # The same client's: a gap. Another client's: it was begun after the lost one was acknowledged.
    same = closed(ledger, kept([t for t in done if (t.client, t.number) != (2, 9)]))
    assert any("missing although a later one of the same client" in p for p in same.problems)
    other = ledger.check(kept([t for t in done if (t.client, t.number) != (1, 10)]))
    assert other.problems == ("2 of the commits that are there were begun after a lost one was acknowledged",)
    assert (same.lost, other.lost) == (1, 1)


def test_what_an_earlier_check_found_may_never_go(ledger: Ledger) -> None:
    done = told(ledger, 5)
    ledger.close()
    ledger.settle(kept(done))
    assert ledger.check(kept(done)) == CutVerdict(0, 0, None, 0, ())
    verdict = ledger.check(kept(done[:-1]))
    assert verdict.problems == ("1 commit gone that the check before found: 3/5",)


DAMAGE: dict[str, tuple[Callable[[Found], None], str]] = {
    "checksum": (
        lambda f: f.entries.__setitem__(3, replace(f.entries[3], whole=False)),
        "in the ledger with a wrong checksum: 1/2",
    ),
    "twice": (lambda f: f.entries.append(f.entries[0]), "in the ledger more than once: 1/1"),
    "stranger": (
        lambda f: f.entries.append(replace(f.entries[0], client=9)),
        "that no client ever began: 9/1",
    ),
    "old page": (
        lambda f: f.accounts.__setitem__(6, FoundAccount(7, 12345, f.accounts[6].version, True)),
        "with a balance that is not the sum of the ledger's rows: 7",
    ),
    "old version": (
        lambda f: f.accounts.__setitem__(6, replace(f.accounts[6], version=99)),
        "with a version that is not the number of the ledger's rows: 7",
    ),
    "note": (
        lambda f: f.accounts.__setitem__(6, replace(f.accounts[6], fits=False)),
        "with a note that is not its last transaction's: 7",
    ),
    "account gone": (lambda f: f.accounts.__delitem__(6), "1 account missing: 7"),
    "account twice": (lambda f: f.accounts.append(f.accounts[6]), "1 account there more than once: 7"),
    "new account": (
        lambda f: f.accounts.append(FoundAccount(51, 0, 0, True)),
        "there that was never made: 51",
    ),
    "own check": (lambda f: f.complaints.append("page 3 is bad"), "page 3 is bad"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_kind_of_damage_is_seen(ledger: Ledger, kind: str) -> None:
    found = kept(told(ledger, 5))
    assert not closed(ledger, found).corrupt
    damage, sentence = DAMAGE[kind]
    damage(found)
    verdict = ledger.check(found)
    assert any(sentence in problem for problem in verdict.problems), verdict.problems


def test_a_database_that_cannot_be_read_is_damaged_whatever_else(ledger: Ledger) -> None:
    told(ledger, 4)
    verdict = closed(ledger, Found(complaints=["the tables can't be read: short read"]))
    assert verdict == CutVerdict(12, 0, None, 0, ("the tables can't be read: short read",))


def test_what_is_answered_after_the_cut_does_not_count(ledger: Ledger) -> None:
    transaction = ledger.begin(2)
    assert transaction is not None
    ledger.close()
    assert not ledger.acknowledge(transaction)
    assert ledger.begin(2) is None
    assert ledger.acknowledged == 0
    assert ledger.check(kept([])) == CutVerdict(0, 0, None, 0, ())


def test_transactions_are_the_seeds_and_spread_over_all_accounts() -> None:
    made = [Transaction.make("a", 1, n, 10) for n in range(1, 400)]
    assert made == [Transaction.make("a", 1, n, 10) for n in range(1, 400)]
    assert made[0] != Transaction.make("b", 1, 1, 10)
    assert {t.source for t in made} == {t.target for t in made} == set(range(1, 11))
    assert all(t.source != t.target for t in made)
    assert len({len(t.payload) for t in made}) > 100
