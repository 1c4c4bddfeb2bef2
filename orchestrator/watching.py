"""Waiting for a file to change: by the file system's own events where there are any, else by looking."""

from __future__ import annotations

import os
import struct
from types import TracebackType
from typing import Self

import anyio

from orchestrator import means

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_MOVE_SELF, _IN_DELETE_SELF = 2, 0x80, 0x100, 0x200, 0x800, 0x400
_NAMES = _IN_MOVED_TO | _IN_CREATE
_ALL = _NAMES | _IN_MODIFY | _IN_DELETE | _IN_MOVE_SELF | _IN_DELETE_SELF
_IN_CLOEXEC, _IN_NONBLOCK = 0o2000000, 0o4000

#: Without events, how often the directory is looked at; with them, after how long it is looked at all the same.
LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 1.0


class Watch:
    """Changes in one directory. `next` returns after one, or after a while: the caller looks again either way.

    `names_only` tells of new names, not of what is written into files: for who has long to wait beside a busy one.
    """

    def __init__(self, directory: str, *, names_only: bool = False) -> None:
        self._directory = directory
        self._mask = _NAMES if names_only else _ALL
        self._patience = 30 * PATIENCE_SECONDS if names_only else PATIENCE_SECONDS
        self._look = 10 * LOOK_SECONDS if names_only else LOOK_SECONDS
        self._fd = -1

    async def __aenter__(self) -> Self:
        if means.has("inotify"):
            self._fd = _open(self._directory, self._mask)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def next(self) -> None:
        """Return when something in the directory changed since the last call, or at the latest after a while."""
        if self._fd < 0:
            await anyio.sleep(self._look)
            return
        with anyio.move_on_after(self._patience):
            await anyio.wait_readable(self._fd)
            self._drain()

    def _drain(self) -> None:
        try:
            while len(os.read(self._fd, 1 << 16)) >= struct.calcsize("iIII"):
                pass
        except BlockingIOError:
            pass


def _open(directory: str, mask: int) -> int:
    """An inotify descriptor for a directory, or -1 when there are none to be had."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = int(libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK))
        if fd < 0:
            return -1
        if libc.inotify_add_watch(fd, os.fsencode(directory), mask) < 0:
            os.close(fd)
            return -1
    except AttributeError:
        return -1
    return fd


def works(directory: str) -> bool:
    """Whether the system tells of changes in a directory: there is a limit to how many are watched."""
    fd = _open(directory, _NAMES)
    if fd >= 0:
        os.close(fd)
    return fd >= 0
