"""The options that commands share, in groups: a command gets one value for each group."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ztune.cli import _values
from ztune.cli._values import FiniteRange
from ztune.onhost.host.mounted import MountOptions
from ztune.places import named as places
from ztune.places.channel import Place
from ztune.places.placing import Placing
from ztune.runs.options import TrialOptions

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[F], F]

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Layouts at a time; default: one per core, fewer where memory is short. Together they take 60 % of "
    "the available memory at most; what their pools need beyond that goes to files in ZTUNE_HOME.",
)

seed_option = click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed instead of the study's.")

params_option = click.option(
    "-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
    callback=lambda _context, _param, given: _values.pairs(given),
    help="A parameter of the workload; `ztune list workloads NAME` shows them.",
)  # fmt: skip

profile_option = click.option(
    "--profile",
    metavar="NAME|FILE",
    help="Disks instead of the study's data disks, where disks are modelled.",
)

arc_option = click.option(
    "--arc", metavar="SIZE", help="Memory for the ARC, such as 64M or 7.5G, instead of the study's."
)


def _group(kind: type[Any], name: str, options: tuple[Option[Any], ...]) -> Callable[[F], F]:
    """Return a decorator: the command gets the values of ``options`` as one ``kind``, called ``name``."""
    fields = {field.name for field in dataclasses.fields(kind)}

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*words: Any, **given: Any) -> Any:
            values = {field: given.pop(field) for field in fields}
            return function(*words, **given, **{name: kind(**values)})

        for option in reversed(options):
            option(call)
        vars(call)["takes"] = fields
        return call  # type: ignore[return-value]

    return decorate


@dataclasses.dataclass(frozen=True)
class Where:
    """What the options say of the place of trials, beside its name."""

    pool: str | None
    parents: tuple[str, ...]
    disks: tuple[str, ...]
    files: str | None
    size: str
    pace: str | None
    page_cache: bool
    openzfs: str | None
    dilation: float | None

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        return any(value for name, value in vars(self).items() if name != "size")

    def place(self, on: str) -> Place:
        """Return the place ``on``, not yet up. Raises InputError."""
        placing = None
        if self.pool is not None or self.parents or self.disks or self.files is not None:
            placing = Placing.parse(
                pool=self.pool, parents=self.parents, disks=self.disks, files=self.files, size=self.size
            )
        mounting = None
        if self.pace is not None or self.page_cache:
            mounting = MountOptions(disks=self.pace or MountOptions().disks, page_cache=self.page_cache)
        return places.make(on, placing, self.openzfs, self.dilation, mounting)


where_options = _group(
    Where, "where", (
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
)
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Trials:
    """How many layouts run how often."""

    top: int
    blocks: str
    resolution: str
    time_limit: str | None

    def options(self, **more: Any) -> TrialOptions:
        """Return them as a run takes them, with ``more`` of its options. Raises InputError."""
        return TrialOptions(
            blocks=_values.blocks(self.blocks),
            resolution=_values.share(self.resolution, "--resolution"),
            time_limit_s=_values.duration(self.time_limit),
            **more,
        )


def trials_options(flag: str, when: str = "") -> Callable[[F], F]:
    """Return the options of ``Trials``. ``flag``: what ``--top`` goes with; ``when``: what all go with."""
    said = f"With {when}: " if when else ""

    def text(sentence: str) -> str:
        return said + (sentence[0].lower() + sentence[1:] if said else sentence)

    return _group(
        Trials, "trials",
        (
            click.option(
                "--top", type=click.IntRange(1), default=3, show_default=True,
                help=f"With {flag}: how many of the best.",
            ),
            click.option(
                "--blocks", default="3:8", show_default=True, metavar="MIN:MAX",
                help=text("The fewest and the most times that each layout runs."),
            ),
            click.option(
                "--resolution", default="2%", show_default=True, metavar="SHARE",
                help=text("Smaller differences don't matter; decides when it is enough."),
            ),
            click.option(
                "--time-limit", metavar="TIME",
                help=text("Begin no trial after this long: seconds, 30m, 2h."),
            ),
        ),
    )  # fmt: skip
