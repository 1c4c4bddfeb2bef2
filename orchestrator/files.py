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
import fcntl
import os
import stat
import time
from collections.abc import Iterator

from orchestrator import means
from orchestrator.errors import Damaged, SyncFailed

#: How long two reads of a file that somebody may be saving are apart.
SETTLE_SECONDS = 0.1
#: Temporaries begin so: never taken for work's own files, swept under the lock.
TEMPORARY = ".orchestrator-tmp-"

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0)

_MEND = "free space or mend the disk, then recover the task"
_datasync = getattr(os, "fdatasync", None) or os.fsync


# -- reading -----------------------------------------------------------------------------------------------------


def read(path: str, limit: int = 256 * 1024 * 1024) -> bytes:
    """The whole content of a regular file, never through a link at its end.

    Raises FileNotFoundError; Damaged for a link, directory, device or a file above `limit` bytes; other OSErrors as
    they come. A fifo is not waited for.
    """
    try:
        fd = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # ENXIO: a socket
            raise _not_a_file(path) from error
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _not_a_file(path)
        if found.st_size > limit:
            raise Damaged(f"{path}: {found.st_size} bytes are more than can be true", "move it aside; it is rebuilt")
        return _read_all(fd, found.st_size + 1)
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    if len(data) < size:  # the usual case: one read and we are at the end
        return data
    chunks = [data]
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def _not_a_file(path: str) -> Damaged:
    return Damaged(f"{path} is not a regular file", "move it aside; it is rebuilt from what is left")


def read_tail(path: str, size: int) -> tuple[bytes, int]:
    """The last `size` bytes of a file, and how long it is."""
    fd = os.open(path, _READ)
    try:
        length = os.fstat(fd).st_size
        return os.pread(fd, size, max(0, length - size)), length
    finally:
        os.close(fd)


def size(path: str) -> int:
    """Bytes of a file; 0 when it is not there."""
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0


def sha256(path: str) -> tuple[int, str]:
    """Size in bytes and SHA-256 in hex of a file's content. Follows links: an output may be one. Raises OSError."""
    import hashlib  # 3 ms, which a list does not need

    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:  # a fifo is not waited for
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


class SyncedFile:
    """An append-only file whose lines can be made durable one by one. One writer at a time: the lock's holder."""

    __slots__ = ("_broken", "_fd", "_identity", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, _APPEND, 0o644)
        found = os.fstat(self._fd)
        self._identity = (found.st_dev, found.st_ino)
        self.size = found.st_size
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
        """Whether the path still names the file we write: an agent may have deleted or replaced it."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._broken = True
            os.close(fd)


def append(path: str, data: bytes, *, sync: bool = False) -> None:
    """Append; the file is made if it is not there. Never through a link. One write, so that several may append at once.

    Raises OSError.
    """
    fd = os.open(path, _APPEND, 0o644)
    try:
        _write_all(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def open_log(path: str) -> int:
    """A descriptor that appends to a log; to nowhere when the log cannot be had: a full disk loses output, no work."""
    try:
        return os.open(path, _APPEND, 0o644)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace(path: str, data: bytes, *, sync: bool) -> None:
    """Write the whole file anew. Raises OSError, and then the old file is as it was."""
    temporary = _write_temporary(path, data, sync=sync)
    try:
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        sync_directory(os.path.dirname(path))


def exchange(path: str, data: bytes, *, expected: bytes | None, sync: bool) -> bytes | None:
    """Write the whole file anew and give back what was displaced, None if nothing was or it could not be known.

    A displaced content other than `expected` may still be in the middle of being saved in place: it is read again until
    two reads 100 ms apart agree.

    The displaced content is the proof that nobody's edit was lost: the caller compares it with what it had merged.
    Where the system has no exchange of names (renameat2(2), Linux 3.15) a plain rename is done: an edit saved between
    the caller's last read and now is lost there.
    """
    if not means.has("exchange"):
        replace(path, data, sync=sync)
        return None
    temporary = _write_temporary(path, data, sync=sync)
    try:
        displaced: bytes | None = None
        if _swap(temporary, path):
            displaced = read(temporary)
            if displaced != expected:
                displaced = read_settled(temporary, displaced)
        else:
            os.rename(temporary, path)
    except Damaged:  # a directory or a link was in its place: nothing of ours, and nothing to throw away
        set_aside(temporary, "replaced", beside=path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    if sync:
        sync_directory(os.path.dirname(path))
    return displaced


def read_settled(path: str, before: bytes | None = None) -> bytes:
    """Read a file that somebody may be saving right now, until two reads 100 ms apart agree; at most 20."""
    for _ in range(20):
        time.sleep(SETTLE_SECONDS)
        now = read(path)
        if now == before:
            break
        before = now
    return before or b""


def temporary_of(path: str) -> str:
    """Where the new content of a file lies while it is written; after a kill it may be there still."""
    directory, name = os.path.split(path)
    return os.path.join(directory, TEMPORARY + name[:50])  # up to four bytes each, of 255


def _write_temporary(path: str, data: bytes, *, sync: bool) -> str:
    temporary = temporary_of(path)
    try:
        fd = os.open(temporary, _NEW, 0o644)
    except FileExistsError:  # left by a killed holder of the lock we hold now
        if os.path.isdir(temporary) and not os.path.islink(temporary):
            set_aside(temporary, "replaced", beside=path)
        else:
            os.unlink(temporary)
        fd = os.open(temporary, _NEW, 0o644)
    try:
        try:
            _write_all(fd, data)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


_EXCHANGE = 2  # RENAME_EXCHANGE
_AT_FDCWD = -100
_renameat2: object = None


def _swap(one: str, other: str) -> bool:
    """Exchange two names atomically. False when the system or the file system cannot, or `other` is not there."""
    global _renameat2
    if _renameat2 is None:
        import ctypes  # 2 ms, and only a writer of task.md needs it

        _renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", False)
    if not callable(_renameat2):
        return False
    return bool(_renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0)


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
    fd = os.open(path, _READ)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- directories -------------------------------------------------------------------------------------------------


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises OSError."""
    fd = os.open(path or ".", _DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    os.mkdir(path, 0o755)


def make_directories(path: str) -> None:
    """A directory and those above it, as far as they are not there."""
    os.makedirs(path, exist_ok=True)


def rename_directory(source: str, target: str) -> bool:
    """Give a whole directory its name. False when the name is taken by anything but an empty directory."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


def remove_tree(path: str) -> None:
    """Remove a directory and all in it; absent is success. Links are removed, not followed."""
    with contextlib.suppress(FileNotFoundError):
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):  # as some tools leave their caches
            os.chmod(path, 0o700)
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(path)


def sweep(*directories: str) -> Iterator[tuple[str, bytes]]:
    """Remove temporaries that a killed holder left. The caller holds the lock. Yields each one's path and content.

    The content may be an edit of a person that was displaced in the moment of the kill: the caller merges it.
    """
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(directory)):
                if entry.name.startswith(TEMPORARY) and entry.is_file(follow_symlinks=False):
                    content = read(entry.path)
                    yield entry.path, content
                    os.unlink(entry.path)


# -- the lock ----------------------------------------------------------------------------------------------------


def lock_directory(path: str) -> int | None:
    """Take the exclusive lock of a directory; None when somebody holds it. Returns a descriptor: closing it releases.

    The lock belongs to the open file description: a worker that gets the descriptor holds it as well, without a gap,
    until the last copy is closed. It is never unlocked, only closed, so that no copy can take it from another.
    """
    fd = os.open(path, _DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
