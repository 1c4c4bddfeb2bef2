"""A log of bounded size, written by the guard from a pipe. As the guard itself, this imports nothing heavy."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time

#: How long output is still taken after the end of the tree: a pipe's content comes at once.
_DRAIN_SECONDS = 1.0


class Log:
    """One stream into one file: the head is kept, of the rest the newest. A full disk loses output only."""

    def __init__(self, path: str, source: int, limit: int) -> None:
        self.source = source
        self._head = limit // 2
        self._tail = limit - self._head
        self._size = 0
        self._cut = self._said = 0
        self._fd = -1
        os.set_blocking(source, False)
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            if stat.S_ISREG(os.fstat(fd).st_mode):  # a fifo would fill up and hold us
                self._fd, self._size = fd, os.fstat(fd).st_size
            else:
                os.close(fd)

    def pump(self) -> bool:
        """Move what is there. False at the end of the stream."""
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self._write(data)
        return bool(data)

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            self._size += os.write(self._fd, data)
            if self._size > self._head + 2 * self._tail + 200:
                self._compact()

    def _compact(self) -> None:
        """Cut the middle out: the file is at most the head, a line that says what is missing, and twice the tail."""
        self._head = self._border(self._head, -1)
        tail = os.pread(self._fd, self._tail, self._border(self._size - self._tail, 1))
        cut = self._cut + self._size - self._head - len(tail) - self._said
        os.ftruncate(self._fd, self._head)
        self._cut, self._said, self._size = cut, 0, self._head  # true whatever becomes of the write
        said = b"\n... %d bytes were left out here ...\n" % cut
        self._size += os.write(self._fd, said + tail)
        self._said = len(said)

    def _border(self, at: int, step: int) -> int:
        """`at`, or the nearest place in that direction where a character begins: none is cut in two (fault 68)."""
        bytes_ = ((place, os.pread(self._fd, 1, place)) for place in range(at, at + 4 * step, step))
        return next((place for place, byte in bytes_ if byte and byte[0] & 0xC0 != 0x80), at)

    def finish(self) -> None:
        """Take what is still in the pipe and bring the file under its limit.

        Its writers are dead; one that got away (docs/isolation.md) and never stops writing is not listened to for ever.
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        while select.select([self.source], [], [], 0)[0] and self.pump() and time.monotonic() < deadline:
            pass
        with contextlib.suppress(OSError):
            if self._fd >= 0 and self._size > self._head + self._tail + 200:
                self._compact()
