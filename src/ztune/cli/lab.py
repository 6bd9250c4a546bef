"""``ztune lab``: the throw-away virtual machine in which layouts are tried for real."""

from __future__ import annotations

import sys
import time

import click

from ztune import output
from ztune.cli._options import argument, json_option, option, takes
from ztune.errors import InputError, MissingError
from ztune.lab import accel, build_user_mode, image, keeper
from ztune.lab import build as building
from ztune.lab.guest import Guest
from ztune.units import parse_size

_OPENZFS = option(
    "--openzfs", metavar="VERSION", help="OpenZFS version or its beginning, such as 2.1 or 2.3."
)
_FRESH = "in a fresh guest, which ends with the command"
_MEMORY = option("--memory", metavar="SIZE", default="2G", help="Memory of the guest.")


class _Progress:
    """One line that changes on a terminal; new steps only elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def __call__(self, text: str) -> None:
        step = text.partition(":")[0]
        if self._live and step == self._last:
            output.rewrite(text)
        elif step != self._last:
            output.echo(("\n" if self._live and self._last else "") + text, nl=not self._live, err=True)
        self._last = step

    def end(self) -> None:
        """Leave the line."""
        if self._live and self._last:
            output.echo(err=True)
        self._last = ""


def _mib(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise InputError(f"--memory: {error}") from None
    if size < 512 << 20:
        raise InputError(f"--memory {text} is too little: a guest takes at least 512M")
    return size >> 20


@click.group()
def command() -> None:
    """A throw-away virtual machine with OpenZFS and this host's programs.

    The guest has a Debian or Ubuntu kernel with OpenZFS, and sees this host's files read-only: every program
    installed here runs there. What it writes stays in its memory. Nothing is installed on this host.

    \b
    Examples:
      ztune lab build                 once: download, compile (ten to twenty minutes), save
      ztune lab run -- zpool version  one command in a fresh guest
      ztune lab up                    keep a guest running; then `ztune lab run`, `ztune lab shell`
      ztune lab down
      ztune lab list                  what is built, and whether a guest is up

    docs/lab.md says what is shared with this host and what the lab can tell.
    """


@command.command(short_help="Build the guest, once.")
@takes
def build(
    openzfs: str | None = _OPENZFS,
    kernel: str | None = option(
        "--kernel",
        metavar="RELEASE",
        help="Kernel or its beginning, such as 6.1; default the distribution's.",
    ),
    user_mode: bool = option(
        "--user-mode",
        help="A kernel that runs as a program of this host, without KVM and not emulated. Root's trials use "
        "it where KVM does not work.",
    ),
) -> None:
    """Build the guest: kernel, OpenZFS module, tools, saved state.

    Downloads packages with this host's apt configuration, as an ordinary user too, and compiles below ztune's
    state folder, in ten to twenty minutes on two cores. The module is compiled once per kernel and version of
    OpenZFS; what is there already is not built again.

    \b
    Examples:
      ztune lab build
      ztune lab build --openzfs 2.1     another version beside the first
      ztune lab build --user-mode       where KVM does not work: trials in real time
    """
    progress = _Progress()
    if user_mode and kernel:
        raise InputError("--user-mode builds the distribution's own kernel; leave --kernel out")
    if user_mode:
        _build_user_mode(openzfs, progress)
        return
    try:
        image = building.build(openzfs, kernel, progress)
        verdict = accel.verdict(image, progress)
        with Guest.resume(image.openzfs, progress=progress):
            pass
        began = time.monotonic()
        with Guest.resume(image.openzfs) as guest:
            ready = time.monotonic() - began
            said = guest.run(["zpool", "version"], check=True).stdout.decode().split()
    finally:
        progress.end()
    output.echo(f"kernel {image.kernel}, {' and '.join(said)}; a guest is ready in {ready:.1f} s")
    output.echo(_how(verdict.accel, verdict.reason))


def _build_user_mode(openzfs: str | None, progress: _Progress) -> None:
    try:
        image = build_user_mode.build(openzfs, progress)
        began = time.monotonic()
        with Guest.in_user_mode(image, 1024) as guest:
            ready = time.monotonic() - began
            said = guest.run(["zpool", "version"], check=True).stdout.decode().split()
    finally:
        progress.end()
    output.echo(f"kernel {image.kernel}, {' and '.join(said)}; a guest is ready in {ready:.1f} s")
    output.echo("root's trials with --on lab run in it where KVM does not work; it has one processor")


def _how(accel: str, reason: str) -> str:
    if accel == "kvm":
        return "guests run with KVM, at full speed"
    return f"guests run under emulation, twenty times slower: {reason}"


@command.command(short_help="Start a guest and keep it running.")
@takes
def up(
    openzfs: str | None = _OPENZFS,
    memory: str = _MEMORY,
    net: bool = option("--net", help="Let a port of 127.0.0.1 lead to the guest's port 22."),
) -> None:
    """Start a guest and keep it running until `ztune lab down`.

    `ztune lab run` and `ztune lab shell` then work in it. Without it, each makes a guest of its own.

    \b
    Examples:
      ztune lab up
      ztune lab up --openzfs 2.1 --memory 4G
    """
    progress = _Progress()
    try:
        about = keeper.start(openzfs, _mib(memory), net, progress)
    finally:
        progress.end()
    output.echo(f"a guest with OpenZFS {about['openzfs']}, kernel {about['kernel']} is up")
    output.echo(_how(about["accel"], about["reason"]))
    if about.get("ssh_port"):
        output.echo(f"its port 22 is 127.0.0.1:{about['ssh_port']}")
    output.echo(
        "  ztune lab run -- zpool list   a command in it; this host's files are at /host, live and read-only"
    )
    output.echo("  ztune lab shell               a shell in it")
    output.echo("  ztune lab down                end it; what it wrote is gone")


@command.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a command in a guest.",
)
@takes
def run(
    openzfs: str | None = _OPENZFS,
    fresh: bool = option("--fresh", help="In a guest of its own even if one is running."),
    argv: tuple[str, ...] = argument(nargs=-1, required=True, type=click.UNPROCESSED),
) -> None:
    """Run a command in the guest that is up, or in a fresh one; ends with its exit code.

    stdin, stdout and stderr are those of this command. It runs as the guest's root. This host's files are at
    /host, read-only.

    \b
    Examples:
      ztune lab run zpool version
      ztune lab run --openzfs 2.1 -- modinfo -F version zfs
      ztune lab run sh < script.sh
    """
    running = None if fresh else keeper.connect()
    if running is not None:
        if openzfs is not None:
            running.require(openzfs)
        sys.exit(running.run(argv))
    output.echo(_FRESH, err=True)
    progress = _Progress()
    with Guest.resume(openzfs, progress=progress) as guest:
        progress.end()
        sys.exit(keeper.relay(guest.start(argv)))


@command.command(short_help="Open a shell in a guest.")
@takes
def shell(openzfs: str | None = _OPENZFS) -> None:
    """Open a shell in the guest that is up, or in a fresh one.

    A fresh guest is gone when the shell ends.

    \b
    Examples:
      ztune lab shell
      ztune lab shell --openzfs 2.1
    """
    if not sys.stdin.isatty():
        raise MissingError("`ztune lab shell` needs a terminal; `ztune lab run -- CMD` needs none")
    # Not the host's start-up files: under emulation they take their time.
    argv = ("bash", "--norc", "--noprofile", "-i")
    running = keeper.connect()
    if running is not None:
        if openzfs is not None:
            running.require(openzfs)
        sys.exit(running.run(argv, terminal=True))
    output.echo(_FRESH, err=True)
    progress = _Progress()
    with Guest.resume(openzfs, progress=progress) as guest:
        progress.end()
        sys.exit(
            keeper.relay_terminal(guest.start(argv, terminal=keeper.terminal_size(), env=keeper.TERMINAL))
        )


@command.command(short_help="End the guest that is up.")
def down() -> None:
    """End the guest that is up; what it wrote is gone.

    Commands that still run in it are killed.

    \b
    Example:
      ztune lab down
    """
    output.echo("the guest has ended" if keeper.stop() else "no guest is up")


@command.command("list", short_help="What is built, and whether a guest is up.")
@takes
def list_(as_json: bool = json_option) -> None:
    """List the guests that are built, how they run here, and the one that is up.

    \b
    Examples:
      ztune lab list
      ztune lab list --json
    """
    running = keeper.connect()
    about = running.about if running else None
    try:
        verdict = accel.known()
    except MissingError:  # no QEMU
        verdict = None
    built = [
        {
            "openzfs": found.openzfs,
            "kernel": found.kernel,
            "user_mode": found.user_mode,
            "bytes": found.size(),
            "folder": str(found.folder),
        }
        for found in image.built()
    ]
    if as_json:
        how = {"accel": verdict.accel, "reason": verdict.reason} if verdict else None
        output.print_json({"images": built, "accel": how, "up": about})
        return
    if built:
        output.print_table(
            ("OpenZFS", "kernel", "MiB", "folder"),
            [(one.openzfs, one.kernel, str(one.size() >> 20), str(one.folder)) for one in image.built()],
            right=("MiB",),
        )
    else:
        output.echo("no guest is built; `ztune lab build` does it once")
    if verdict:
        output.echo(_how(verdict.accel, verdict.reason))
    if verdict and accel.in_user_mode(None):  # without one it would try, and a list starts no guest
        which = ", ".join(found.openzfs for found in image.built() if found.user_mode)
        output.echo(f"trials with --on lab run in user mode, in real time, with OpenZFS {which}")
    output.echo(f"a guest with OpenZFS {about['openzfs']} is up" if about else "no guest is up")
