"""A file layer that dies at one operation: it stands in for `os` inside `orchestrator.files`, in workers of the tests.

A directory outside of every workspace (ORCHESTRATOR_TEST_DEATH names it) has the `order`: a phase, its occurrence, and
whether the process dies before the operation, after it, or (a write) in the middle; `guard` behind it: by way of its
guard. `log` gets the phase of every
operation, `hit` says that the order was carried out, and `gate`, if it is there, is a fifo whose reader goes on when
it is closed.

A phase is `<kind of the last journal line>: <operation> <file>`: `commit: swap task.md` is the exchange after a commit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "ORCHESTRATOR_TEST_DEATH"

_PATHS = ("open", "rename", "unlink", "mkdir")
_DESCRIPTORS = ("write", "fsync", "ftruncate")
_KIND = re.compile(rb'"kind":"(\w+)"')


class DyingLayer:
    """Looks like `os`. What changes a file is counted by its phase; the one that was ordered is the last."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = os.open(directory / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            self._order = json.loads((directory / "order").read_bytes())
        except FileNotFoundError:
            self._order = None
        if (directory / "hit").exists():  # this life is the one after
            self._order = None
        self._kind = "started"
        self._seen: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in (*_PATHS, *_DESCRIPTORS):
            return real

        def operation(*args: Any, **more: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **more)
            half = (lambda: real(args[0], args[1][: len(args[1]) // 2])) if name == "write" else None
            return self.do(self._phase(name, args), lambda: real(*args, **more), half)

        return operation

    def do(self, phase: str, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        os.write(self._log, phase.encode() + b"\n")
        nth = self._seen[phase] = self._seen.get(phase, 0) + 1
        wanted = self._order is not None and self._order[:2] == [phase, nth]
        if wanted and self._order[2] == "before":
            self._die()
        if wanted and self._order[2] == "half":
            assert half is not None
            half()
            self._die()
        result = act()
        if wanted:
            self._die()
        return result

    def _die(self) -> None:
        (self._directory / "hit").touch()
        os.kill(os.getppid() if self._order[3:] == ["guard"] else os.getpid(), signal.SIGKILL)
        signal.pause()  # a worker dies with its guard, in a moment

    def phase_of(self, operation: str, path: str) -> str:
        name = os.path.basename(path)
        if name.endswith(".md") and not name.endswith(("task.md", "task-retro.md")):
            name = "step file"
        return f"{self._kind}: {operation} {name}"

    def _phase(self, operation: str, args: tuple[Any, ...]) -> str:
        if operation in _PATHS:
            return self.phase_of(operation, os.fspath(args[0]))
        path = os.readlink(f"/proc/self/fd/{args[0]}")
        if operation == "write" and path.endswith("/journal.jsonl"):
            found = _KIND.search(bytes(args[1]))
            self._kind = found[1].decode() if found else self._kind
        elif os.path.isdir(path):
            path = "directory"
        return self.phase_of(operation, path)


def install(directory: Path) -> None:
    """Put the layer in place, then wait at the gate."""
    put_in_place(DyingLayer(directory))
    if (directory / "gate").exists() and not (directory / "hit").exists():
        (directory / "gate").read_bytes()


def put_in_place(layer: DyingLayer) -> None:
    from orchestrator import files

    swap, datasync = files._swap, files._datasync
    files.os = layer  # type: ignore[assignment]
    files._swap = lambda one, other: layer.do(layer.phase_of("swap", other), lambda: swap(one, other))
    files._datasync = lambda fd: layer.do(layer.phase_of("sync", "journal.jsonl"), lambda: datasync(fd))


def install_as_ordered() -> None:
    """The same, when the environment says so."""
    if VARIABLE in os.environ:
        install(Path(os.environ[VARIABLE]))


def supervise() -> int:
    """A supervisor that dies as ordered: `python dying.py DIRECTORY WORKSPACE LOCK`."""
    from orchestrator.cli import supervisor

    install(Path(sys.argv.pop(1)))
    return supervisor.main()


if __name__ == "__main__":
    sys.exit(supervise())
