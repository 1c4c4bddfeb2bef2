"""The only code that writes files: append, replace, exchange, lock, sync, sweep.

Promises, and their limits:

* `SyncedFile.append(line, sync=True)`: when it returns, the line survives a power cut, as far as the disk keeps what it
  acknowledged. Network file systems are not supported: neither their locks nor their syncs are trusted.
* `replace`: a reader sees the old or the new content, never a mixture. With `sync`, the new one survives a power cut.
* A temporary left by SIGKILL is found by its name and swept by the next holder of the lock.

`os` is looked up in this module on purpose: the tests put a file layer in its place that fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator

from orchestrator import directories, means
from orchestrator.directories import is_closed as is_closed
from orchestrator.directories import make_directory as make_directory
from orchestrator.directories import make_readable as make_readable
from orchestrator.directories import remove_tree as remove_tree
from orchestrator.directories import rename_directory as rename_directory
from orchestrator.errors import Damaged, SyncFailed
from orchestrator.locking import lock_directory as lock_directory
from orchestrator.locking import lock_patiently as lock_patiently
from orchestrator.reading import JOURNAL_BYTES as JOURNAL_BYTES
from orchestrator.reading import READ, check_exhausted
from orchestrator.reading import TEXT_BYTES as TEXT_BYTES
from orchestrator.reading import check_answer as check_answer
from orchestrator.reading import entries as entries
from orchestrator.reading import identity as identity
from orchestrator.reading import read as read
from orchestrator.reading import read_head as read_head
from orchestrator.reading import read_tail as read_tail
from orchestrator.reading import regular_size as regular_size
from orchestrator.reading import sha256 as sha256
from orchestrator.reading import size as size

#: How long two reads of a file that somebody may be saving are apart.
SETTLE_SECONDS = 0.1
#: Temporaries begin so: never taken for work's own files, swept under the lock.
TEMPORARY = ".orchestrator-tmp-"

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # which follows no link
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

#: What lay under a name before, and the temporary in which it lies until `drop`; None when that is gone.
Displaced = tuple[bytes | None, str | None]
_MEND = "free space or mend the disk, then recover the task"
_datasync = getattr(os, "fdatasync", None) or os.fsync


def _open(path: str, flags: int) -> int:
    """A descriptor, not inherited by any program. Raises OSError; Exhausted when none is to be had."""
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        check_exhausted(path, error)
        raise


# -- writing -----------------------------------------------------------------------------------------------------


class SyncedFile:
    """An append-only file whose lines can be made durable one by one. One writer at a time: the lock's holder."""

    __slots__ = ("_broken", "_fd", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = _open(path, _APPEND)
        self.size = os.fstat(self._fd).st_size
        self._broken = False

    def append(self, data: bytes, *, sync: bool) -> None:
        """Append whole lines; with `sync`, return when they and all before them are on the disk.

        When it raises OSError the file is as before: a short write is cut off again. After a failed sync (or a cut that
        failed) every call raises SyncFailed: the page may be gone although the write "succeeded", and a later sync that
        succeeds proves nothing (fsync(2); the PostgreSQL fsync reports of 2018).
        """
        if self._broken:
            raise SyncFailed(f"{self.path}: an earlier sync failed", _MEND)
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, "short write", self.path)
        except OSError:
            self._cut()
            raise
        self.size += written
        if sync:
            self.sync()

    def _cut(self) -> None:
        self._broken = True
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.size)
            self._broken = False

    def sync(self) -> None:
        try:
            _datasync(self._fd)
        except OSError as error:
            self._broken = True
            said = f"{self.path}: {error.strerror or error}: what was written is not known to be on the disk"
            raise SyncFailed(said, _MEND) from error

    def in_place(self) -> bool:
        """Whether the path still names the file we write, with what we wrote in it and nothing else.

        An agent may have deleted or replaced it; a line of somebody else's may stand in it. Raises OSError.
        """
        try:
            found, ours = os.stat(self.path, follow_symlinks=False), os.fstat(self._fd)
        except OSError as error:
            check_answer(error)
            return False
        return os.path.samestat(found, ours) and found.st_size == self.size

    def close(self) -> None:
        if self._fd != -1:
            fd, self._fd = self._fd, -1
            self._broken = True
            os.close(fd)


def append(path: str, data: bytes, *, sync: bool = False) -> None:
    """Append; the file is made if it is not there. Never through a link. One write, so that several may append at once.

    With `sync` both are durable on return, content and name. Raises OSError.
    """
    fd = _open(path, _APPEND)
    try:
        _write_all(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    if sync:
        sync_directory(os.path.dirname(path))


def open_log(path: str) -> int:
    """A descriptor that appends to a log; to nowhere when the log cannot be had: a full disk loses output, no work."""
    try:
        return _open(path, _APPEND)
    except OSError:
        return _open(os.devnull, os.O_WRONLY)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace(path: str, data: bytes, *, sync: bool) -> None:
    """Write the whole file anew. Raises OSError, and then the old file is as it was."""
    _rename(_write_temporary(path, data, sync=sync), path)
    if sync:
        sync_directory(os.path.dirname(path))


def exchange(path: str, data: bytes, *, expected: bytes | None, sync: bool) -> bytes | None:
    """As `swap_in`, for who needs no more than the content: it is dropped."""
    displaced, temporary = swap_in(path, data, expected=expected, sync=sync)
    if displaced is not None and temporary is not None:
        drop(temporary)
    return displaced


def swap_in(path: str, data: bytes, *, expected: bytes | None, sync: bool, whole: bool = False) -> Displaced:
    """Write the whole file anew and give back what was displaced, None if nothing was or it could not be known.

    The displaced content is the proof that nobody's edit was lost: the caller compares it with what it had merged. It
    stays as a temporary until `drop`, for whoever comes after a kill. One that cannot be read is set aside. Other than
    `expected`, it may still be in the middle of being saved in place: see `read_settled`. With `whole` the new content
    is durable before it has the name: a power cut leaves the old one or this, and no empty file.
    Where the system has no exchange of names (renameat2(2), Linux 3.15) a plain rename is done: an edit saved between
    the caller's last read and now is lost there.
    """
    temporary = _write_temporary(path, data, sync=sync or whole)
    try:
        swapped = means.has("exchange") and _swap(temporary, path)
    except OSError:
        drop(temporary)
        raise
    if not swapped:
        _rename(temporary, path)
    displaced = _displaced(temporary, path, expected) if swapped else None
    known = displaced is not None and displaced == expected
    if known:
        drop(temporary)  # before the sync: a power cut that brought it back would bring back its marks
    if sync:
        sync_directory(os.path.dirname(path))
    return displaced, None if known else temporary


def drop(temporary: str) -> None:
    """Remove what was displaced: else it would be taken for an edit, when the journal has gone on. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def _displaced(temporary: str, path: str, expected: bytes | None) -> bytes | None:
    """What lay at `path` before. None when it cannot be read: nothing of ours, and nothing to throw away."""
    try:
        found = read(temporary)
        return found if found == expected else read_settled(temporary, found)
    except (Damaged, OSError) as error:  # a directory, a link; somebody else's, closed to us
        check_answer(error)  # then it stays where it is, for the next holder
        with contextlib.suppress(FileNotFoundError):
            set_aside(temporary, "replaced", beside=path)
        return None


def read_settled(path: str, before: bytes | None = None) -> bytes:
    """Read a file that somebody may be saving right now, until two reads 100 ms apart agree; at most 20.

    One that was written longer ago than that is not waited for.
    """
    for _ in range(20):
        settled = unsettled_seconds(path) == 0
        if not settled:
            time.sleep(SETTLE_SECONDS)
        now = read(path)
        if settled or now == before:
            return now
        before = now
    return before or b""


def unsettled_seconds(path: str) -> float:
    """For how long a file that was just written may still be in the middle of being saved; 0 when it is not there."""
    try:
        age = time.time() - os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0
    return min(SETTLE_SECONDS, max(0.0, SETTLE_SECONDS - age))


def temporary_of(path: str) -> str:
    """Where the new content of a file lies while it is written; after a kill it may be there still."""
    directory, name = os.path.split(path)
    return os.path.join(directory, TEMPORARY + name[:50])  # up to four bytes each, of 255


def _new_temporary(path: str) -> tuple[str, int]:
    """A temporary of our own. What a killed holder left in its place is not touched: it may be somebody's edit."""
    directory, name = os.path.split(temporary_of(path))
    for number in range(1, 1000):
        temporary = os.path.join(directory, name if number == 1 else f"{TEMPORARY}{number}-{name[len(TEMPORARY) :]}")
        try:
            return temporary, _open(temporary, _NEW)
        except FileExistsError:
            if os.path.isdir(temporary) and not os.path.islink(temporary):
                set_aside(temporary, "replaced", beside=path)
    raise Damaged(f"{path}: a thousand temporaries lie beside it", f"remove the {TEMPORARY}* files there")


def _write_temporary(path: str, data: bytes, *, sync: bool) -> str:
    temporary, fd = _new_temporary(path)
    try:
        try:
            _write_all(fd, data)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        drop(temporary)
        raise
    return temporary


def _rename(temporary: str, path: str) -> None:
    try:
        os.rename(temporary, path)
    except OSError:
        drop(temporary)
        raise


#: The file is not there; the file system, or the system, has no exchange (EPERM: a filter of system calls).
_CANNOT_SWAP = frozenset({errno.ENOENT, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
_EXCHANGE = 2  # RENAME_EXCHANGE
_AT_FDCWD = -100
_renameat2: object = None


def _swap(one: str, other: str) -> bool:
    """Exchange two names atomically. False when the system or the file system cannot, or `other` is not there.

    Raises OSError when the disk does not take it: a plain rename in its place would throw away what lies there.
    """
    global _renameat2
    import ctypes  # 2 ms, and only a writer of task.md needs it

    if _renameat2 is None:
        _renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", False)
    if not callable(_renameat2):
        return False
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_SWAP:
        return False
    raise OSError(number, os.strerror(number), other)


def set_aside(path: str, stamp: str, *, beside: str | None = None) -> str:
    """Move something unreadable beside itself (or `beside` another), under a name that says what it is; that name."""
    for number in range(1, 1000):
        aside = f"{beside or path}.damaged-{stamp}" + (f"-{number}" if number > 1 else "")
        if not os.path.lexists(aside):
            os.rename(path, aside)
            return aside
    raise Damaged(f"{path}: a thousand damaged copies lie beside it", "remove the *.damaged-* files there")


def sync_file(path: str) -> None:
    """Make a file's content durable. Raises OSError."""
    _sync(path, READ)


def make_directories(path: str) -> None:
    """A directory and those above it, as far as they are not there; durable on return. Raises OSError."""
    directories.make_directories(path, sync_directory)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises OSError."""
    _sync(path or ".", _DIRECTORY)


def _sync(path: str, flags: int) -> None:
    fd = _open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep(*directories: str) -> Iterator[tuple[str, bytes]]:
    """Remove temporaries that a killed holder left. The caller holds the lock. Yields each one's path and content.

    The content may be an edit of a person that was displaced in the moment of the kill: the caller merges it.
    """
    for directory in directories:
        try:
            found = [e for e in entries(directory) if e.name.startswith(TEMPORARY)]
        except (FileNotFoundError, NotADirectoryError):  # who needs it, makes it, or does without
            continue
        for entry in found:
            if entry.is_symlink():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
            elif entry.is_file() and (content := _left(entry.path)) is not None:
                yield entry.path, content
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)


def _left(temporary: str) -> bytes | None:
    """The content of a temporary; None when it is gone, or cannot be read and was set aside."""
    try:
        return read(temporary)
    except FileNotFoundError:
        return None
    except (Damaged, PermissionError):
        directory, name = os.path.split(temporary)
        set_aside(temporary, "replaced", beside=os.path.join(directory, name[len(TEMPORARY) :]))
        return None
