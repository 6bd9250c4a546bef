"""The host's side of a guest without one: frames, QEMU's command line, apt's lists, the verdict on KVM."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import environment
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ztune import native
from ztune.cli import lab as cli
from ztune.doctor import checks
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.lab import Guest, accel, apt, image, keeper, qemu
from ztune.lab.image import Image
from ztune.lab.qemu import Machine
from ztune.lab.wire import WINDOW, Frame, Frames, GuestLost, Port, pack
from ztune.onhost.host.about import boot_id
from ztune.places.lab import Lab

MACHINE = Machine(Path("/k"), Path("/i"), "tcg", 1024, 2)


@given(
    st.lists(st.tuples(st.sampled_from(Frame), st.integers(0, 2**32 - 1), st.binary(max_size=50))), st.data()
)
def test_frames_survive_any_cutting(frames: list[tuple[Frame, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(pack(*frame) for frame in frames)
    reader, found, at = Frames(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += list(reader.feed(stream[at : at + size]))
        at += size
    assert found == frames


def test_what_is_no_frame_is_skipped() -> None:
    reader = Frames()
    noise = b"Zoo \xff" * 5
    assert list(reader.feed(noise + pack(Frame.EXIT, 3, b"abcd"))) == [(Frame.EXIT, 3, b"abcd")]


class Far:
    """The guest's end of a port."""

    def __init__(self) -> None:
        ours, self.stream = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # as a real guest's
        self.port = Port(ours, lambda: "it died")
        self.frames = Frames()
        self.waiting: list[tuple[Frame, int, bytes]] = []

    def take(self) -> tuple[Frame, int, bytes]:
        while not self.waiting:
            self.waiting += self.frames.feed(self.stream.recv(1 << 16))
        return self.waiting.pop(0)

    def say(self, frame: Frame, ident: int, payload: bytes = b"") -> None:
        self.stream.sendall(pack(frame, ident, payload))


def test_output_is_credited_as_it_is_taken() -> None:
    far = Far()
    command = far.port.start(["echo", "ä"], {"A": "b"}, "/d")
    frame, ident, payload = far.take()
    assert frame is Frame.RUN
    assert payload == struct.pack("<IHHI", 0, 0, 0, 2) + "/d\0echo\0ä\0A=b\0".encode()
    far.say(Frame.STDOUT, ident, b"one")
    far.say(Frame.STDERR, ident, b"two!")
    far.say(Frame.EXIT, ident, struct.pack("<I", 5))
    assert command.wait(10) == 5
    assert [command.read(), command.read(), command.read()] == [
        (Frame.STDOUT, b"one"), (Frame.STDERR, b"two!"), None,
    ]  # fmt: skip
    far.port.close()


def test_a_writer_waits_for_its_window() -> None:
    far = Far()
    command = far.port.start(["cat"], {})
    ident = far.take()[1]
    with pytest.raises(TimeoutError):
        command.write(bytes(WINDOW + 1), timeout=0.2)
    got = 0
    while got < WINDOW:
        got += len(far.take()[2])
    writer = threading.Thread(target=command.write, args=(b"more",))
    writer.start()
    far.say(Frame.TAKEN, ident, struct.pack("<I", WINDOW))
    assert far.take()[2] == b"more"
    writer.join(10)
    far.port.close()


def test_a_guest_that_dies_ends_every_wait() -> None:
    far = Far()
    command = far.port.start(["sleep"], {})
    far.stream.close()
    with pytest.raises(GuestLost, match="it died"):
        command.wait(10)
    with pytest.raises(GuestLost, match="it died"):
        command.read(10)
    with pytest.raises(GuestLost, match="it died"):
        far.port.start(["true"], {})
    with pytest.raises(GuestLost, match="it died"):
        far.port.expect(Frame.READY, 10)


def test_words_that_cannot_be_sent() -> None:
    far = Far()
    for argv in ([], ["a\0b"], ["x" * (1 << 19)]):
        with pytest.raises(ValueError):
            far.port.start(argv, {})
    far.port.close()


# --- QEMU


@pytest.fixture
def fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "qemu-system-x86_64"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'QEMU emulator version 9.1.0 (Test 1:9.1)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    return program


def test_the_host_is_shared_read_only_and_the_network_is_closed(fake_qemu: Path) -> None:
    argv = MACHINE.argv(Path("/c"), {"root": Path("/"), "odd": Path("/a,b")})
    shares = [argv[n + 1] for n, word in enumerate(argv) if word == "-fsdev"]
    assert len(shares) == 2 and all("readonly=on" in share for share in shares)
    assert "path=/a,,b" in shares[1]
    nets = [word for word in argv if word.startswith("user,")]
    assert nets == ["user,id=net,restrict=on"]
    assert "hostfwd=tcp:127.0.0.1:2222-:22" in " ".join(MACHINE.argv(Path("/c"), {}, 2222))
    assert not any(word.startswith("-drive") for word in argv)


def test_a_saved_state_belongs_to_one_machine(fake_qemu: Path) -> None:
    names = {
        MACHINE.state_name(),
        Machine(Path("/k"), Path("/i"), "kvm", 1024, 2).state_name(),
        Machine(Path("/k"), Path("/i"), "tcg", 2048, 2).state_name(),
        Machine(Path("/k"), Path("/i"), "tcg", 1024, 1).state_name(),
    }
    assert len(names) == 4 and all("9.1.0-Test-1-9.1" in name for name in names)
    fake_qemu.write_text(fake_qemu.read_text().replace("9.1.0", "9.2.0"))
    assert MACHINE.state_name() not in names


def test_qemu_that_ends_at_once_is_quoted(fake_qemu: Path, tmp_path: Path) -> None:
    fake_qemu.write_text("#!/bin/sh\necho 'qemu: no such thing' >&2; exit 1\n")
    with pytest.raises(GuestLost, match="QEMU ended: qemu: no such thing"):
        qemu.Qemu([str(fake_qemu), "-nodefaults"], tmp_path / "console")


def test_no_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match=r"needs QEMU \(qemu-system-x86_64\): .*or `make lab`"):
        qemu.version()
    assert checks.check_lab().fix == "make lab"


# --- KVM


def test_the_verdict_is_of_this_boot_and_this_qemu(fake_qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert accel.known() is None
    said = {"accel": "tcg", "reason": "why", "boot_id": boot_id(), "qemu": "9.1.0 (Test 1:9.1)"}
    accel._file().write_text(json.dumps(said))
    found = accel.known()
    assert found is not None and (found.accel, found.reason) == ("tcg", "why")
    for field in ("boot_id", "qemu"):
        accel._file().write_text(json.dumps({**said, field: "another"}))
        assert accel.known() is None
    accel._file().write_text("{")
    assert accel.known() is None


def test_why_there_is_no_kvm_is_said_in_qemus_words() -> None:
    said = accel._refusal(
        ZtuneError(
            "QEMU ended: qemu-system-x86_64: ../../target/i386/kvm/kvm.c:3183: f: Assertion `x' failed."
        )
    )
    assert said == "/dev/kvm is there, but no kernel boots under it (f: Assertion `x' failed.)"


def test_doctor_says_how_guests_run(fake_qemu: Path, tmp_path: Path) -> None:
    assert checks.check_kvm(tmp_path / "none").state is checks.State.MISSING
    device = tmp_path / "kvm"
    device.write_text("")
    found = checks.check_kvm(device)
    assert found.state is checks.State.LIMITED and found.fix == "ztune lab build"
    said = {"accel": "tcg", "reason": "no kernel boots", "boot_id": boot_id(), "qemu": qemu.version()}
    accel._file().write_text(json.dumps(said))
    assert checks.check_kvm(device).means.startswith("no kernel boots: the lab's guests are emulated")
    accel._file().write_text(json.dumps({**said, "accel": "kvm", "reason": ""}))
    assert checks.check_kvm(device).state is checks.State.OK
    assert "not built yet" in checks.check_lab().means


def test_doctor_says_which_openzfs_is_on_which_kernel(
    fake_qemu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [Image("a", "6.1.1-um", "2.3.2-2", "", user_mode=True), Image("b", "6.1.0", "2.1.11-1", "")]
    monkeypatch.setattr(image, "built", lambda: images)
    monkeypatch.setattr(Image, "check", lambda _self: None)
    monkeypatch.setattr(type(native.DISK), "find", lambda _self: Path("/disk"))
    monkeypatch.setattr(checks, "_sbin", lambda program: program)
    said = checks.check_lab().means
    assert said.startswith("OpenZFS 2.3.2-2 on kernel 6.1.1-um, OpenZFS 2.1.11-1 on kernel 6.1.0, for")


def test_an_emulated_run_says_that_another_version_is_not(
    fake_qemu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Image("b", "6.1.0", "2.1.11-1", "recipe")
    images = [old]
    monkeypatch.setattr(image, "built", lambda: images)
    lab = Lab("2.1")
    monkeypatch.setattr(lab, "_guest", SimpleNamespace(machine=MACHINE, image=old, why_no_kvm="none"))
    assert "warnings" not in lab.describe()
    images.append(Image("a", "6.1.1-um", "2.3.2-2", "recipe", user_mode=True))
    [said] = lab.describe()["warnings"]
    assert "no guest in user mode with OpenZFS 2.1.11-1" in said and "its times can't" in said


def test_a_command_in_a_fresh_guest_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever left something in a guest that was up, and is no more, would else look for it in vain."""
    fresh = SimpleNamespace(start=lambda argv: None)
    monkeypatch.setattr(keeper, "connect", lambda: None)
    monkeypatch.setattr(Guest, "resume", lambda *_args, **_named: nullcontext(fresh))
    monkeypatch.setattr(keeper, "relay", lambda _command: 7)
    done = CliRunner().invoke(cli.command, ["run", "true"])
    assert done.exit_code == 7 and "in a fresh guest" in done.stderr and not done.stdout


# --- apt


def fake(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


class Local(apt.Apt):
    """apt's programs from a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def _run(self, program: str, *argv: str, cwd: Path | None = None) -> str:
        return super()._run(str(self.folder / program), *argv, cwd=cwd)


def test_apts_answers_are_read(tmp_path: Path) -> None:
    fake(
        tmp_path, "apt-cache",
        """case $1 in
        madison) cat <<E
 zfs-dkms | 2.3.2-2~bpo12+2 | file:/x bookworm-backports/contrib amd64 Packages
 zfs-dkms | 2.1.11-1 | file:/x bookworm/contrib amd64 Packages
 zfs-dkms | 2.1.11-1 | file:/x bookworm/contrib Sources
E
        ;; show) echo 'Depends: libzpool5 (= 2.3.2-2~bpo12+2), libc6 (>= 2.34) | libc6-x, python3:any, sed'
        ;; search) echo 'linux-image-6.1.0-1-amd64 - Linux' ;; esac""",
    )  # fmt: skip
    local = Local(tmp_path)
    assert local.versions("zfs-dkms") == ["2.3.2-2~bpo12+2", "2.1.11-1"]
    needs = [("libzpool5", "2.3.2-2~bpo12+2"), ("libc6", ""), ("python3", ""), ("sed", "")]
    assert local.depends("x") == needs
    assert local.names("^linux") == ["linux-image-6.1.0-1-amd64"]


def test_no_network_is_one_sentence(tmp_path: Path) -> None:
    said = "E: Failed to fetch x  Could not resolve host"
    fake(tmp_path, "apt-get", f"echo 'W: noise' >&2; echo '{said}' >&2; exit 100")
    with pytest.raises(MissingError) as error:
        Local(tmp_path).download(["a"], tmp_path / "into")
    assert str(error.value).startswith("the lab's packages can't be had: ")
    assert str(error.value).endswith("says: Failed to fetch x  Could not resolve host")


def test_unpacking_what_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_text("no package")
    with pytest.raises(ZtuneError, match=r"x\.deb can't be unpacked"):
        apt.unpack(tmp_path / "x.deb", tmp_path / "into")


def test_a_host_without_sources(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    with pytest.raises(ZtuneError, match="no apt source of"):
        apt.private(tmp_path / "lab", lambda _: None, tmp_path / "etc")


# --- the keeper


def test_nobody_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    assert keeper.connect() is None
    assert keeper.stop() is False
    # A socket that a killed keeper left is nobody either.
    with socket.socket(socket.AF_UNIX) as dead, keeper._address() as address:
        dead.bind(address)
    assert keeper.connect() is None


KEEPER = """
import json, os, socket, time
from ztune.lab import keeper
from ztune.lab.wire import Frame, Frames, pack
server = socket.socket(socket.AF_UNIX)
with keeper._address() as address:
    server.bind(address)
server.listen()
print("up", flush=True)
stream, frames = server.accept()[0], Frames()
while data := stream.recv(1 << 16):
    for frame, ident, payload in frames.feed(data):
        about = json.dumps({"pid": os.getpid()}).encode()
        stream.sendall(pack(Frame.READY, 0, b"") if payload == b"down" else pack(Frame.HELLO, 0, about))
time.sleep(0.5)  # it ends the guest's machine, and removes what that had
"""


def test_after_down_nobody_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper answers first, and then ends: an `up` at once found it still there."""
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    env = environment(ZTUNE_HOME=str(tmp_path))
    words = [sys.executable, "-c", KEEPER]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        assert keeper.stop() is True
        assert process.poll() == 0
    assert keeper.connect() is None


def test_a_state_folder_of_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket has 107 bytes at most."""
    home = tmp_path / ("long" * 30)
    monkeypatch.setenv("ZTUNE_HOME", str(home))
    with socket.socket(socket.AF_UNIX) as server, keeper._address() as address:
        server.bind(address)
    assert (home / "cache" / "lab" / "up.sock").is_socket()


def test_the_wrong_version_is_up() -> None:
    running = keeper.RunningGuest.__new__(keeper.RunningGuest)
    running.about = {"openzfs": "2.3.2-2"}
    running.require("2.3")
    with pytest.raises(InputError, match=r"has OpenZFS 2\.3\.2-2, not 2\.1; end it with .* or use --fresh"):
        running.require("2.1")
