"""What the tests of shaped disks call a disk that runs."""

from collections.abc import Callable

from ztune.disk import server

SIZE = 64 << 20
Start = Callable[..., server.DiskServer]
