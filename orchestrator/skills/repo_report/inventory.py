"""Which files a tree holds, with size and sha256. Nothing in a tree is fatal but the lack of the tree itself."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from orchestrator.skills.repo_report.sealed import Row

#: Directories that hold no source of the project; the root is never skipped. `.gitignore` is not read.
SKIPPED_DIRECTORIES = frozenset(
    {
        ".eggs", ".git", ".hg", ".hypothesis", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".svn", ".tox",
        ".venv", "__pycache__", "node_modules", "site-packages",
    }
)  # fmt: skip

#: A directory with this file is a virtual environment under any name; one called `venv` without it may be source.
VENV_MARK = "pyvenv.cfg"

#: A file with a NUL byte in its first so many bytes is binary (the rule of git and grep).
BINARY_PROBE_BYTES = 8192

_CHUNK_BYTES = 1 << 20

# A FIFO put in the place of a file between look and open must not hang us, nor a link lead us out of the tree.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def take(root: str, *, without: Path | None = None) -> list[Row]:
    """Return one row per entry below `root`, sorted by path: `path` (relative), `kind`, `size`, `sha256`, `why`.

    Kinds: text, binary, unreadable (with `why`), link (never followed), special (never opened), skipped (a directory of
    the table, not entered). Directories that are entered have no row. `without` is a directory left out without a word:
    the task's own workspace, whose files come and go with the report.

    Raises OSError only for the root.
    """
    left_out = _identity(without) if without else None
    with os.scandir(root):  # the root must be there, and be a directory
        pass
    return sorted(_walk(root, left_out), key=lambda row: str(row["path"]))


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _walk(root: str, left_out: tuple[int, int] | None) -> Iterator[Row]:
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        for name, status in _listed(root, directory):
            path = f"{directory}/{name}".strip("/")
            if isinstance(status, OSError):
                yield _row(path or ".", "unreadable", why=_reason(status))
            elif not stat.S_ISDIR(status.st_mode):
                yield _leaf(root, path, status)
            elif (status.st_dev, status.st_ino) == left_out:
                continue
            elif _is_skipped(root, path, name):
                yield _row(path, "skipped")
            else:
                waiting.append(path)


def _listed(root: str, directory: str) -> list[tuple[str, os.stat_result | OSError]]:
    """The names in a directory with their status; a directory that cannot be listed is one nameless OSError."""
    here = os.path.join(root, directory)
    try:
        return [(name, _status(os.path.join(here, name))) for name in os.listdir(here)]
    except OSError as error:
        return [("", error)]


def _status(path: str) -> os.stat_result | OSError:
    try:
        return os.lstat(path)
    except OSError as error:
        return error


def _is_skipped(root: str, path: str, name: str) -> bool:
    return name in SKIPPED_DIRECTORIES or os.path.lexists(os.path.join(root, path, VENV_MARK))


def _leaf(root: str, path: str, status: os.stat_result) -> Row:
    if stat.S_ISLNK(status.st_mode):
        return _row(path, "link")
    if not stat.S_ISREG(status.st_mode):
        return _row(path, "special")
    try:
        return _file(root, path)
    except OSError as error:
        return _row(path, "unreadable", why=_reason(error))


def _file(root: str, path: str) -> Row:
    digest, size, kind = hashlib.sha256(), 0, "text"
    for chunk in _chunks(os.path.join(root, path)):
        if size == 0 and b"\0" in chunk[:BINARY_PROBE_BYTES]:
            kind = "binary"
        digest.update(chunk)
        size += len(chunk)
    return _row(path, kind, size=size, sha256=digest.hexdigest())


def _chunks(path: str) -> Iterator[bytes]:
    with open(os.open(path, _READ_FLAGS), "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _row(path: str, kind: str, *, size: int = 0, sha256: str = "", why: str = "") -> Row:
    return {"path": path, "kind": kind, "size": size, "sha256": sha256, "why": why}


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def read_as_listed(root: str, row: Row) -> str | None:
    """The text of a listed file, or None if it is no longer the file that the inventory saw.

    Bytes that are no UTF-8 become U+FFFD; every kind of line end becomes a newline; a byte order mark goes.
    """
    try:
        data = b"".join(_chunks(os.path.join(root, row["path"])))
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest() != row["sha256"]:
        return None
    text = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def duplicates(rows: list[Row]) -> list[Row]:
    """Files with the same content: `paths`, `size`, and `wasted`, the bytes of all copies but one; most wasted first.

    Empty files are no duplicates of each other: they waste nothing, and many are empty for a reason.
    """
    groups: dict[tuple[int, str], list[str]] = {}
    for row in rows:
        if row["size"]:
            groups.setdefault((row["size"], row["sha256"]), []).append(row["path"])
    found = [_group(size, paths) for (size, _), paths in groups.items() if len(paths) > 1]
    return sorted(found, key=lambda group: (-group["wasted"], group["paths"]))


def _group(size: int, paths: list[str]) -> Row:
    return {"paths": sorted(paths), "size": size, "wasted": size * (len(paths) - 1)}
