"""A guest of the lab: OpenZFS in it, its commands, its disks, its ends, and what it shares with this host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from guests import Resume

from ztune import paths
from ztune.errors import InputError, ZtuneError
from ztune.lab import Guest
from ztune.lab import image as images
from ztune.lab.guest import ATTEMPTS, saved_state
from ztune.lab.image import Image
from ztune.lab.qemu import Machine
from ztune.lab.wire import GuestLost

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MIB = 1 << 20


def empty(path: Path, size: int = 128 * MIB) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def out(guest: Guest, script: str) -> str:
    return guest.run(["sh", "-euc", script], check=True).stdout.decode().strip()


# --- what it is


def test_openzfs_of_the_image_works(guest: Guest, tmp_path: Path) -> None:
    said = out(guest, "zpool version").split()
    assert said == [f"zfs-{guest.image.openzfs}", f"zfs-kmod-{guest.image.openzfs}"]
    assert out(guest, "uname -r") == guest.image.kernel
    disk = guest.add_disk(empty(tmp_path / "disk"), "works")
    try:
        out(guest, f"zpool create -O recordsize=8K works {disk}; seq 10000 > /works/file; zpool export works")
        out(guest, "zpool import works")
        assert out(guest, "cksum < /works/file; stat -c %o /works/file").split() == [
            *out(guest, "seq 10000 | cksum").split(), "8192",
        ]  # fmt: skip
        out(guest, "zpool destroy works")
    finally:
        guest.remove_disk("works")


def test_this_host_cannot_be_written(guest: Guest, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    for path in (f"/host{kept}", "/host/etc/hostname", "/lower/root/etc/hostname"):
        assert guest.run(["sh", "-c", f"echo changed > {path}"]).returncode != 0
    # Not even by root of the guest who takes the read-only flag away: QEMU refuses.
    guest.run(["mount", "-o", "remount,rw", "/host"])
    for script in (f"echo changed > /host{kept}", f"rm /host{kept}", f"chmod 777 /host{kept}"):
        assert guest.run(["sh", "-c", script]).returncode != 0, script
    guest.run(["mount", "-o", "remount,ro", "/host"])
    assert kept.read_text() == "as it was"
    # Its own / takes writes, which this host does not see; what changes here is seen at /host.
    name = f"/etc/ztune-lab-{os.getpid()}"
    assert out(guest, f"echo inside > {name}; cat {name}") == "inside"
    assert not Path(name).exists()
    kept.write_text("changed here")
    assert out(guest, f"cat /host{kept}") == "changed here"


# --- commands


def test_a_commands_end_is_told(guest: Guest) -> None:
    assert guest.run(["sh", "-c", "exit 7"]).returncode == 7
    assert guest.run(["sh", "-c", "kill -9 $$"]).returncode == 128 + signal.SIGKILL
    missing = guest.run(["no-such-program"])
    assert missing.returncode == 127 and b"no-such-program: No such file" in missing.stderr
    assert guest.run(["/etc/passwd"]).returncode == 126
    assert guest.run(["pwd"], cwd="/no/such/folder").returncode == 127
    with pytest.raises(ZtuneError, match="`sh -c echo so; exit 3` failed: so"):
        guest.run(["sh", "-c", "echo so; exit 3"], check=True)
    done = guest.run(
        ["sh", "-c", 'echo "$PWD $GREETING"; echo said >&2'], env={"GREETING": "a b"}, cwd="/etc"
    )
    assert (done.stdout, done.stderr) == (b"/etc a b\n", b"said\n")


def test_stdin_and_big_output_arrive_whole(guest: Guest) -> None:
    data = random.Random(1).randbytes(3 * MIB + 17)
    assert guest.run(["cat"], stdin=data).stdout == data
    # What a command does not read is dropped, as in any pipe.
    assert guest.run(["head", "-c", "5"], stdin=data).stdout == data[:5]
    both = guest.run(["sh", "-c", "head -c 2000000 /dev/zero & head -c 1000000 /dev/zero >&2; wait"])
    assert (len(both.stdout), len(both.stderr)) == (2_000_000, 1_000_000)


def test_a_reader_that_sleeps_holds_up_nobody(guest: Guest) -> None:
    talker = guest.start(["head", "-c", "3000000", "/dev/zero"])
    feeder = guest.start(["sleep", "1000"])
    with pytest.raises(TimeoutError):
        feeder.write(bytes(MIB), timeout=0.5)  # more than its window: nobody reads
    assert out(guest, "echo through") == "through"
    size = 0
    while piece := talker.read():
        size += len(piece[1])
    assert (size, talker.wait()) == (3_000_000, 0)
    feeder.signal(signal.SIGTERM)
    assert feeder.wait(30) == 128 + signal.SIGTERM


def test_a_command_past_its_time_is_killed_with_its_children(guest: Guest) -> None:
    with pytest.raises(ZtuneError, match="took more than 1 s"):
        guest.run(["sh", "-c", "sleep 4711 & sleep 4711"], timeout=1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = out(guest, "grep -lzx 4711 /proc/[0-9]*/cmdline 2>/dev/null || true")
        if not left:
            break
    assert left == ""


def test_a_channel_talks_in_lines(guest: Guest) -> None:
    channel = guest.popen(
        ["sh", "-c", 'while read -r l; do echo "got $l"; echo "heard $l" >&2; done; exit 5']
    )
    channel.send("one")
    lines = channel.lines()
    assert next(lines) == "got one"
    channel.send("two\n")
    assert next(lines) == "got two"
    channel.close()
    assert list(lines) == []
    assert channel.wait() == 5
    assert channel.stderr_tail() == "heard one\nheard two\n"


# --- disks


def test_disks_come_and_go(guest: Guest, tmp_path: Path) -> None:
    turning = guest.add_disk(empty(tmp_path / "a", 96 * MIB), "turning", 7200)
    try:
        flash = guest.add_disk(empty(tmp_path / "b"), "flash", 1, physical_block_size=512)
        look = "d=$(basename $(readlink -f {0})); cat /sys/block/$d/queue/rotational /sys/block/$d/size"
        assert out(guest, look.format(turning)).split() == ["1", str(96 * MIB // 512)]
        assert out(guest, look.format(flash)).split() == ["0", str(128 * MIB // 512)]
        with pytest.raises(InputError, match="has a disk flash already"):
            guest.add_disk(tmp_path / "b", "flash")
        out(guest, f"printf written > {flash}; sync")
        guest.remove_disk("flash")
        assert guest.run(["ls", flash]).returncode != 0
        assert (tmp_path / "b").read_bytes()[:7] == b"written"
        with pytest.raises(InputError, match="has no disk flash"):
            guest.remove_disk("flash")
        # The same name again is another disk.
        guest.add_disk(empty(tmp_path / "c"), "flash")
        assert out(guest, f"head -c 7 {flash} | tr -d '\\0'") == ""
        guest.remove_disk("flash")
        for bad in ("", "two words", "x" * 21):
            with pytest.raises(InputError, match="1 to 20 letters"):
                guest.add_disk(tmp_path / "c", bad)
        with pytest.raises(ZtuneError, match="no disk image or socket"):
            guest.add_disk(tmp_path / "nothing", "nothing")
    finally:
        guest.remove_disk("turning")


# --- its ends


def test_a_cut_loses_what_was_not_flushed(resume: Resume, tmp_path: Path) -> None:
    disk = empty(tmp_path / "disk")
    with resume() as guest:
        path = guest.add_disk(disk, "cut")
        out(
            guest,
            f"mkfs.ext4 -q {path}; mkdir /m; mount {path} /m; echo safe > /m/kept; sync; echo lost > /m/not",
        )
        folder = guest.qemu.console.parent
        waiting = guest.start(["sleep", "1000"])
        guest.cut()
        assert guest.qemu.process.poll() is not None and not folder.exists() and not guest.alive()
        with pytest.raises(GuestLost, match=r"the guest (has ended|was stopped)"):
            waiting.wait(10)
        with pytest.raises(GuestLost):
            guest.run(["true"])
    with resume() as guest:
        path = guest.add_disk(disk, "cut")
        assert out(guest, f"mkdir /m; mount {path} /m; cd /m; cat kept not 2>/dev/null || true") == "safe"


def test_two_guests_at_a_time_are_two(guest: Guest, resume: Resume) -> None:
    with resume() as other:
        drawn = {
            out(each, "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid")
            for each in (guest, other)
        }
        assert len(drawn) == 2
        out(other, "touch /tmp/mine")
        assert guest.run(["ls", "/tmp/mine"]).returncode != 0
        for each in (guest, other):
            assert abs(float(out(each, "date +%s.%N")) - time.time()) < 60
    assert out(guest, "echo still here") == "still here"


def test_nothing_outlives_a_killed_parent(guest: Guest) -> None:
    """``guest`` only holds the turn: the killed process has a guest of its own."""
    script = (
        "import time; from ztune.lab import Guest; g = Guest.resume();"
        "print(g.qemu.process.pid, g.qemu.console.parent, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            pid, folder = parent.stdout.readline().split()
            # A guest that does not get round to notice: the kernel ends it.
            os.kill(int(pid), signal.SIGSTOP)
        finally:
            parent.terminate()
    deadline = time.monotonic() + 60
    while (Path("/proc") / pid).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not (Path("/proc") / pid).exists()
    # Its folder goes with the next guest.
    with Guest.resume():
        assert not Path(folder).exists()


# --- what can be wrong


def test_a_version_that_is_not_built(lab_image: Image) -> None:
    with pytest.raises(
        InputError, match=r"the lab has OpenZFS .*, not 9\.9; `ztune lab build --openzfs 9\.9` adds it"
    ):
        Guest.resume("9.9")


@pytest.fixture(scope="module")
def states(lab_image: Image) -> Path:
    """Where the image's saved states are."""
    return lab_image.folder / "states" / lab_image.recipe


@pytest.fixture
def copied(lab_image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """A copy of the image, without its saved states, in a state folder of its own."""
    source, tried = lab_image.folder, paths.lab() / "accel.json"
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    target = images.images() / lab_image.name
    if tried.is_file():
        # Else each would try anew whether a kernel runs under KVM: ten seconds where none does.
        shutil.copy(tried, paths.lab())
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("states", "modules"))
    copy = images.find(lab_image.openzfs)
    assert copy.folder == target
    copy.save()
    (target / "states" / copy.recipe).mkdir(parents=True)
    return copy


@pytest.mark.parametrize("by", ["a copy", pytest.param("a boot", marks=pytest.mark.long)])
def test_a_damaged_state_is_made_anew(
    states: Path, copied: Image, guest: Guest, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """By booting a guest, which takes a minute under emulation, or with a copy of another guest's state."""
    machine, memory = guest.machine, 600
    if by == "a copy":
        memory, good = machine.memory, states / machine.state_name()
        monkeypatch.setattr("ztune.lab.guest._save", lambda _found, _machine, part: shutil.copy(good, part))
        monkeypatch.setattr("ztune.lab.guest._check_clock", lambda *_: None)
    mine = Machine(copied.vmlinuz, copied.initrd, machine.accel, memory, machine.cpus)
    state = copied.folder / "states" / copied.recipe / mine.state_name()
    state.write_bytes(b"no state at all")
    said: list[str] = []
    with Guest.resume(memory=memory, progress=said.append) as made:
        assert out(made, "cat /sys/module/zfs/version") == copied.openzfs
    assert said[-2:] == [
        "the saved state does not resume: making another", "booting a guest once, to save its state",
    ]  # fmt: skip
    assert state.stat().st_size > MIB


def test_the_clock_keeps_time(guest: Guest) -> None:
    assert abs(guest.clock_error()) < 0.02


def test_a_state_with_a_wrong_clock_is_not_kept(
    copied: Image, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that took its clock's rate while the host was busy: another is booted, and it is said why."""
    errors = [7.4, 0.001]
    monkeypatch.setattr(Guest, "clock_error", lambda _: errors.pop(0))
    monkeypatch.setattr("ztune.lab.guest._save", lambda found, machine, state: state.write_bytes(b"state"))
    monkeypatch.setattr(Guest, "_resume", lambda *_: contextlib.nullcontext(guest))
    said: list[str] = []
    made = saved_state(copied, guest.machine, said.append)
    assert made.is_file() and not errors
    assert "its clock runs 8.4 times as fast as this host's" in said[1]
    errors = [-0.5] * ATTEMPTS
    made.unlink()
    with pytest.raises(ZtuneError, match=r"0\.5 times as fast .* too busy"):
        saved_state(copied, guest.machine)
    assert not list(made.parent.glob("*.zst")) and not list(made.parent.glob("*.part"))


@pytest.mark.parametrize("part", ["initrd", "vmlinuz", "tools/usr/sbin/zpool"])
def test_a_damaged_image_is_named(copied: Image, part: str) -> None:
    path = copied.folder / part
    if part.startswith("tools"):
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(ZtuneError, match=r"image is damaged \(.*\); `ztune lab build --openzfs") as error:
        Guest.resume()
    assert "\n" not in str(error.value)


def test_commands_of_several_threads(guest: Guest) -> None:
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        data = str(number).encode() * 30000
        found[number] = guest.run(["sha256sum"], stdin=data).stdout.split()[0].decode()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {n: hashlib.sha256(str(n).encode() * 30000).hexdigest() for n in range(8)}
