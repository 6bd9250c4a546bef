"""Does fio in the lab meet the disks' profiles? Within 10 %, for every load; prints the spread of the runs.

    python bench/disk_fidelity.py [--user-mode] [--profile NAME]… [--runs 3] [--seconds 6]

Each load runs at the least dilation at which the guest's own work hardly counts: on an emulated processor a
request costs a millisecond and more. Exit 1 if one is beyond 10 %, or this machine was too busy to say.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

import started

from ztune.disk import server
from ztune.disk.fidelity import CASES, Bench, CaseResult, Plug, plugged_into, table
from ztune.errors import MissingError
from ztune.lab import Guest, image
from ztune.lab.uml import GuestDisk, check_rights
from ztune.study import profiles

LIMIT = 0.10


def in_user_mode() -> Plug:
    """Return how disks come into guests in user mode, each of which has one from its start.

    Raises MissingError without an image, or without root's rights.
    """
    check_rights()
    found = image.find(user_mode=True)

    @contextlib.contextmanager
    def plug(disk: server.DiskServer, serial: str, rotation: int) -> Iterator[tuple[Guest, str]]:
        disks = [GuestDisk(serial, server.guest_socket(disk.socket), rotation)]
        with Guest.in_user_mode(found, 1024, disks) as guest:
            yield guest, f"/dev/disk/by-id/ztune-{serial}"

    return plug


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--profile", action="append", help="default hdd-7200 and ssd-sata")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--user-mode", action="store_true", help="guests in user mode, one for each run")
    args = parser.parse_args()
    off = 0
    with contextlib.ExitStack() as stack:
        try:
            if args.user_mode:
                plug, kind = in_user_mode(), "in user mode"
            else:
                guest = stack.enter_context(Guest.resume())
                plug, kind = plugged_into(guest), f"{guest.machine.accel}, {guest.machine.cpus} CPUs"
        except MissingError as error:
            print(f"skipped: {error}")
            return 0
        bench = stack.enter_context(Bench(plug))
        print(f"guest: {kind}; {args.runs} runs each")
        for name in args.profile or ["hdd-7200", "ssd-sata"]:
            profile = profiles.find(name)
            outcomes: list[CaseResult] = []
            for case in CASES:
                outcomes.append(
                    bench.outcome(
                        profile,
                        case,
                        runs=args.runs,
                        seconds=args.seconds,
                        progress=lambda text: print(text, file=sys.stderr, flush=True),
                    )
                )
            print("\n".join(table(name, outcomes, LIMIT)), flush=True)
            off += sum(abs(o.error) > LIMIT for o in outcomes)
    print("all within 10 %" if not off else f"{off} beyond 10 %")
    return 1 if off else 0


if __name__ == "__main__":
    started.script(main)
