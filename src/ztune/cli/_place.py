"""The options that say where trials run, shared by ``ztune run``, ``tune`` and ``clean``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ztune.cli._numbers import FiniteRange

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--pool", metavar="DATASET",
        help="On a host: the dataset of yours below which every pool of the layouts is put: tank/ztune.",
    ),
    click.option(
        "--parent", "parents", multiple=True, metavar="POOL=DATASET",
        help="The same for one pool of the layouts.",
    ),
    click.option(
        "--disk", "disks", multiple=True, metavar="POOL[.CLASS]=PATH,…",
        help="On a host: empty disks for a pool of the layouts, in the order of its vdevs; CLASS is log, "
        "cache or special. They are overwritten.",
    ),
    click.option("--files", metavar="DIR", help="On a host: files in DIR instead of disks, for a try."),
    click.option("--size", default="8G", show_default=True, help="The size of each such file."),
    click.option(
        "--disks", "pace", type=click.Choice(["profile", "instant"]),
        help=(
            "On a mount: disks with the times of their profiles, "
            "or as fast as this machine. [default: profile]"
        ),
    ),
    click.option("--page-cache", is_flag=True, help="On a mount: let the kernel cache pages; ZFS would not."),
    click.option("--openzfs", metavar="VERSION", help="In the lab: this version; default the newest built."),
    click.option(
        "--dilation", type=FiniteRange(1, 1000), metavar="N",
        help="In the lab: disks, load and timers N times slower than real; reported times are "
        "divided by N. Default: 1 with KVM, 20 under emulation.",
    ),
)  # fmt: skip

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Layouts at a time; default: one per core, fewer where memory is short. Together they take 60 % of "
    "the available memory at most; what their pools need beyond that goes to files in ZTUNE_HOME.",
)


def place_options(function: F) -> F:
    """Add the options to a command; it gets one argument for each."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def make_place(
    on: str,
    pool: str | None,
    parents: tuple[str, ...],
    disks: tuple[str, ...],
    files: str | None,
    size: str,
    openzfs: str | None,
    dilation: float | None = None,
    pace: str | None = None,
    page_cache: bool = False,
) -> Any:
    """Return the place that the options name, not yet up. Raises InputError."""
    from ztune.onhost.host.mounted import MountOptions
    from ztune.places import named as places
    from ztune.places.placing import Placing

    given = pool is not None or parents or disks or files is not None
    placing = (
        Placing.parse(pool=pool, parents=parents, disks=disks, files=files, size=size) if given else None
    )
    mounting = None
    if pace is not None or page_cache:
        mounting = MountOptions(disks=pace or MountOptions().disks, page_cache=page_cache)
    return places.make(on, placing, openzfs, dilation, mounting)


def pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Return the NAME=VALUE of ``-p``. Raises InputError."""
    from ztune.errors import InputError

    out = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f'-p is "{text}"; write NAME=VALUE, for example -p scale=50')
        out[name.strip()] = value.strip()
    return out


def share(text: str, flag: str) -> float:
    """Return the share that ``text`` means: "2%" and "0.02" are 0.02. Raises InputError."""
    from ztune.errors import InputError

    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise InputError(f'{flag} is "{text}"; it is a share above 0 and below 1, such as 2% or 0.02')
    return value


def blocks(text: str) -> tuple[int, int]:
    """Return the fewest and the most runs of "MIN:MAX" or "N". Raises InputError."""
    from ztune.errors import InputError

    low, colon, high = text.partition(":")
    try:
        least = int(low)
        most = int(high) if colon else least
    except ValueError:
        least, most = 0, 0
    if not 1 <= least <= most <= 1000:
        raise InputError(f'--blocks is "{text}"; write MIN:MAX with 1 ≤ MIN ≤ MAX ≤ 1000, or one number')
    return least, most


def duration(text: str | None) -> float | None:
    """Return the seconds of "90", "30m", "2h". Raises InputError."""
    from ztune.errors import InputError

    if text is None:
        return None
    scale = {"s": 1, "m": 60, "h": 3600}.get(text.strip()[-1:].lower(), 0)
    try:
        value = float(text.strip()[:-1]) * scale if scale else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise InputError(f'--time-limit is "{text}"; write seconds, or a number with m or h, such as 90m')
    return value
