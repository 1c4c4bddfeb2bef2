"""Directories as a whole: made, named, removed; and who may read a file. Reached through `files`."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable


def make_directory(path: str) -> None:
    os.mkdir(path, 0o755)


def make_directories(path: str, sync: Callable[[str], None]) -> None:
    """A directory and those above it, as far as they are not there; durable by `sync`, whoever made it.

    One that is there and empty may be of somebody who was killed before its name was durable: its name is synced too.
    """
    parent = os.path.dirname(path)
    try:
        made = not os.listdir(path or ".")
    except PermissionError:  # it is there, and not ours
        return
    except FileNotFoundError:
        if parent != path:
            make_directories(parent, sync)
        made = _made(path)
    if made:
        with contextlib.suppress(PermissionError):
            sync(parent)


def _made(path: str) -> bool:
    try:
        os.mkdir(path, 0o777)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    return True


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


def is_closed(path: str) -> bool:
    """Whether a file is our own, and its permissions keep us from reading or writing it."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_mode & 0o600 != 0o600 and found.st_uid == os.geteuid()


def make_readable(path: str) -> bool:
    """Let us read and write a file of our own again; never through a link. Whether that was needed and was done."""
    if not is_closed(path):
        return False
    with contextlib.suppress(OSError):
        os.chmod(path, stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode) | 0o600)
        return True
    return False
