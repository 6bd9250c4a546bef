#!/usr/bin/env python3
"""Stands in for ``ztune-mount``: the same command line and control socket, real FUSE mounts of an empty
directory, no pools.

So the tests of what starts and ends it need neither OpenZFS nor a disk. ``$STAND_IN`` makes it misbehave:
refuse, missing, silent, garbage, early (dies before it is ready), deaf (does not answer), slow (ends badly).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

MODE = os.environ.get("STAND_IN", "")
INIT, FORGET, BATCH_FORGET, INTERRUPT = 26, 2, 42, 36
GETATTR, STATFS, OPENDIR, READDIR, RELEASEDIR, ACCESS = 3, 17, 27, 28, 29, 34
LIBC = ctypes.CDLL(None, use_errno=True)


def fail(code: int, text: str) -> None:
    print(f"ztune-mount: {text}", file=sys.stderr, flush=True)
    os._exit(code)


def mount(dataset: str, place: str) -> int:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    arguments = (f"ztune:{dataset}".encode(), os.fsencode(place), b"fuse.ztune", 0, options.encode())
    if LIBC.mount(*arguments) != 0:
        fail(3, f"{place} can't be mounted: {os.strerror(ctypes.get_errno())}.")
    return fd


def answer(opcode: int) -> bytes | int:
    if opcode == INIT:
        return struct.pack("<IIIIHHI", 7, 22, 0, 0, 0, 0, 1 << 17)
    if opcode == GETATTR:
        attr = struct.pack("<6Q3I7I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
        return struct.pack("<QII", 1, 0, 0) + attr
    if opcode == STATFS:
        return struct.pack("<5Q10I", 1 << 20, 1 << 20, 1 << 20, 1, 1, 4096, 255, 4096, *[0] * 7)
    if opcode == OPENDIR:
        return struct.pack("<QII", 1, 0, 0)
    if opcode in (READDIR, RELEASEDIR, ACCESS):
        return b""
    return errno.ENOENT


def serve(fd: int) -> None:
    while True:
        try:
            request = os.read(fd, 1 << 20)
        except OSError:
            return  # unmounted
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        said = answer(opcode)
        body, error = (b"", -said) if isinstance(said, int) else (said, 0)
        os.write(fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments == ["version"]:
        print('{"version": "0", "openzfs": "2.3.2"}')
        return
    options: dict[str, str] = {}
    places: dict[str, str] = {}
    while arguments:
        word = arguments.pop(0)
        if word == "--page-cache":
            options[word] = ""
        elif word.startswith("--"):
            options[word] = arguments.pop(0)
        else:
            dataset, _, place = word.partition("=")
            places[dataset] = place
    store = Path(options["--store"])
    spec = json.loads(Path(options["--spec"]).read_text())
    print("ztune-mount: a word of warning.", file=sys.stderr, flush=True)
    if MODE == "refuse":
        fail(2, "spec: version 99 is unknown.")
    if MODE == "missing":
        fail(4, "libzpool is another one than this was built for.")
    if MODE == "early":
        os.kill(os.getpid(), signal.SIGKILL)
    lock = os.open(store / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kept = store / "spec.json"
    imported = kept.exists()
    if imported and json.loads(kept.read_text()) != spec:
        fail(2, f"{store} holds another layout.")
    kept.write_text(json.dumps(spec))
    for pool in spec["pools"]:
        (store / f"disk-{pool['name']}-0.img").touch()
    fds = [mount(dataset, place) for dataset, place in places.items()]
    for fd in fds:
        threading.Thread(target=serve, args=(fd,), daemon=True).start()

    def end() -> None:
        for place in places.values():
            LIBC.umount2(os.fsencode(place), 2)
        (store / "control").unlink(missing_ok=True)
        if MODE == "slow":
            fail(1, "the pool can't be exported.")
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: end())
    (store / "control").unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    os.chdir(store)  # a socket's path has little room
    server.bind("control")
    server.listen(8)
    if MODE == "silent":
        wait()
    if MODE == "garbage":
        print("hello", flush=True)
        sys.exit(0)
    datasets = [{"name": d, "directory": p} for d, p in places.items()]
    ready = {"ready": True, "pid": os.getpid(), "imported": imported, "replayed": 7 if imported else 0}
    print(json.dumps({**ready, "datasets": datasets}), flush=True)
    threading.Thread(target=control, args=(server, places), daemon=True).start()
    wait()


def wait() -> NoReturn:
    """Never for long: a signal that comes just before a system call that waits is handled after it."""
    while True:
        time.sleep(0.1)


def control(server: socket.socket, places: dict[str, str]) -> None:
    while True:
        wire, _ = server.accept()
        command = wire.makefile().readline().strip()
        if MODE == "deaf" and command:
            wire.close()
            continue
        reply: dict[str, object] = {"ok": True}
        if command == "stats":
            names = [{"name": d, "logical": 10, "allocated": 5, "ratio": 2.0} for d in places]
            reply = {"seconds": 1.5, "disks": [], "datasets": names}
        elif command not in ("reset", "sync", ""):
            reply = {"error": f'"{command}" is no command.'}
        with contextlib.suppress(OSError):
            wire.sendall(json.dumps(reply).encode() + b"\n")
        wire.close()


if __name__ == "__main__":
    main()
