"""Settings of a database that a layout may choose, where each is one of some words or a whole number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from ztune.errors import InputError


def by_name(sentences: Mapping[str, str]) -> dict[str, str]:
    """Return setting → sentence, from sentence → settings with blanks between."""
    return {name: why for why, names in sentences.items() for name in names.split()}


def _refuse_owned(name: str, owned: Mapping[str, str]) -> None:
    if name in owned:
        raise InputError(f"database setting {name!r} can't be chosen by a layout: {owned[name]}")


def _refuse_word(name: str, value: str, allowed: Sequence[str], right: bool) -> None:
    if allowed and not right:
        raise InputError(f"database setting {name} is {value!r}; it is one of {', '.join(allowed)}")


def check_values(
    settings: Mapping[str, str], words: Mapping[str, tuple[str, ...]], owned: Mapping[str, str]
) -> None:
    """Refuse settings that aren't the layout's, or that have none of the words that they take.

    For a database that has more settings than are listed in ``words``: the others pass. A word may be cut
    short.

    Raises:
        InputError: the sentence names the first such setting, and what would be right.
    """
    for name, value in settings.items():
        _refuse_owned(name, owned)
        allowed = words.get(name, ())
        right = any(word.lower().startswith(value.lower() or "?") for word in allowed)
        _refuse_word(name, value, allowed, right)


def check_names(what: str, settings: Iterable[str], known: Sequence[str], common: Iterable[str]) -> None:
    """Refuse settings that a server does not list as its own.

    Args:
        what: how messages call it, with its version.
        settings: names that the layout sets.
        known: all that it has, as it says itself.
        common: some to name where none is like the wrong one.

    Raises:
        InputError: the sentence names the first such setting, and one like it where there is one.
    """
    for name in settings:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            such = ", ".join(one for one in common if one in known)
            hint = f"did you mean {close[0]!r}?" if close else f"such are {such}"
            raise InputError(f"{what} has no setting {name!r}; {hint}")


def check(
    database: str,
    settings: Mapping[str, str],
    known: Mapping[str, tuple[str, ...]],
    owned: Mapping[str, str],
) -> None:
    """Refuse settings of a layout that aren't the database's or not the layout's.

    Args:
        database: how messages call it.
        settings: the layout's.
        known: those it may choose, with the words that are allowed; none: a whole number.
        owned: those it may not, and why.

    Raises:
        InputError: the sentence names the first such setting, and what would be right.
    """
    for name, value in settings.items():
        _refuse_owned(name, owned)
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise InputError(f"{database} has no setting {name!r} that a layout could choose; {hint}")
        allowed = known[name]
        _refuse_word(name, value, allowed, value.lower() in [word.lower() for word in allowed])
        if not allowed and not value.lstrip("-").isdigit():
            raise InputError(f"database setting {name} is {value!r}; it takes a whole number")
