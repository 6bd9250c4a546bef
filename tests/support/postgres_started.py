"""A PostgreSQL of the tests' own, on a socket: its superuser is postgres, and nobody needs a password."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ztune.databases.postgresql.onhost.server import find_binaries


@contextmanager
def postgres(*, on_disk: bool = False) -> Iterator[str]:
    """Yield the folder of its socket and of its data; in memory where that can be, unless ``on_disk``."""
    # Short: a socket's path takes about 100 bytes. Other tests use the disks.
    parent = "/dev/shm" if not on_disk and os.access("/dev/shm", os.W_OK | os.X_OK) else "/var/tmp"
    folder = Path(tempfile.mkdtemp(prefix="zpg-", dir=parent))
    binaries = find_binaries().directory
    user = None
    if os.geteuid() == 0:
        user = "postgres"
        folder.chmod(0o755)
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)

    def run(*argv: str) -> None:
        done = subprocess.run(
            argv, user=user, group=user, extra_groups=None if user is None else [], capture_output=True,
            cwd="/", text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout

    data, log = folder / "data", folder / "log"
    try:
        run(str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8")
        options = f"-c listen_addresses= -c fsync=off -k {folder}"
        run(str(binaries / "pg_ctl"), "-D", str(data), "-l", str(log), "-o", options, "-w", "start")
        try:
            yield str(folder)
        finally:
            run(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
