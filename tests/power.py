"""A model of a disk that can lose power: what lies on it for certain, what may, and every way it may come up.

POSIX, and nothing that one file system happens to add: what was written to a file is certain when that file was synced,
a name when its directory was. Everything else is pending: each item may be lost or kept whatever becomes of the others;
bytes that were appended may be torn anywhere or be zeros; a rename may come before the content of what was renamed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from disklog import Event

#: A tree: the bytes of every file, None for a directory, by the path within it.
Tree = Mapping[str, bytes | None]


class Inode:
    """A file or directory: how it is now, and how it is for certain."""

    __slots__ = ("data", "entries", "sure_data", "sure_entries")

    def __init__(self, *, directory: bool) -> None:
        self.data = self.sure_data = b""
        self.entries: dict[str, Inode] | None = {} if directory else None
        self.sure_entries: dict[str, Inode] = {}


class Names(NamedTuple):
    """A pending change of names, of one directory or two: what each name means after it."""

    what: str
    changes: tuple[tuple[Inode, str, Inode | None], ...]


class Bytes(NamedTuple):
    """Pending bytes of a file: written at an offset; `data` None: cut off there."""

    inode: Inode
    at: int
    data: bytes | None


Item = Names | Bytes
#: How an item comes up: whole, not at all, the first n of its bytes, or all of them zero.
WHOLE, LOST, ZERO = "whole", "lost", "zero"
How = str | int


@dataclass
class Disk:
    """Built from what lies there at first, all of it certain; `apply` does what was recorded."""

    base: str
    root: Inode = field(default_factory=lambda: Inode(directory=True))
    pending: list[Item] = field(default_factory=list)
    _by_number: dict[int, Inode] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Path) -> Disk:
        disk = cls(str(base))
        disk._take(base, disk.root)
        return disk

    def _take(self, path: Path, inode: Inode) -> None:
        self._by_number[path.stat().st_ino] = inode
        for child in path.iterdir():
            new = Inode(directory=child.is_dir())
            assert inode.entries is not None
            inode.entries[child.name] = inode.sure_entries[child.name] = new
            if child.is_dir():
                self._take(child, new)
            else:
                new.data = new.sure_data = child.read_bytes()
                self._by_number[child.stat().st_ino] = new

    # -- what is done to it ----------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        getattr(self, f"_{event.operation}")(*event.args)

    def _told(self, text: str) -> None: ...

    def _chmod(self, path: str, mode: int) -> None: ...

    def _create(self, path: str, number: int) -> None:
        self._by_number[number] = inode = Inode(directory=False)
        self._rename_to(f"create {os.path.basename(path)}", [(path, inode)])

    def _mkdir(self, path: str, number: int) -> None:
        self._by_number[number] = inode = Inode(directory=True)
        self._rename_to(f"mkdir {os.path.basename(path)}", [(path, inode)])

    def _write(self, number: int, data: bytes) -> None:
        inode = self._by_number[number]
        self.pending.append(Bytes(inode, len(inode.data), data))  # all of ours append, or write a new file in one go
        inode.data += data

    def _ftruncate(self, number: int, size: int) -> None:
        inode = self._by_number[number]
        self.pending.append(Bytes(inode, size, None))
        inode.data = inode.data[:size]

    def _fsync(self, number: int) -> None:
        inode = self._by_number.get(number)
        if inode is None:  # beside the base: not ours
            return
        if inode.entries is not None:
            inode.sure_entries = dict(inode.entries)
            self._settle_names(inode)
        else:
            inode.sure_data = inode.data
            self.pending = [i for i in self.pending if not (isinstance(i, Bytes) and i.inode is inode)]

    _fdatasync = _fsync

    def _settle_names(self, directory: Inode) -> None:
        left: list[Item] = []
        for item in self.pending:
            if isinstance(item, Names):
                changes = tuple(c for c in item.changes if c[0] is not directory)
                if changes:
                    left.append(item._replace(changes=changes))
            else:
                left.append(item)
        self.pending = left

    def _rename(self, source: str, target: str) -> None:
        what = f"rename {os.path.basename(source)} to {os.path.basename(target)}"
        self._rename_to(what, [(source, None), (target, self._at(source))])

    _replace = _rename

    def _exchange(self, one: str, other: str) -> None:
        what = f"exchange {os.path.basename(other)}"
        self._rename_to(what, [(one, self._at(other)), (other, self._at(one))])

    def _unlink(self, path: str) -> None:
        self._rename_to(f"unlink {os.path.basename(path)}", [(path, None)])

    _rmdir = _unlink

    def _rename_to(self, what: str, names: Iterable[tuple[str, Inode | None]]) -> None:
        changes = []
        for path, inode in names:
            directory, name = self._at(os.path.dirname(path)), os.path.basename(path)
            changes.append((directory, name, inode))
            assert directory.entries is not None
            if inode is None:
                del directory.entries[name]
            else:
                directory.entries[name] = inode
        self.pending.append(Names(what, tuple(changes)))

    def _at(self, path: str) -> Inode:
        inode = self.root
        relative = os.path.relpath(path, self.base)
        for part in [] if relative == "." else relative.split("/"):
            assert inode.entries is not None
            inode = inode.entries[part]
        return inode

    # -- what others have done to it, and synced -------------------------------------------------------------------

    def was_made(self, path: Path) -> None:
        """A directory with all that lies in it."""
        above = self._at(str(path.parent))
        assert above.entries is not None
        above.entries[path.name] = above.sure_entries[path.name] = new = Inode(directory=True)
        self._take(path, new)

    def was_removed(self, path: str) -> None:
        """A directory with all that lay in it."""
        above, name = self._at(os.path.dirname(path)), os.path.basename(path)
        assert above.entries is not None
        del above.entries[name]
        above.sure_entries.pop(name, None)

    def number(self, number: int) -> Inode | None:
        """The inode that has this number now."""
        return self._by_number.get(number)

    # -- how it may come up ----------------------------------------------------------------------------------------

    def now(self) -> Tree:
        """As every process sees it."""
        return self.coming_up({}, WHOLE)

    def half_written(self) -> Iterator[tuple[str, Tree]]:
        """The last operation cut off in its middle, for it alone can be: a write of which the kernel took a part."""
        if self.pending and isinstance(item := self.pending[-1], Bytes) and item.data:
            half = len(item.data) // 2
            yield f"half of: {what(item)}", self.coming_up({len(self.pending) - 1: half}, WHOLE)

    def ways(self, *, each: bool, cuts: int | None) -> Iterator[tuple[str, Tree]]:
        """Every state in which the disk may come up after a power cut now, each with what distinguishes it.

        All that is pending kept, all lost; the newest item lost, and alone kept; its bytes torn and zero, with
        everything else kept and with nothing else. With `each`, the same of every item, torn in the middle. `cuts` is
        how many places the newest bytes are torn at; None: all.
        """
        yield "all kept", self.now()
        yield "all lost", self.coming_up({}, LOST)
        newest = len(self.pending) - 1
        for number, item in enumerate(self.pending):
            if not each and number != newest:
                continue
            hows: list[How] = [LOST]
            if isinstance(item, Bytes) and item.data:
                size = len(item.data)
                hows += [ZERO, *(torn(size, cuts) if number == newest else (size // 2,))]
            for how in hows:
                yield f"{how}: {what(item)}", self.coming_up({number: how}, WHOLE)
                if how == LOST:
                    yield f"only: {what(item)}", self.coming_up({number: WHOLE}, LOST)
                else:
                    yield f"only, {how}: {what(item)}", self.coming_up({number: how}, LOST)

    def coming_up(self, special: Mapping[int, How], otherwise: How) -> Tree:
        """The tree when each pending item comes up as `special` says, by its number, or else as all others do."""
        names: dict[Inode, dict[str, Inode]] = {}
        contents: dict[Inode, bytes] = {}
        for number, item in enumerate(self.pending):
            how = special.get(number, otherwise)
            if how == LOST:
                continue
            if isinstance(item, Names):
                for directory, name, inode in item.changes:
                    there = names.setdefault(directory, dict(directory.sure_entries))
                    if inode is None:
                        there.pop(name, None)
                    else:
                        there[name] = inode
            else:
                contents[item.inode] = _with(contents.get(item.inode, item.inode.sure_data), item, how)
        found: dict[str, bytes | None] = {}
        _walk(self.root, "", names, contents, found)
        return found


def _with(data: bytes, item: Bytes, how: How) -> bytes:
    if item.data is None:
        return data[: item.at].ljust(item.at, b"\0")
    new = item.data if how == WHOLE else bytes(len(item.data)) if how == ZERO else item.data[: int(how)]
    return data[: item.at].ljust(item.at, b"\0") + new + data[item.at + len(new) :]


def _walk(
    directory: Inode,
    path: str,
    names: Mapping[Inode, Mapping[str, Inode]],
    contents: Mapping[Inode, bytes],
    found: dict[str, bytes | None],
) -> None:
    for name, inode in names.get(directory, directory.sure_entries).items():
        if inode.entries is None:
            found[path + name] = contents.get(inode, inode.sure_data)
        else:
            found[path + name] = None
            _walk(inode, f"{path}{name}/", names, contents, found)


def what(item: Item) -> str:
    if isinstance(item, Names):
        return item.what
    return f"cut off at {item.at}" if item.data is None else f"write {item.data[:60]!r} at {item.at}"


#: Above this, bytes are torn at a few places only: it is one result, or one notes' text.
_SMALL = 2048


def torn(size: int, cuts: int | None) -> Iterator[int]:
    """Where so many bytes are torn: at `cuts` places evenly, or everywhere."""
    if cuts is None and size <= _SMALL:
        yield from range(1, size)
        return
    count = min(16 if cuts is None else cuts, size - 1)
    yield from sorted({1 + (size - 2) * n // max(1, count - 1) for n in range(count)}) if count > 0 else ()


def lay(tree: Tree, base: Path, old: float) -> None:
    """Make the tree in an empty directory; its files were written long ago, so that nobody waits for an editor."""
    for path, data in tree.items():
        if data is None:
            (base / path).mkdir()
        else:
            (base / path).write_bytes(data)
            os.utime(base / path, (old, old))


def digest(tree: Tree) -> bytes:
    sha = hashlib.sha256()
    for path in sorted(tree):
        data = tree[path]
        sha.update(repr((path, None if data is None else len(data))).encode() + (data or b""))
    return sha.digest()
