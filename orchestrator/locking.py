"""The lock of a task: an exclusive `flock` on its directory. The rest of the package reaches it through `files`."""

from __future__ import annotations

import errno
import fcntl
import os
import time

from orchestrator.reading import opened


def lock_directory(path: str) -> int | None:
    """Take the exclusive lock of a directory; None when somebody holds it. Returns a descriptor: closing it releases.

    The lock belongs to the open file description: a worker that gets the descriptor holds it as well, without a gap,
    until the last copy is closed. It is never unlocked, only closed, so that no copy can take it from another.
    Raises FileNotFoundError also when the directory was removed or renamed meanwhile: what was locked is another.
    """
    fd = opened(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine, there = os.fstat(fd), os.stat(path)
        if not os.path.samestat(mine, there):
            raise FileNotFoundError(errno.ENOENT, "the directory was replaced in this moment", path)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def lock_patiently(path: str, seconds: float = 1.0) -> int | None:
    """The lock, asked for during a short while: somebody may hold it for a moment only, to look or to end."""
    deadline = time.monotonic() + seconds
    while (lock := lock_directory(path)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return lock
