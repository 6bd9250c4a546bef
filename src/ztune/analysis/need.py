"""What a layout's replay needed of disks and of processors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ztune.analysis import units

BOUND = 1.01
"""Times the recorded seconds that a layout's disks may need. Above it the job would have taken longer; a
hundredth is what a replay's last calls take."""
# Processor times of replays that differ by less are not told apart: the same replay takes that much more
# beside others on a busy machine (docs/recommendation.md).
SPREAD = 1.25
IDLE = 0.1
"""Of the recorded time: processors that are at work for less of it limit nothing, however fast disks are. Of
the recordings by which ``held`` was made, RocksDB with zstd-3 had them at work for 14 %."""
QUIET = 0.2
"""Of the recorded time: disks that are at work for less of it are told apart as if they were for so much. Two
of which one takes 4 % of the job's time and the other 4.5 % differ by an eighth, and no job gains by that."""


@dataclass(frozen=True)
class Need:
    """What a replay needed, in s: of the modelled disks, of processors (None: not reported); and how long the
    recorded job took (None: not known). ``work``: how many operations the job did, where others of the run
    did other work; else None.

    ``cpu`` is how long ``cores`` processors, all at work, take for what OpenZFS does to data: compression,
    decompression, checksums, parity, encryption and copies. ``cores`` None: of an older engine, which knew
    only its own processor time, with all the checks of a debugging build in it and on one processor.
    ``used`` is how long they are all at work with what else the recorded host did; None: not known.
    """

    disks: float
    cpu: float | None
    recorded: float | None
    work: float | None = None
    cores: int | None = None
    used: float | None = None

    @property
    def least(self) -> float:
        """The least that the recorded job takes, where it does not go faster than recorded."""
        return max(self.recorded or 0.0, self.disks, self.used or 0.0)

    @property
    def full(self) -> bool:
        """Whether the host's processors, and not its disks, would make the job longer than recorded."""
        return self.used is not None and self.recorded is not None and self.used >= self.least

    @property
    def quiet(self) -> float:
        """The modelled time, s, that differences count as shares of at least (``QUIET``); of one operation
        where the layouts' jobs differ, 0 where it is not known."""
        return QUIET * (self.recorded or 0.0) / (self.work or 1.0)

    @property
    def times(self) -> float:
        """How many times the recorded seconds the disks need; 0 where those are not known."""
        return self.disks / self.recorded if self.recorded else 0.0

    @property
    def outpaced(self) -> bool:
        """Whether the job went faster than the disks can."""
        return self.times > BOUND

    @property
    def both(self) -> float:
        """The time of the work if nothing of disks and processors went on at once; of one operation of it
        where the layouts' jobs differ."""
        return ((self.cpu or 0.0) + self.disks) / (self.work or 1.0)

    def takes_more(self, other: Need, within: float) -> bool:
        """Whether ``both`` is more than another layout's by more than ``within``, and not by the noise of
        processor times (``SPREAD``), be these much of both or little."""
        if not self.cpu or not other.cpu:
            return False
        mine, theirs = self.cpu / (self.work or 1.0), other.cpu / (other.work or 1.0)
        return mine > theirs * SPREAD and self.both > other.both * (1 + within)

    def both_text(self) -> str:
        """Return ``both`` for people."""
        return units.seconds(self.both) + ("" if self.work is None else " per op")

    @property
    def limited(self) -> bool:
        """Whether processors need clearly (``SPREAD``) longer than the recorded job took, or than the disks
        and are at work for more than a little (``IDLE``) of the job."""
        if self.cpu is None:
            return False
        recorded = self.recorded or 0.0
        return self.cpu > (recorded or math.inf) * SPREAD or (
            self.cpu > self.disks * SPREAD and self.cpu >= recorded * IDLE
        )

    def sentence(self) -> str:
        """Return the figures of processors and disks as a clause."""
        cpu = self.cpu or 0.0
        if self.cores is None:
            of = "of processor time for"
            text = f"{units.seconds(cpu)} {of} {units.seconds(self.disks)} of modelled time"
        else:
            of = "one processor" if self.cores == 1 else f"{self.cores} processors"
            text = f"{units.seconds(cpu)} of {of} for {units.seconds(self.disks)} of the disks"
        if cpu <= self.disks and self.recorded is not None:
            text += f" and {units.seconds(self.recorded)} recorded"
        return text
