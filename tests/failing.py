"""A file layer that fails at one operation, or from there on: it stands in for `os` below `orchestrator.files`.

An operation is named by who does it (the coordinator, or the worker of which attempt), what it is, the file, and the
how-manieth of these it is: `worker 1: write journal.jsonl #3`. The layer counts them in every process of a run
(inline.py) and lets the one that was ordered fail.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import inline

from orchestrator import copying, directories, files, locking, reading

#: The file layer: where `os` is another.
LAYER = (files, reading, directories, locking, copying)

#: Which operations a state of the disk, or of the process, makes fail. `open` and `append` are of what is there.
SCOPES: dict[int, frozenset[str]] = {
    errno.ENOSPC: frozenset({"create", "write", "sync", "mkdir", "rename"}),
    errno.EDQUOT: frozenset({"create", "write", "sync", "mkdir", "rename"}),
    errno.EROFS: frozenset({"create", "append", "write", "mkdir", "rename", "unlink", "truncate", "chmod"}),
    errno.EACCES: frozenset({"create", "append", "open", "mkdir", "rename", "unlink", "list", "stat", "chmod"}),
    errno.EIO: frozenset(
        {"create", "append", "open", "read", "write", "sync", "truncate", "rename", "unlink", "mkdir", "list", "stat"}
    ),
    errno.EMFILE: frozenset({"create", "append", "open", "list"}),
    errno.ENFILE: frozenset({"create", "append", "open", "list"}),
}
#: A write that takes half of the bytes; the disk is full then.
SHORT = -1
#: What lasts ends with the process.
_OF_THE_PROCESS = frozenset({errno.EMFILE})

_OPERATIONS = {
    **{name: name for name in ("write", "rename", "unlink", "mkdir", "read", "stat", "chmod")},
    "fsync": "sync",
    "ftruncate": "truncate",
    "makedirs": "mkdir",
    "rmdir": "unlink",
    "pread": "read",
    "scandir": "list",
    "listdir": "list",
    "fstat": "stat",
}
_VARYING = re.compile(r"task-\d{8}-\d{6}-\d+|[0-9a-f]{8,}|\d{4}-\d\d-\d\dT[\d.]+Z")


class Fault(NamedTuple):
    """What goes wrong, and where. `lost`: what was not synced when a sync failed is gone."""

    point: str
    error: int
    lasting: bool = False
    lost: bool = False

    @property
    def kind(self) -> str:
        return self.point.partition(": ")[2].partition(" ")[0]

    def __str__(self) -> str:
        name = "a short write" if self.error == SHORT else errno.errorcode[self.error]
        return f"{name}{', lasting' * self.lasting}{', bytes lost' * self.lost} at {self.point}"


class FailingLayer:
    """Looks like `os`. In the process that made it, it is `os`."""

    def __init__(self, log: Path, fault: Fault | None) -> None:
        self._fault = fault
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._maker = os.getpid()
        self._who = "coordinator"
        self._seen: dict[str, int] = {}
        # How long each file was when it was synced last, by whichever process of the run.
        self._synced = os.open(f"{log}.synced", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._state = mmap.mmap(-1, mmap.PAGESIZE)  # shared by all forks: 1 when the fault has come
        self._lasts_here = False
        self._workers = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name == "open":
            return lambda path, flags, *more: self._open(path, flags, lambda: real(path, flags, *more))
        kind = _OPERATIONS.get(name)
        if kind is None:
            return real

        def operation(*args: Any, **more: Any) -> Any:
            half = (lambda: real(args[0], bytes(args[1])[: len(args[1]) // 2])) if name == "write" else None
            return self.do(kind, args[0] if args else ".", lambda: real(*args, **more), half)

        return operation

    @property
    def has_failed(self) -> bool:
        return self._state[0] == 1

    def become_worker(self) -> None:
        """The first act of a worker."""
        self._state[1] += 1
        self._who = f"worker {self._state[1]}"
        self._seen = {}
        self._lasts_here = False

    def _open(self, path: Any, flags: int, act: Callable[[], Any]) -> Any:
        if not flags & os.O_CREAT:
            return self.do("open", path, act)
        kind = "append" if os.path.exists(path) else "create"
        fd = self.do(kind, path, act)
        self._remember(kind, fd)
        return fd

    def _remember(self, what: str, fd: int) -> None:
        found = os.fstat(fd)
        os.write(self._synced, f"{what} {found.st_dev} {found.st_ino} {found.st_size}\n".encode())

    def _kept(self, fd: int) -> int:
        """How much of a file the disk has promised to keep: all of one that lay there before the run."""
        found = os.fstat(fd)
        kept: int | None = None
        for line in os.pread(self._synced, os.fstat(self._synced).st_size, 0).decode().splitlines():
            what, device, number, size = line.split()
            if (int(device), int(number)) == (found.st_dev, found.st_ino) and (what != "append" or kept is None):
                kept = int(size)
        return found.st_size if kept is None else kept

    def do(self, kind: str, target: Any, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        if os.getpid() == self._maker:
            return act()
        error = self._due(kind, target)
        if error == SHORT:
            assert half is not None
            return half()
        if error is not None:
            if kind == "sync":
                self._lose(target)
            raise OSError(error, os.strerror(error), None if isinstance(target, int) else os.fspath(target))
        result = act()
        if kind == "sync" and isinstance(target, int):
            self._remember("synced", target)
        return result

    def _due(self, kind: str, target: Any) -> int | None:
        """The error that this operation is to fail with."""
        name = f"{self._who}: {kind} {self._name(target)}"
        self._seen[name] = number = self._seen.get(name, 0) + 1
        point = f"{name} #{number}"
        os.write(self._log, point.encode() + b"\n")
        fault = self._fault
        if fault is None:
            return None
        if self.has_failed:
            error = errno.ENOSPC if fault.error == SHORT else fault.error
            here = self._lasts_here or error not in _OF_THE_PROCESS
            return error if fault.lasting and here and kind in SCOPES[error] else None
        if point != fault.point:
            return None
        self._state[0] = 1
        self._lasts_here = True
        return fault.error

    def _name(self, target: Any) -> str:
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
        return _VARYING.sub("#", os.path.basename(path))

    def _lose(self, fd: Any) -> None:
        """The pages that could not be written are gone, though a later sync will say that all is well."""
        if self._fault is not None and self._fault.lost and isinstance(fd, int):
            path = f"/proc/self/fd/{fd}"
            if os.path.isfile(path):
                os.truncate(path, self._kept(fd))


@contextlib.contextmanager
def installed(log: Path, fault: Fault | None = None) -> Iterator[FailingLayer]:
    """The layer, below the file layer of every run that begins inside."""
    inline.alone()
    layer = FailingLayer(log, fault)
    swap, datasync = files._swap, files._datasync
    inline.KEPT.update((layer._log, layer._synced))
    inline.IN_WORKERS.append(layer.become_worker)
    for module in LAYER:
        module.os = layer  # type: ignore[attr-defined]
    files._swap = lambda one, other: layer.do("rename", other, lambda: swap(one, other))
    files._datasync = lambda fd: layer.do("sync", fd, lambda: datasync(fd))
    try:
        yield layer
    finally:
        files._swap, files._datasync = swap, datasync
        for module in LAYER:
            module.os = os  # type: ignore[attr-defined]
        inline.IN_WORKERS.remove(layer.become_worker)
        for fd in (layer._log, layer._synced):
            inline.KEPT.discard(fd)
            os.close(fd)


def points(log: Path) -> list[str]:
    """Every operation of a run, in their order."""
    return list(dict.fromkeys(log.read_text("utf-8").splitlines()))


def faults(point: str, errors: tuple[int, ...]) -> Iterator[Fault]:
    """All that can go wrong at one operation."""
    kind = Fault(point, 0).kind
    for error in errors:
        if kind in SCOPES[error]:
            for lasting in (False, True):
                yield Fault(point, error, lasting)
                if kind == "sync":
                    yield Fault(point, error, lasting, lost=True)
    if kind == "write":
        yield Fault(point, SHORT)
        yield Fault(point, SHORT, lasting=True)
