"""No room: a load without an end is stopped and removed, and a mount whose disk is full says so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import needs
import private_disk
import pytest

pytestmark = pytest.mark.skipif(
    bool(private_disk.lacking() or needs.mount()), reason=private_disk.lacking() or needs.mount()
)

SCRIPT = """
recipe = DISK.parent / "endless.toml"
recipe.write_text('''
name = "endless"
version = "echo 1.0"
roles = ["data"]
load = 'while :; do head -c 1000000 /dev/zero; sleep 0.02; : {folder}; done > "$ZTUNE_DATA/lines"'
measure = 'true'
operations = 'did ([0-9]+)'
[[check]]
name = "it is there"
command = 'echo yes'
expect = "yes"
''')
for name in ("tmp", "home"):
    (DISK / name).mkdir()
    (DISK / name).chmod(0o711)
DISK.chmod(0o711)
environment = {{**os.environ, "TMPDIR": str(DISK / "tmp"), "ZTUNE_HOME": str({home})}}
code = "from ztune.cli.main import main; main()"
words = {words!r} + ["-p", f"file={{recipe}}"]
done = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)
print(done.stdout, done.stderr)
assert done.returncode == 1 and "Traceback" not in done.stderr, done
assert list((DISK / "tmp").iterdir()) == []
assert os.statvfs(DISK).f_bavail * 4096 > 90 << 20, "what it wrote is removed"
"""


@pytest.mark.parametrize("how", ["recorded", "prepared"])
def test_an_endless_load_is_stopped(how: str) -> None:
    with tempfile.TemporaryDirectory(prefix="zs-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        (disk := folder / "d").mkdir()
        if how == "recorded":
            words, home = ["tune", "command", "--out", str(folder / "out")], 'DISK / "home"'
        else:
            # The mounts' disks have another place, where there is room.
            words, home = ["run", "command", "--on", "mount", "--blocks", "1"], 'DISK.parent / "h"'
        said = private_disk.run(disk, SCRIPT.format(folder=folder, words=words, home=home), "128m")
        what = "workload command" if how == "recorded" else "the load"
        assert f"{what} was stopped, and what it wrote is removed" in said, said
        assert f"of 128.0 MiB are left below {disk}" in said and "6.4 MiB stay free" in said, said
        assert "No space left" not in said, said
        # No process that wrote is left.
        running = [
            path for path in Path("/proc").glob("[0-9]*/cmdline") if f"yes\0{folder}".encode() in _read(path)
        ]
        assert running == []


MOUNTED = """
os.environ["ZTUNE_HOME"] = str(DISK / "h")
place = DISK / "m"

def ztune(*words):
    code = "from ztune.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done

def full():
    assert ztune("mount", "sqlite", str(place), "--disks", "instant").returncode == 0
    fill()
    data = next(place.iterdir()) / "rows"
    try:
        with data.open("wb", buffering=0) as file:
            for _ in range(200):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    except OSError:
        pass

full()
assert "can't be written: No space left on device; the mount ends" in ztune("mount", "--list").stdout
done = ztune("umount", str(place))
assert done.returncode == 0 and "No space left on device; the mount ends" in done.stderr, done
empty()
full()
done = ztune("umount", "--destroy", str(place))
assert done.returncode == 0 and "is deleted" in done.stdout, done
assert ztune("mount", "--list").stdout.startswith("Nothing is mounted and nothing kept")
empty()
assert list((DISK / "h" / "mounts").iterdir()) == [] and not place.exists()
"""


def test_a_mount_whose_disk_is_full_says_so_and_can_be_destroyed() -> None:
    with tempfile.TemporaryDirectory(prefix="zs-", dir="/var/tmp") as name:
        (disk := Path(name) / "d").mkdir()
        private_disk.run(disk, MOUNTED, "200m")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
