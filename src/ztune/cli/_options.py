"""The options that commands share, in groups: a command gets one value for each group."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from ztune.cli import _values
from ztune.cli._values import FiniteRange
from ztune.errors import InputError
from ztune.onhost.words import ROLES
from ztune.runs.options import DEFAULT_TOP, TrialOptions

if TYPE_CHECKING:
    from ztune.places.channel import Place
    from ztune.places.rack import Rack

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class DeclaredOption:
    """An option or an argument, as it stands in place of the default of the parameter that gets its value."""

    kind: Callable[..., Callable[[Function], Function]]
    flags: tuple[str, ...]
    settings: dict[str, Any]

    def attach(self, function: Function, name: str, hint: Any) -> None:
        """Add it to a command's ``function``; what its parameter's type tells need not be said."""
        settings = dict(self.settings)
        if self.flags and hint is bool:
            settings["is_flag"] = True
        if self.flags and get_origin(hint) is tuple:
            settings["multiple"] = True
            hint = get_args(hint)[0]
        if get_origin(hint) in (Union, UnionType):
            hint = get_args(hint)[0]
        if hint is Path:
            # What can't be read is said by who reads it, with what would be right.
            settings.setdefault("type", click.Path(path_type=Path, readable=False))
        elif get_origin(hint) is Literal:
            settings.setdefault("type", click.Choice(get_args(hint)))
        self.kind(*self.flags, name, **settings)(function)

    def only_with(self, flag: str) -> DeclaredOption:
        """Return it with a help that says what it goes with."""
        text: str = self.settings["help"]
        said = f"With {flag}: {text[0].lower()}{text[1:]}"
        return dataclasses.replace(self, settings={**self.settings, "help": said})


def option(*flags: str, **settings: Any) -> Any:
    """Return the option ``flags`` with the settings of ``click.option``, for ``takes``; its help names a
    default.
    """
    return DeclaredOption(click.option, flags, {"show_default": bool(settings.get("default")), **settings})


def file_option(flag: str, text: str) -> Any:
    """Return an option that takes a file's path."""
    return option(flag, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=text)


def argument(**settings: Any) -> Any:
    """Return an argument with the settings of ``click.argument``, for ``takes``."""
    return DeclaredOption(click.argument, (), settings)


@dataclasses.dataclass(frozen=True)
class _Group:
    only_with: str


def group(only_with: str = "") -> Any:
    """Return the options that the fields of the parameter's type declare. All go with that flag, if any:
    one that is given without it is refused.
    """
    return _Group(only_with)


def takes(function: Function) -> Function:
    """Return a command's function as click takes it, with the options that its parameters declare."""
    groups: dict[str, tuple[type[Any], list[str], str]] = {}
    declared: dict[str, tuple[DeclaredOption, Any]] = {}
    hints = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(parameter.default, DeclaredOption):
            declared[name] = parameter.default, hints[name]
        elif isinstance(parameter.default, _Group):
            kind, flag = hints[name], parameter.default.only_with
            types = get_type_hints(kind)
            for field in types:
                one: DeclaredOption = getattr(kind, field)
                declared[field] = one.only_with(flag) if flag else one, types[field]
            groups[name] = kind, list(types), flag

    @functools.wraps(function)
    def call(*words: Any, **given: Any) -> Any:
        for name, (kind, fields, flag) in groups.items():
            if flag and given[flag.removeprefix("--")] is None:
                _check_not_given(kind, fields, flag)
            given[name] = kind(**{field: given.pop(field) for field in fields})
        return function(*words, **given)

    for name, (one, hint) in reversed(declared.items()):
        one.attach(call, name, hint)
    vars(call)["takes"] = set(declared)
    return call


def _check_not_given(kind: type[Any], fields: list[str], flag: str) -> None:
    context = click.get_current_context()
    for field in fields:
        if context.get_parameter_source(field) is ParameterSource.COMMANDLINE:
            raise InputError(f"{getattr(kind, field).flags[0]} goes with {flag}, which is not given")


def said(*but: str) -> list[str]:
    """Return the flags of the running command that the command line names, without those ``but``; of an
    argument its metavar."""
    context = click.get_current_context()
    return [
        one.opts[0] if isinstance(one, click.Option) else (one.metavar or str(one.name)).strip("[]")
        for one in context.command.params
        if one.opts[0] not in but
        and one.name is not None
        and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    ]


json_option = option("--json", help="Print JSON.")
jobs_option = option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Layouts at a time; default: one per core, fewer where memory is short. Together they take 60 % of "
    "the available memory at most; what their pools need beyond that goes to files in ZTUNE_HOME.",
)
seed_option = option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed instead of the study's.")
params_option = option(
    "-p",
    "--param",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _param, given: _values.pairs(given),
    help="A parameter of the workload; `ztune list workloads NAME` shows them.",
)
profile_option = option(
    "--profile",
    metavar="NAME|FILE",
    help="Disks instead of the study's data disks, where disks are modelled: a name of `ztune list "
    "profiles`, or a file of `ztune disk`. A recording of your own has one 7200 rpm disk unless you say.",
)
arc_option = option(
    "--arc", metavar="SIZE", help="Memory for the ARC, such as 64M or 7.5G, instead of the study's."
)
role_option = option(
    "--role",
    metavar="GLOB=ROLE",
    help="Another role for files of the trace, or - for none. Repeatable; a later one goes first. "
    f"Roles: {', '.join(ROLES)}.",
)
have_option = option(
    "--have",
    multiple=True,
    metavar="FACTOR=VALUE",
    help="Hardware that you have though the base layout leaves it unused, such as slog=nvme, arc=8G or "
    "wal.pool=logs: layouts that take it are then recommended, not listed as what you could buy.",
)
cores_option = option(
    "--cores",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Processors of the database's host, where compression and checksums run; default: those of "
    "--processor, else of the recorded host.",
)
processor_option = option(
    "--processor",
    metavar="FILE",
    help="Its processors' speed, from a file of `ztune doctor --processor` there; default: this machine's.",
)
advice_option = option(
    "--advice",
    metavar="NAME",
    help="Try this set of advice that is in print too (may be repeated); `ztune list advice` names them.",
)
elsewhere_option = option(
    "--no-elsewhere",
    help="Don't try whether the choice carries: the base, the layout to recommend and the next best are "
    "replayed once more with half and twice the ARC, two to six replays on top of --budget.",
)
sample_option = option(
    "--sample",
    metavar="1/N",
    help="Replay one address region of the data in N, with an Nth of the ARC, and every call on the logs; "
    "1/1 is all. Default: what the recording, the ARC and an engine's time suggest; the command says it.",
)
load_option = option(
    "--load",
    type=click.Choice(["all", "touched"]),
    help="What is written to the pools before a replay: all files, or the records that the recording "
    "touches; the rest counts as space. Default: all up to 1 GiB.",
)
budget_option = option(
    "--budget",
    type=click.IntRange(1, 100_000),
    help="The most layouts to search; default 32. It stops sooner where the chance of something better is "
    "small. The pairs that prove the recommendation come on top, and what would have to be bought.",
)


@dataclasses.dataclass(frozen=True)
class Where:
    """What the options say of the place of trials, beside its name."""

    pool: str | None = option(
        "--pool",
        metavar="DATASET",
        help="On a host: the dataset of yours below which every pool of the layouts is put: tank/ztune.",
    )
    parents: tuple[str, ...] = option(
        "--parent", metavar="POOL=DATASET", help="The same for one pool of the layouts."
    )
    disks: tuple[str, ...] = option(
        "--disk",
        metavar="POOL[.CLASS]=PATH,…",
        help="On a host: empty disks for a pool of the layouts, in the order of its vdevs; CLASS is log, "
        "cache or special. They are overwritten.",
    )
    files: str | None = option(
        "--files", metavar="DIR", help="On a host: files in DIR instead of disks, for a try."
    )
    size: str = option("--size", default="8G", help="The size of each such file.")
    pace: Literal["profile", "instant"] | None = option(
        "--disks",
        help="On a mount: disks with the times of their profiles, or as fast as this machine. "
        "[default: profile]",
    )
    page_cache: bool = option("--page-cache", help="On a mount: let the kernel cache pages; ZFS would not.")
    openzfs: str | None = option(
        "--openzfs",
        metavar="VERSION",
        help="In the lab or on a mount: this version of OpenZFS; "
        "default the newest that the lab has, and for a mount this machine's own.",
    )
    dilation: float | None = option(
        "--dilation",
        type=FiniteRange(1, 1000),
        metavar="N",
        help="In the lab: disks, load and timers N times slower than real; reported times are "
        "divided by N. Default: 1 with KVM, 20 under emulation.",
    )

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        return any(value for name, value in vars(self).items() if name != "size")

    def place(self, on: str) -> Place:
        """Return the place ``on``, not yet up. Raises InputError."""
        from ztune.places.rack import Rack  # see ``places``

        found = self.places(on)
        if isinstance(found, Rack):
            raise InputError(
                f"{on} names several hosts, which `ztune run --on {shlex.quote(on)}` uses; "
                "name one place here"
            )
        return found

    def places(self, on: str) -> Place | Rack:
        """Return the place ``on``, or the hosts of that file, not yet up. Raises InputError."""
        # Here, as most commands have no place, and few come so far.
        from ztune.onhost.host.mounted import MountOptions
        from ztune.places import named as places
        from ztune.places.placing import Placing

        placing = None
        if self.pool is not None or self.parents or self.disks or self.files is not None:
            placing = Placing.parse(
                pool=self.pool, parents=self.parents, disks=self.disks, files=self.files, size=self.size
            )
        mounting = None
        if self.pace is not None or self.page_cache:
            mounting = MountOptions(disks=self.pace or MountOptions().disks, page_cache=self.page_cache)
        return places.make_all(on, placing, self.openzfs, self.dilation, mounting)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How often layouts run."""

    blocks: str = option(
        "--blocks",
        default="3:8",
        metavar="MIN:MAX",
        help="The fewest and the most times that each layout runs.",
    )
    resolution: str = option(
        "--resolution",
        default="2%",
        metavar="SHARE",
        help="Smaller differences don't matter; decides when it is enough.",
    )

    def options(self, **more: Any) -> TrialOptions:
        """Return them as a run takes them, with ``more`` of its options. Raises InputError."""
        return TrialOptions(
            blocks=_values.blocks(self.blocks),
            resolution=_values.share(self.resolution, "--resolution"),
            **more,
        )


@dataclasses.dataclass(frozen=True)
class Trials(Blocks):
    """How many layouts run how often, and for how long."""

    top: int = option(
        "--top",
        type=click.IntRange(1, 1000),
        default=DEFAULT_TOP,
        help="The most layouts of a screening to measure beside the baseline; fewer where another is "
        "unlikely to be better.",
    )
    time_limit: str | None = option(
        "--time-limit", metavar="TIME", help="Begin no trial after this long: seconds, 30m, 2h."
    )

    def options(self, **more: Any) -> TrialOptions:
        """Return them as a run takes them, with ``more`` of its options. Raises InputError."""
        return super().options(time_limit_s=_values.duration(self.time_limit), **more)
