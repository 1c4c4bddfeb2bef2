"""The disk under a stage: all that is done to it is written down, so that its power can be cut at any moment.

What the product does is recorded by the processes that do it (tests/disklog.py). What a script does itself to the
files, as a person would, is certain at once: an editor that syncs what it saves, its name too, and a copy that was
waited for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import disklog
import power
from power import LOST, WHOLE, ZERO, Bytes, Disk, How, Item, Tree


class Hands:
    """What a script does itself to the files of a stage. Each act is synced, as its person's editor does it."""

    def __init__(self) -> None:
        self._os: Any = os

    def close(self) -> None: ...

    def save(self, path: Path, data: bytes, *, by_rename: bool) -> None:
        """To another name first, or in place."""
        how = os.O_CREAT | os.O_EXCL if by_rename else os.O_TRUNC
        new = path.with_name(path.name + "~") if by_rename else path
        fd = self._os.open(str(new), os.O_WRONLY | how, 0o644)
        self._os.write(fd, data)
        self._os.fsync(fd)
        os.close(fd)
        if by_rename:
            self._os.rename(str(new), str(path))
        self._sync(path.parent)

    def delete(self, path: Path) -> None:
        """A file or a directory with all in it. Nothing, when it is not there."""
        if path.is_dir():
            self._delete_tree(path)
        elif path.exists():
            self._os.unlink(str(path))
        self._sync(path.parent)

    def _delete_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def copy(self, source: str, target: str) -> None:
        shutil.copytree(source, target)

    def _sync(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY)
        self._os.fsync(fd)
        os.close(fd)


class Mains(Hands):
    """Of one directory, in which nothing lies yet. Installed until it is closed."""

    def __init__(self, root: Path, log: Path) -> None:
        self._root, self._log, self._read = root, log, 0
        self._os = disklog.Recorder(log, log.with_name("no ledger"))
        self._installed = contextlib.ExitStack()
        self._installed.enter_context(self._os.installed())
        self._disk = Disk.of(root)

    def close(self) -> None:
        self._installed.close()

    def _catch_up(self) -> None:
        events, self._read = disklog.read_from(self._log, self._read)
        for event in events:
            self._disk.apply(event)

    def _delete_tree(self, path: Path) -> None:
        self._catch_up()
        super()._delete_tree(path)
        self._disk.was_removed(str(path))

    def copy(self, source: str, target: str) -> None:
        self._catch_up()
        super().copy(source, target)
        self._disk.was_made(Path(target))

    # -- the power cut -----------------------------------------------------------------------------------------------

    def cut(self, hows: Sequence[int], otherwise: str) -> None:
        """Nobody runs any more; the disk comes up. `hows` says how each of the newest pending items does, from the last
        one back; all others do `otherwise`."""
        self._catch_up()
        assert _of_the_product(self._disk.now()) == _of_the_product(_lies(self._root)), "not all was written down"
        pending = self._disk.pending
        chosen = zip(reversed(range(len(pending))), hows, strict=False)
        special = {number: _ways(pending[number])[how % len(_ways(pending[number]))] for number, how in chosen}
        tree = self._disk.coming_up(special, otherwise)
        for entry in list(os.scandir(self._root)):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        power.lay(tree, self._root, time.time() - 60)
        self._disk = Disk.of(self._root)


def _ways(item: Item) -> list[How]:
    if isinstance(item, Bytes) and item.data:
        return [WHOLE, LOST, ZERO, len(item.data) // 2, 1, len(item.data) - 1]
    return [WHOLE, LOST]


def _lies(root: Path) -> Tree:
    return {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in root.rglob("*")}


def _of_the_product(tree: Tree) -> Tree:
    """Without the logs, into which others write."""
    return {path: data for path, data in tree.items() if "/logs/" not in path}
