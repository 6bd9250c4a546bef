"""The ``ztune`` command: finds the sub-command's module, runs it, turns errors into exit codes."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

from ztune import __version__, output
from ztune.errors import ZtuneError, disk_error
from ztune.onhost.host.interrupt import signals_as_interrupt

# name → its line in `ztune --help`, which so need not import every command: that would take a second.
# The module of that name has the `command`.
COMMANDS: dict[str, str] = {
    "advise": "What was best for loads like yours, at once: a prior.",
    "tune": "The whole loop: run a workload, record, screen, recommend.",
    "doctor": "What this machine can do, and what brings what is missing.",
    "list": "Workloads, layouts of the ready studies, advice and disk profiles.",
    "setup": "Install what a workload needs.",
    "observe": "What a live database does to its file system, and what to change.",
    "record": "Record the file I/O of a command or of running processes.",
    "trace": "Look at a recorded trace.",
    "screen": "Rank layouts for a recorded trace.",
    "fleet": "Many machines: their certificates, and whether they are ready.",
    "run": "Run the real database on layouts of real ZFS.",
    "clean": "Destroy what cut trials left behind.",
    "crashtest": "Cut a database's power again and again, and check each commit.",
    "recommend": "What to set for each role, and why.",
    "apply": "Put the recommended layout in place, or take it back.",
    "report": "Write the HTML report of a run.",
    "results": "Hand results on: one file, merged with others', as a page.",
    "runs": "The runs there are.",
    "store": "The runs of a team in one PostgreSQL; copies between stores.",
    "show": "One run, or one trial in full.",
    "claims": "What others claimed of databases on ZFS, and whether it holds.",
    "studies": "Published studies run again, their tables beside ours.",
    "mount": "Mount a layout: OpenZFS in user space, no kernel module.",
    "umount": "Unmount what `ztune mount` mounted.",
    "lab": "A throw-away virtual machine with OpenZFS.",
    "disk": "Measure a disk into a profile for studies and the lab.",
    "new": "The skeleton of a database of your own.",
}


# Looking for plugins, pydantic reads the entry points of every package that is installed, and a stranger's
# broken file would end every command. ztune has no use for them.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


class LazyGroup(click.Group):
    """A click group whose commands are imported on first use; each module exports ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the loop, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name`` and return its ``command``."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"ztune.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their lines."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=LazyGroup, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="ztune")
def ztune() -> None:
    """Find the ZFS layout that suits a database, with evidence.

    \b
    The loop: record a database's file I/O, screen many ZFS layouts against it with the real OpenZFS
    code in user space, recommend one per role, and print the commands.

    \b
      ztune doctor                   what this machine can do
      ztune advise postgresql --disks ssd        what was best elsewhere, at once
    Your server:
      ztune observe --pid 1234       what it does to its file system, and what to change
      ztune record --pid 1234 --seconds 60 --out my.trace
      ztune screen my.trace --profile nvme       rank layouts for it
      ztune recommend RUN            what to set, and why
      ztune apply RUN --dataset data=tank/pg     what that changes; --yes does it
    No server yet:
      ztune tune postgres-oltp       the whole loop on a PostgreSQL that ztune makes

    Exit codes: 0 done, 1 part of the work failed, 2 bad input, 3 this machine lacks something,
    130 interrupted.
    """


def main() -> None:
    """Entry point of the console script."""
    output.guard()
    try:
        # Whatever the command is doing: what it began is ended and removed before it goes.
        with signals_as_interrupt():
            code = ztune.main(standalone_mode=False)
            if sys.stdout is not None:  # closed by who started it
                sys.stdout.flush()
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        output.echo(said.getvalue(), err=True, nl=False)
        sys.exit(2)
    except ZtuneError as error:
        output.note(error)
        for note in getattr(error, "__notes__", ()):  # lines of another program
            output.echo(note, err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        full = disk_error(error)
        if full is None:
            raise
        output.note(full)
        sys.exit(full.exit_code)
    except (KeyboardInterrupt, click.exceptions.Abort) as stopped:
        # Of an interrupt click makes another exception.
        notes = getattr(stopped.__cause__ or stopped, "__notes__", ())
        output.echo("; ".join(("ztune: interrupted", *notes)), err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
