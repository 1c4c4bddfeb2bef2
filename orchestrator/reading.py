"""Reading files that an agent may have turned into anything. The rest of the package reaches it through `files`."""

from __future__ import annotations

import errno
import os
import stat

from orchestrator.errors import Damaged, Exhausted

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW

#: A journal grows with its task; one that is larger has been written into by others, and costs memory to look at.
JOURNAL_BYTES = 512 * 1024 * 1024
#: What is read line by line and for people: anything this large is none of it.
TEXT_BYTES = 32 * 1024 * 1024


def check_exhausted(path: str, error: OSError) -> None:
    """Raises Exhausted when it is no error of this file, but of whoever has too many open."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        said = "this process" if error.errno == errno.EMFILE else "this machine"
        raise Exhausted(
            f"{path}: {said} has too many files open", "close some, or raise the limit (ulimit -n), and try again"
        ) from error


#: The disk gave no answer: that says nothing of the file, which may be whole.
_NO_ANSWER = frozenset({errno.EIO, errno.ENOMEM, errno.ESTALE})


def check_answer(error: Exception) -> None:
    """Raises the error again when it tells of the disk, and not of the file: that is not damaged."""
    if isinstance(error, OSError) and error.errno in _NO_ANSWER:
        raise error


def opened(path: str, flags: int) -> int:
    """A descriptor, not inherited by any program. Raises OSError; Exhausted when none is to be had."""
    try:
        return os.open(path, flags)
    except OSError as error:
        check_exhausted(path, error)
        raise


def entries(directory: str) -> list[os.DirEntry[str]]:
    """What is in a directory, by name. Raises OSError, Exhausted."""
    try:
        return sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        check_exhausted(directory, error)
        raise


def read(path: str, limit: int = 256 * 1024 * 1024) -> bytes:
    """The whole content of a regular file, never through a link at its end.

    Raises FileNotFoundError; Damaged for a link, directory, device or a file above `limit` bytes; other OSErrors as
    they come. A fifo is not waited for.
    """
    fd = _regular(path)
    try:
        found = os.fstat(fd)
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


def _regular(path: str) -> int:
    """A descriptor of a regular file. Raises as `read` does."""
    try:
        fd = opened(path, READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # ENXIO: a socket
            raise _not_a_file(path) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _not_a_file(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _not_a_file(path: str) -> Damaged:
    return Damaged(f"{path} is not a regular file", "move it aside; it is rebuilt from what is left")


def read_tail(path: str, size: int) -> tuple[bytes, int]:
    """The last `size` bytes of a file, and how long it is."""
    fd = opened(path, READ)
    try:
        length = os.fstat(fd).st_size
        return os.pread(fd, size, max(0, length - size)), length
    finally:
        os.close(fd)


def read_head(path: str, size: int) -> bytes:
    """The first `size` bytes of a regular file, never through a link. Raises as `read` does."""
    fd = _regular(path)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def size(path: str) -> int:
    """Bytes of a file; 0 when it is not there."""
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0


def regular_size(path: str) -> int | None:
    """Bytes of a regular file; None when there is none. Raises OSError when the disk does not say."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError as error:
        check_answer(error)
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def identity(path: str) -> tuple[int, int] | None:
    """Which file or directory a path leads to; None when it is not there."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def sha256(path: str) -> tuple[int, str]:
    """Size in bytes and SHA-256 in hex of a file's content. Follows links: an output may be one. Raises OSError."""
    import hashlib  # 3 ms, which a list does not need

    with open(opened(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a fifo is not waited for
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
