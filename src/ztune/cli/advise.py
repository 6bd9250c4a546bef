"""``ztune advise``: what was best for loads like this, without a recording."""

from __future__ import annotations

from typing import Literal

import click

from ztune import output
from ztune.cli._options import argument, json_option, option, takes
from ztune.errors import InputError
from ztune.priors import evidence
from ztune.priors.prior import PriorQuestion, answer
from ztune.report import prior as report
from ztune.study.layout import MIN_ARC
from ztune.units import format_size, parse_size


@click.command("advise")
@takes
def command(
    database: str = argument(metavar="DATABASE"),
    disks: Literal["hdd", "ssd", "nvme"] = option("--disks", required=True, help="What the pool is made of."),
    memory: str | None = option("--memory", metavar="SIZE", help="The machine's memory, such as 64G."),
    size: str | None = option("--size", metavar="SIZE", help="How large the database is, such as 200G."),
    raid: Literal["stripe", "mirror", "raidz1", "raidz2", "raidz3"] = option(
        "--raid", default="stripe", help="How the disks work together."
    ),
    as_json: bool = json_option,
) -> None:
    """Say at once what was best for loads like yours, from runs that are there: a prior, not a measurement.

    It is made of the runs that ztune ships and of your own, and says of how many, how far off such an answer
    was on loads that it had not seen, what the advice in print says, and what is not known. It never says
    anything that weakens what a power cut leaves. `ztune tune` or a recording make it yours.

    \b
    Examples:
      ztune advise postgresql --disks ssd --memory 64G
      ztune advise mariadb --disks hdd --memory 64G --size 400G --raid mirror
      ztune advise rocksdb --disks nvme --json
    """
    of = evidence.named(database)
    # Half of the memory is the ARC that is proposed.
    ram = _bytes(memory, "--memory", 2 * MIN_ARC, ", of which OpenZFS takes half as its ARC")
    question = PriorQuestion(of.name, disks, ram, _bytes(size, "--size", 1 << 20), raid)
    found = answer(question, evidence.runs(of.name))
    if as_json:
        output.print_json(report.to_json(found, of))
    else:
        report.show(found, of)


def _bytes(text: str | None, flag: str, least: int, why: str = "") -> int | None:
    """Return the bytes that ``text`` means, ``least`` or more. Raises InputError."""
    if text is None:
        return None
    try:
        value = parse_size(text)
    except ValueError as error:
        raise InputError(f"{flag}: {error}") from None
    if value < least:
        raise InputError(f'{flag} is "{text}"; it is at least {format_size(least)}{why}, such as 64G')
    return value
