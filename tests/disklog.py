"""A file layer that writes down what is done to the disk, by all processes of a run, in the order in which it is done.

It stands in for `os` inside `orchestrator.files` and `orchestrator.directories`. What it writes goes to one log outside
of every workspace; `read` gives it back. Only what has succeeded and can change what is on a disk is written down.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import inline
import scenarios

from orchestrator import directories, files

#: What changes a name: recorded with its paths.
BY_PATH = ("rename", "replace", "unlink", "mkdir", "rmdir", "symlink", "chmod")
#: What changes or syncs what a descriptor is open on: recorded with the number of its inode.
BY_DESCRIPTOR = ("write", "ftruncate", "fsync", "fdatasync")


class Event(NamedTuple):
    """One operation: its name, its arguments (a descriptor is told by its inode's number), and how far the log of the
    steps had come when it began. `told` is no operation: it says what a person is told from here on."""

    operation: str
    args: tuple[Any, ...]
    ledger: int
    process: int


class Recorder:
    """Looks like `os`."""

    def __init__(self, log: Path, ledger: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._ledger = ledger
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name in BY_PATH:
            return lambda *args: self.do(name, args, lambda: real(*args))
        if name in BY_DESCRIPTOR:
            return lambda fd, *args: self.do(name, (os.fstat(fd).st_ino, *map(_kept, args)), lambda: real(fd, *args))
        return real

    def open(self, path: str, flags: int, *mode: int) -> int:
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return os.open(path, flags, *mode)
        with self._in_turn():
            size = self._size()
            existed = os.path.lexists(path)
            fd = os.open(path, flags, *mode)
            if not existed:
                self._write("create", (path, os.fstat(fd).st_ino), size)
            elif flags & os.O_TRUNC:
                self._write("ftruncate", (os.fstat(fd).st_ino, 0), size)
            return fd

    def do(self, name: str, args: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        with self._in_turn():
            size = self._size()
            result = act()
            if result is not False:  # an exchange that could not be done
                self._write(name, _as_done(name, args, result), size)
            return result

    def tell(self, text: str) -> None:
        with self._in_turn():
            self._write("told", (text,), self._size())

    def _size(self) -> int:
        try:
            return os.stat(self._ledger).st_size
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """One operation at a time, of all threads and processes: what is written down is in the order of the acts."""
        with self._lock:
            fcntl.lockf(self._log, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._log, fcntl.LOCK_UN)

    def _write(self, operation: str, args: tuple[Any, ...], ledger: int) -> None:
        data = pickle.dumps(Event(operation, args, ledger, os.getpid()))
        os.write(self._log, len(data).to_bytes(4, "big") + data)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The layer is in place in this process and in those that are forked off from it."""
        inline.alone()
        before = files.os, directories.os, files._swap, files._datasync
        swap, datasync = before[2:]
        files.os = directories.os = self  # type: ignore[assignment]
        files._swap = lambda one, other: self.do("exchange", (one, other), lambda: swap(one, other))
        files._datasync = lambda fd: self.do("fdatasync", (os.fstat(fd).st_ino,), lambda: datasync(fd))
        inline.KEPT.add(self._log)
        inline.IN_WORKERS.append(self._forked)
        scenarios.TOLD.append(self.tell)
        try:
            yield
        finally:
            files.os, directories.os, files._swap, files._datasync = before  # type: ignore[assignment]
            inline.KEPT.discard(self._log)
            inline.IN_WORKERS.remove(self._forked)
            scenarios.TOLD.remove(self.tell)
            os.close(self._log)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # a thread that is not here any more may have held it


def _as_done(name: str, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    """What was really written, and the number of a directory that was made."""
    if name == "write":
        return args[0], args[1][:result]
    return (args[0], os.stat(args[0]).st_ino) if name == "mkdir" else args


def _kept(argument: Any) -> Any:
    return bytes(argument) if isinstance(argument, memoryview | bytearray) else argument


def read(log: Path) -> list[Event]:
    return read_from(log, 0)[0]


def read_from(log: Path, begin: int) -> tuple[list[Event], int]:
    """What was written down from a place of the log on, and the place where that ends."""
    with open(log, "rb") as file:
        file.seek(begin)
        data = file.read()
    found: list[Event] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(Event(*pickle.loads(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return found, begin + at
