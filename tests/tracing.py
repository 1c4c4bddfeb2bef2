"""Runs are killed before a line of the package is executed: SIGKILL, by the very process that comes to it.

A line is named by who executes it (the coordinator, or the worker of which attempt), file, number, and how many times
it was reached: `worker 1: ledger.py:44 #3`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import inline

import orchestrator

_PACKAGE = os.path.dirname(os.path.abspath(orchestrator.__file__)) + "/"
#: Where the state of a task is read, written and decided on.
FILES = tuple(
    (
        "files reading directories locking ledger stepwriter writer face takeover store workspace core/journal"
        " worker/loop worker/task worker/step"
    ).split()
)
_WANTED = {f"{_PACKAGE}{name}.py": f"{name}.py" for name in FILES}


class Tracer:
    """Writes every line that a run comes to into a log, or kills at the one that was ordered."""

    def __init__(self, log: Path, point: str | None) -> None:
        self._point = point
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._state = mmap.mmap(-1, mmap.PAGESIZE)  # shared by all forks
        self._who = "coordinator"
        self._seen: Counter[str] = Counter()
        self._lines: dict[Any, Callable[..., Any]] = {}

    @property
    def has_killed(self) -> bool:
        return self._state[0] == 1

    def become_worker(self) -> None:
        self._state[1] += 1
        self._who = f"worker {self._state[1]}"
        self._seen.clear()
        self.begin()

    def begin(self) -> None:
        sys.settrace(self._call)
        threading.settrace(self._call)

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename in _WANTED else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            name = f"{self._who}: {_WANTED[frame.f_code.co_filename]}:{frame.f_lineno}"
            self._seen[name] += 1
            if self._point is None:
                os.write(self._log, f"{name} #{self._seen[name]}\n".encode())
            elif not self._state[0] and f"{name} #{self._seen[name]}" == self._point:
                self._state[0] = 1
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


@contextlib.contextmanager
def installed(log: Path, point: str | None = None) -> Iterator[Tracer]:
    """The tracer, for every run that begins inside with `Tracer.begin`."""
    inline.alone()
    tracer = Tracer(log, point)
    inline.KEPT.add(tracer._log)
    inline.IN_WORKERS.append(tracer.become_worker)
    try:
        yield tracer
    finally:
        inline.IN_WORKERS.remove(tracer.become_worker)
        inline.KEPT.discard(tracer._log)
        os.close(tracer._log)


def points(log: Path, hits: int) -> list[str]:
    """The lines of a run, each at its first so many hits and at its last."""
    reached = list(dict.fromkeys(log.read_text("utf-8").splitlines()))
    last: Counter[str] = Counter()
    for point in reached:
        name, _, number = point.rpartition(" #")
        last[name] = max(last[name], int(number))
    wanted = ((point, *point.rpartition(" #")[::2]) for point in reached)
    return [point for point, name, number in wanted if int(number) <= hits or int(number) == last[name]]
