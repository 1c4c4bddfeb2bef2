"""A resident coordinator of one root: what has no worker gets one, and what was ordered is carried out.

It keeps nothing that is not on disk: kill it at any moment, start two of them, the next one goes on. A task that needs
nothing is set aside with the sizes and times of its files, and costs three stats a scan until one of them changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskStatus

from orchestrator import recovery, workspace
from orchestrator.core.lifecycle import WAITING, backoff_seconds
from orchestrator.core.model import Announcement
from orchestrator.errors import OrchestratorError, RootUnusable
from orchestrator.recovery import Recovery
from orchestrator.store import Paths, look, task_ids
from orchestrator.strays import AtLarge
from orchestrator.supervision import Supervisor
from orchestrator.watching import Watch

_thread = anyio.to_thread.run_sync

#: Many changes at once are one scan.
SETTLE_SECONDS = 0.05
#: A task whose supervision failed (a full disk, a process that cannot be ended) is tried again, later and later.
_FAILURES_BEFORE_LONGEST = 9

#: Files changed less than so many seconds ago are looked at once more after as many: a second change within one tick
#: of the file system's clock (up to two seconds) shows in neither time nor, at times, size.
FRESH_SECONDS = 2.5

Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Aside:
    """A task that needs nothing until one of its files changes, or until `due` on the monotonic clock."""

    signature: Signature
    due: float | None = None


def signature(where: Paths) -> Signature:
    """Size, time and number of the files by which a task can come to need something."""
    return tuple(_stat(path) for path in (where.journal, where.requests, where.task_md))


def _stat(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return -1, 0, 0
    return found.st_size, found.st_mtime_ns, found.st_ino


def is_fresh(mark: Signature, now: float) -> bool:
    """Whether any of the files was changed a moment ago, or in the future: then its time proves nothing yet."""
    return any(now - mtime / 1e9 < FRESH_SECONDS for _, mtime, _ in mark)


async def serve(supervisor: Supervisor, interval: float, output: IO[str]) -> None:
    """Look after the root until SIGTERM or SIGINT; then return, and leave the workers alive.

    Raises RootUnusable when the root cannot be made. Nothing that is wrong with one task, or later with the root, ends
    it: it is logged, one line each.
    """
    await _thread(workspace.open_root, supervisor.root)
    log = logger(output)
    async with anyio.create_task_group() as group:
        await group.start(_until_told_to_stop, group.cancel_scope, log)
        await Serving(supervisor, interval, log).run()


async def _until_told_to_stop(
    scope: anyio.CancelScope, log: Any, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name, workers="go on")
            scope.cancel()
            return


class Serving:
    """One scan after the other; `scan` is what a test looks at."""

    def __init__(self, supervisor: Supervisor, interval: float, log: Any) -> None:
        self._supervisor = supervisor
        self._root = supervisor.root
        self._interval = interval
        self._log = log
        self._busy: set[str] = set()
        self._aside: dict[str, Aside] = {}
        self._failures: dict[str, int] = {}
        self._told: dict[str, tuple[str, str]] = {}
        self._wake = anyio.Event()
        self._at_large: AtLarge | None = None

    async def run(self) -> None:
        self._log.info("serving", root=self._root, pid=os.getpid())
        async with anyio.create_task_group() as group:
            while True:
                here = _identity(self._root)
                with _present(self._root):
                    async with Watch(self._root, names_only=True) as names:
                        while _identity(self._root) == here:  # else it was removed and made anew: watch that one
                            for where, mark in await self._scanned():
                                group.start_soon(self._attend, where, mark)
                            await self._rest(names)

    async def _scanned(self) -> list[tuple[Paths, Signature]]:
        try:
            found = await _thread(self.scan)
        except (OSError, RootUnusable) as error:
            self._say("root unusable", "", str(error))
            return []
        self._busy |= {where.task_id for where, _ in found}
        return found

    def scan(self) -> list[tuple[Paths, Signature]]:
        """The tasks that have to be looked at, each with its signature of before the look."""
        workspace.sweep_staging(self._root)
        ids, now = task_ids(self._root), time.monotonic()
        found: list[tuple[Paths, Signature]] = []
        self._at_large = AtLarge.of(self._root)
        for task_id in ids:
            if task_id in self._busy:
                continue
            where = Paths(os.path.join(self._root, task_id))
            mark, aside = signature(where), self._aside.get(task_id)
            if aside is None or aside.signature != mark or (aside.due is not None and aside.due <= now):
                found.append((where, mark))
        for gone in self._aside.keys() - set(ids):
            for memory in (self._aside, self._failures, self._told):
                memory.pop(gone, None)
        return found

    async def _rest(self, names: Watch) -> None:
        """Until a name comes into the root, a task has been dealt with, something is due, or the interval is over."""
        async with anyio.create_task_group() as group:

            async def first(wait: Any, *args: Any) -> None:
                await wait(*args)
                group.cancel_scope.cancel()

            group.start_soon(first, names.next)
            group.start_soon(first, self._wake.wait)
            group.start_soon(first, anyio.sleep, self._seconds_to_rest())
        self._wake = anyio.Event()
        await anyio.sleep(SETTLE_SECONDS)

    def _seconds_to_rest(self) -> float:
        dues = [aside.due for aside in self._aside.values() if aside.due is not None]
        return max(0.0, min([self._interval, *(due - time.monotonic() for due in dues)]))

    async def _attend(self, where: Paths, mark: Signature) -> None:
        """One task: find out what it needs, and see to it. What goes wrong stays with this task."""
        try:
            said, lock = await _thread(recovery.claim, where, self._at_large)
            if lock is None and (said.action != "alive" or await _thread(_is_elsewhere, where)):
                self._set_aside(where, mark, said)
                return
            self._say("adopted" if lock is None else said.action, where.task_id, said.reason)
            self._end(await self._supervisor.supervise(where, lock))
            self._failures.pop(where.task_id, None)
            if await _thread(signature, where) == mark:  # it changed nothing: it would change nothing again
                self._put_aside(where, mark)
        except Exception as error:  # even an error of ours in one task must not cost the others their coordinator
            self._failed(where, mark, error)
        finally:
            self._busy.discard(where.task_id)
            self._wake.set()

    def _set_aside(self, where: Paths, mark: Signature, said: Recovery) -> None:
        self._put_aside(where, mark)
        if said.action != "ended":
            self._say(said.action, where.task_id, said.reason)

    def _put_aside(self, where: Paths, mark: Signature) -> None:
        """Until one of its files changes; one that has just changed is looked at once more."""
        before = self._aside.get(where.task_id)
        again = (before is None or before.signature != mark) and is_fresh(mark, time.time())
        self._aside[where.task_id] = Aside(mark, time.monotonic() + FRESH_SECONDS if again else None)

    def _failed(self, where: Paths, mark: Signature, error: Exception) -> None:
        if not os.path.isdir(where.directory):  # it was removed meanwhile, as tasks are
            return
        count = self._failures[where.task_id] = self._failures.get(where.task_id, 0) + 1
        pause = backoff_seconds(min(count, _FAILURES_BEFORE_LONGEST), 1.0)
        self._aside[where.task_id] = Aside(mark, time.monotonic() + pause)
        expected = isinstance(error, OSError | OrchestratorError)
        what = error.what if isinstance(error, OrchestratorError) else f"{type(error).__name__}: {error}"
        more = {"hint": error.hint} if isinstance(error, OrchestratorError) else {}
        self._log.error("error", task=where.task_id, reason=what, again_in=pause, **more, exc_info=not expected)

    def _end(self, said: Announcement) -> None:
        reason = " ".join(said.summary.split("\n"))
        event = "waits" if said.status in WAITING else "ended"
        self._log.info(event, task=said.task, name=said.name, reason=reason)

    def _say(self, event: str, task_id: str, reason: str) -> None:
        """One line, and not the same again at the next look."""
        if self._told.get(task_id) != (event, reason):
            self._told[task_id] = (event, reason)
            self._log.info(event, **({"task": task_id} if task_id else {}), reason=reason)


def _is_elsewhere(where: Paths) -> bool:
    """Whether its worker is on another machine, or in another container: nobody here can wait for its end."""
    seen = look(where, with_face=False)
    return seen.snapshot.unclosed is not None and seen.alive is None


def _identity(root: str) -> tuple[int, int]:
    try:
        found = os.stat(root)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def _present(root: str) -> Iterator[None]:
    """A shared lock of the root, which excludes nobody: by it `explain` and `doctor` see that somebody serves."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


# -- the log ---------------------------------------------------------------------------------------------------------


class _Tolerant:
    """A stream whose reader may be gone, or whose disk may be full: that loses lines, and no work."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def logger(output: IO[str]) -> Any:
    """One line an event: for a person at a terminal, JSON for everybody else."""
    terminal = output.isatty()
    for_programs = [_traceback, structlog.processors.JSONRenderer()]
    shown: list[Any] = [structlog.dev.ConsoleRenderer()] if terminal else for_programs
    return structlog.wrap_logger(
        structlog.WriteLogger(_Tolerant(output)),  # type: ignore[arg-type]
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *shown,
        ],
        wrapper_class=structlog.BoundLogger,
    )


def _traceback(logger: Any, name: str, event: Any) -> Any:
    """The traceback of an error of ours, within its line."""
    if not event.get("exc_info"):
        event.pop("exc_info", None)
        return event
    return structlog.processors.format_exc_info(logger, name, event)
