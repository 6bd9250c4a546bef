"""``ztune disk``: measures a disk into a profile for studies."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Literal

import click

from ztune import files, output
from ztune.cli._options import argument, option, takes
from ztune.cli._values import FiniteRange
from ztune.cli._waiting import StepLine
from ztune.disk import fio, under_test
from ztune.disk.measure import measure, really
from ztune.errors import InputError
from ztune.study.profile import FlashProfile
from ztune.units import parse_size


@click.command()
@takes
def command(
    target: str = argument(metavar="DEVICE|FILE|DIR"),
    out: Path | None = option("--out", help="Write the profile there instead of to stdout."),
    name: str | None = option("--name", help="The profile's name; default made from the target's."),
    kind: Literal["hdd", "flash"] | None = option("--kind", help="Default: as the kernel says."),
    write: bool = option("--write", help="Measure writes and flushes too. Destroys what is on a DEVICE."),
    yes: bool = option("--yes", help="With --write: this empty DEVICE is the one."),
    size: str | None = option("--size", metavar="SIZE", help="Of the scratch file in DIR.  [default: 8G]"),
    seconds: float = option("--seconds", type=FiniteRange(0.5, 600), default=8.0, help="Of each job."),
    as_json: bool = option("--json", help="Print JSON: profile, figures, notes."),
) -> None:
    """Measure a disk with fio; the result is a profile for studies and the lab.

    It only reads, unless --write is given. Then a DEVICE that is mounted, in a pool, or holds anything is
    refused, and in a DIR a scratch file is measured, which is removed in the end.

    \b
      ztune disk /dev/sdb --out sdb.toml            reads only; takes a minute and a half
      ztune disk /srv/db --write --out srv.toml     a scratch file on the database's disk
      ztune disk /dev/sdc --write --yes             an empty disk
    In a study:  profile = "sdb.toml"
    """
    fio.program()
    if out is not None and files.check(out):
        raise InputError(f"--out {out}: exists already; name a new file")
    try:
        bytes_ = parse_size(size) if size is not None else None
    except ValueError as error:
        raise InputError(f"--size: {error}") from None
    name = name or _name(target)
    if not re.fullmatch(FlashProfile.model_fields["name"].metadata[0].pattern, name):
        raise InputError(
            f"--name {name}: a profile's name begins with a letter and has letters, digits, _ . - only"
        )
    line = StepLine()
    try:
        with under_test.opened(target, write=write, yes=yes, size=bytes_, say=line.show) as disk:
            chosen = kind or disk.kind
            if chosen is None:
                raise InputError(
                    f"the kernel does not say whether {target} rotates; --kind hdd or flash does"
                )
            why = ""
            if kind is None:
                line.show("looking whether it rotates")
                chosen, why = really(lambda job: fio.run(disk.path, job), chosen, disk.size)
            flags = " --write" if write else ""
            named = shlex.quote(str(target))
            source = f"ztune disk {named}{flags} --kind {chosen} --seconds {seconds:g}, fio on a {disk.what}"
            found = measure(
                lambda job: fio.run(disk.path, job),
                chosen,
                disk.size,
                name,
                source,
                seconds=seconds,
                write=write,
                progress=lambda number, of, what: line.show(f"[{number}/{of}] {what}"),
            )
            if disk.what != "device" and chosen == "hdd":
                found.notes.append(
                    "a file lies on a part of the disk only: seeks are those over that part, "
                    "and the size is its own"
                )
            if why:
                found.notes.insert(0, why)
    finally:
        line.end()
    text = found.to_toml()
    if out is not None:
        files.write(out, text)
    if as_json:
        output.print_json(found.to_json())
    elif out is None:
        output.echo(text, nl=False)
    if out is not None:
        for note in found.notes:
            output.echo(f"note: {note}", err=True)
        output.echo(f'{out} is written; in a study: profile = "{out}"', err=True)


def _name(target: str) -> str:
    if target.startswith("nbd"):
        return "measured"
    return "disk-" + (re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(target).resolve().name).strip("-") or "root")
