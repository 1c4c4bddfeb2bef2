"""A root on which a script is played, move by move: coordinators and workers in forks, and a skill that does as told.

A worker stands in a step until it is told how that ends; a move is over when every worker stands somewhere or is gone.
So each move has one outcome, and yet all of it is the product's own code in processes that hold the lock and are
killed by SIGKILL (tests/inline.py says what is left out of these processes).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import inline
from mains import Hands, Mains

from orchestrator import NotDone, adoption, containment, current_step, files, identity, store, workspace
from orchestrator.core import lifecycle
from orchestrator.core.model import Limits, TaskSpec
from orchestrator.errors import Refused
from orchestrator.store import Paths

#: Longer than any move takes, on a machine that does something else as well.
PATIENCE_SECONDS = float(os.environ.get("ORCHESTRATOR_TEST_PATIENCE", "60"))
LOOK_SECONDS = 0.001

SKILL = Path(__file__).with_name("told_skill.py")

#: What a step may return, by the word that stands for it in a script.
VALUES: dict[str, Any] = {"one": 1, "two": "zwei", "three": {"three": [3]}, "large": "large " * 12_000}

#: The variable that names the directory of the doors, where workers are programs of their own.
DOORS = "ORCHESTRATOR_TEST_DOORS"

#: The sockets by which the workers of each directory are told what to do; every fork has them all.
CHANNELS: dict[str, tuple[socket.socket, socket.socket]] = {}


def channel(directory: str) -> tuple[socket.socket, socket.socket]:
    """Of a task: our end and its workers'. Messages are whole or not there."""
    if directory not in CHANNELS:
        CHANNELS[directory] = ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        inline.KEPT.update((ours.fileno(), theirs.fileno()))
    return CHANNELS[directory]


def worker_end(directory: str) -> socket.socket:
    """In a worker: inherited, or behind the door of its task (tests/doors.py)."""
    if DOORS not in os.environ:
        return channel(directory)[1]
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.connect(f"{os.environ[DOORS]}/{os.path.basename(directory)}")
    end.setblocking(False)
    return end


def close_channels() -> None:
    for pair in CHANNELS.values():
        for end in pair:
            inline.KEPT.discard(end.fileno())
            end.close()
    CHANNELS.clear()


# -- in the worker -----------------------------------------------------------------------------------------------------


class Told:
    """How a step of the told skill speaks with the script: it says where it stands, and is told how that ends."""

    def __init__(self, task: Any) -> None:
        self._end = worker_end(str(task.workspace))

    def say(self, *words: Any) -> None:
        self._end.send(json.dumps([os.getpid(), *words]).encode())

    async def stand(self, *words: Any) -> Any:
        """Say it and wait; what is then told."""
        self.say(*words)
        while True:
            order, *rest = json.loads(await asyncio.get_running_loop().sock_recv(self._end, 1 << 16))
            match order:
                case "note":
                    current_step().note(rest[0])
                    self.say("noted")
                case "doom":
                    Doom.arm(rest[0])
                case "returns":
                    return VALUES.get(rest[0], rest[0]) if isinstance(rest[0], str) else rest[0]
                case "raises":
                    raise ValueError("told to")
                case "raises NotDone":
                    raise NotDone("told to")
                case "leaves":
                    os._exit(0)


class Died(Exception):  # noqa: N818 - it was told to
    """The coordinator did."""


class Doom:
    """Stands in for `os` inside `orchestrator.files`, on top of whoever does: the process is killed when it comes to
    one operation."""

    left = 0  #: operations until then; 0: it lives
    layer: Doom | None = None

    @classmethod
    def arm(cls, operations: int) -> None:
        cls.left = operations
        if cls.layer is None:
            cls.layer = cls(files.os)
            swap, datasync = files._swap, files._datasync
            files.os = cls.layer  # type: ignore[assignment]
            files._swap = lambda one, other: cls.layer.do(lambda: swap(one, other))
            files._datasync = lambda fd: cls.layer.do(lambda: datasync(fd))

    def __init__(self, below: Any) -> None:
        self._below = below

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._below, name)
        if name not in ("open", "write", "fsync", "rename", "unlink", "mkdir", "ftruncate"):
            return real

        def operation(*args: Any, **more: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **more)
            return self.do(lambda: real(*args, **more))

        return operation

    def do(self, act: Callable[[], Any]) -> Any:
        if Doom.left == 1:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        Doom.left = max(0, Doom.left - 1)
        return act()


def _spare() -> None:
    """In every worker of a stage, and of no other run: its layer is nothing to them."""
    Doom.arm(0)


# -- the script's side -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Coordinating:
    """A coordinator in a process of its own, and what it said of the verb that it was begun with."""

    pid: int
    pidfd: int
    said: Any

    @property
    def alive(self) -> bool:
        return not select.select([self.pidfd], [], [], 0)[0]

    def kill(self) -> None:
        containment.send(self.pid, signal.SIGKILL)
        self.collect()

    def collect(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)


@dataclasses.dataclass
class Seat:
    """A task on the stage, as the script sees it."""

    where: Paths
    end: Any  #: of the channel to its workers
    worker: int | None = None  #: the pid of the worker that stands somewhere
    coordinating: Coordinating | None = None
    said: list[tuple[str, ...]] = dataclasses.field(default_factory=list)

    def drain(self) -> None:
        while True:
            try:
                pid, *words = json.loads(self.end.recv(1 << 16))
            except BlockingIOError:
                return
            self.said.append(tuple(map(str, words)))
            if words[0] in ("entered", "checking", "noted"):
                self.worker = pid


class Stage:
    recorded = True  #: all that is done to its disk is written down: its power can be cut

    def __init__(self) -> None:
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a sync costs nothing there
        self.base = Path(tempfile.mkdtemp(prefix="stage-", dir=shm))
        self.root = self.base / "root ü"
        self.root.mkdir()
        self.log = self.base / "log"
        self.hands: Hands = Mains(self.root, self.base / "operations") if self.recorded else Hands()
        inline.IN_WORKERS.append(_spare)
        inline._warm_up()

    def close(self) -> None:
        inline.IN_WORKERS.remove(_spare)
        self.hands.close()
        close_channels()
        shutil.rmtree(self.base)

    def coordinator(self) -> Any:
        return inline.coordinator(self.root)

    def channel(self, directory: str) -> Any:
        return channel(directory)[0]

    # -- coordinators --------------------------------------------------------------------------------------------

    def coordinate(self, seat: Seat, act: Callable[[Any], Any]) -> Any:
        """Begin a coordinator with `act`, which gives back what it says and what it then looks after; what it says.

        It goes on until that task has ended or waits, or until it is killed.
        """
        said = self._fork(act)
        self.attend(seat)
        if seat.coordinating is None:
            seat.coordinating = said
        else:  # another looks after the task already: this one has nothing more to do
            self._wait(lambda: not said.alive, "the second coordinator ends")
            said.collect()
        self.quiet(seat)
        return said.said

    def attend(self, seat: Seat) -> None:
        if seat.coordinating is not None and not seat.coordinating.alive:
            seat.coordinating.collect()
            seat.coordinating = None

    def _fork(self, act: Callable[[Any], Any], *, may_die: bool = False) -> Coordinating:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._be_the_coordinator(act, writing)
        os.close(writing)
        said = b""
        while select.select([reading], [], [], PATIENCE_SECONDS)[0] and (data := os.read(reading, 1 << 16)):
            said += data
        os.close(reading)
        if not said and may_die:
            os.waitpid(pid, 0)
            raise Died
        if not said:
            containment.send(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"a coordinator said nothing:\n{self.log.read_text()[-3000:]}")
        kind, value = json.loads(said)
        if kind == "error":
            raise AssertionError(value)
        return Coordinating(pid, os.pidfd_open(pid), value)

    def _be_the_coordinator(self, act: Callable[[Any], Any], writing: int) -> None:
        code = 1
        try:
            fd = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            inline._redirect(fd, fd)
            lifecycle.backoff_seconds = lambda failures, luck: 0.0
            files.SETTLE_SECONDS = 0.0
            contextvars.Context().run(anyio.run, self._coordinate, act, writing)
            code = 0
        except BaseException:
            traceback.print_exc()
            with contextlib.suppress(OSError):
                os.write(writing, json.dumps(("error", traceback.format_exc())).encode())
        finally:
            sys.stdout.flush()
            os._exit(code)

    async def _coordinate(self, act: Callable[[Any], Any], writing: int) -> None:
        async with self.coordinator() as coordinator:
            said = await act(coordinator)
            os.write(writing, json.dumps(("said", said)).encode())
            os.close(writing)
            while coordinator._watched:  # noqa: ASYNC110 - it tells nobody when it is through
                await anyio.sleep(LOOK_SECONDS)

    # -- moves of the coordinator ----------------------------------------------------------------------------------

    def spawn(self, spec: TaskSpec) -> Seat:
        where, lock = workspace.create(str(self.root), spec, time.time)
        os.close(lock)
        return self.seat(where)

    def seat(self, where: Paths) -> Seat:
        return Seat(where, self.channel(where.directory))

    def recover(self, seat: Seat) -> str:
        async def act(coordinator: Any) -> str:
            (said,) = await coordinator.recover([seat.where.task_id])
            return str(said.action)

        return str(self.coordinate(seat, act))

    def order(self, seat: Seat, verb: str, **fields: Any) -> str:
        """ "refused", "given" (to a worker that lives), or "done"."""
        alive = seat.worker is not None

        async def act(coordinator: Any) -> str:
            try:
                handled, lock = await coordinator.order(
                    seat.where.task_id, verb, patience=0.0 if alive or verb == "send" else None, **fields
                )
            except Refused:
                return "refused"
            if lock is not None:
                await coordinator.adopt(seat.where, lock)
            return "given" if handled is None else "done"

        return str(self.coordinate(seat, act))

    def cancel(self, seat: Seat) -> str:
        async def act(coordinator: Any) -> str:
            return str((await coordinator.cancel(seat.where.task_id)).status)

        worker = seat.worker
        seat.worker = None if worker is not None else seat.worker
        return str(self.coordinate(seat, act))

    def recover_and_die(self, seat: Seat, operation: int) -> bool:
        """The coordinator dies at one of its own operations on files, or lives on; whether it died."""

        async def act(coordinator: Any) -> str:
            Doom.arm(operation)
            (said,) = await coordinator.recover([seat.where.task_id])
            Doom.arm(0)
            return str(said.action)

        try:
            seat.coordinating = self._fork(act, may_die=True)
        except Died:
            self.quiet(seat)
            return True
        self.quiet(seat)
        return False

    def adopt(self, seat: Seat, spec: TaskSpec) -> str:
        async def act(coordinator: Any) -> str:
            found = adoption.adopt(str(self.root), seat.where.directory, spec, time.time)
            if found.lock is not None:
                await coordinator.adopt(found.where, found.lock)
            return found.action

        return str(self.coordinate(seat, act))

    # -- moves of the worker ---------------------------------------------------------------------------------------

    def tell(self, seat: Seat, *words: Any) -> None:
        seat.worker = None
        seat.end.send(json.dumps(words).encode())
        self.quiet(seat)

    def doom(self, seat: Seat, operation: int) -> None:
        """Its worker dies at this of its next operations on files; 0: it does not."""
        seat.end.send(json.dumps(["doom", operation]).encode())

    def kill(self, seat: Seat, number: int = signal.SIGKILL) -> None:
        """End its worker; and wait for the next one, if somebody looks after the task."""
        worker, seat.worker = seat.worker, None
        assert worker is not None
        who = identity.of(worker)
        assert who is not None
        containment.send(worker, number)
        self._wait(lambda: identity.alive(who) is False, "the worker ends")
        self.quiet(seat)

    def kill_coordinator(self, seat: Seat) -> None:
        assert seat.coordinating is not None
        seat.coordinating.kill()
        seat.coordinating = None

    def end(self, seat: Seat) -> None:
        """Nothing of it goes on."""
        if seat.coordinating is not None:
            self.kill_coordinator(seat)
        if seat.worker is not None:
            self.kill(seat)

    # -- the end of a move -----------------------------------------------------------------------------------------

    def quiet(self, seat: Seat) -> None:
        """Return when its worker stands somewhere, or nobody works on it."""
        self._wait(lambda: self._is_quiet(seat), f"{seat.where.directory} comes to rest")

    def _is_quiet(self, seat: Seat) -> bool:
        seat.drain()
        self.attend(seat)
        if seat.worker is not None:
            return True
        gone = seat.coordinating is None and lock_is_free(seat.where)
        return gone and store.look(seat.where).alive is not True  # who dies gives up the lock first

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                log = self.log.read_text()[-3000:] if self.log.exists() else ""
                raise TimeoutError(f"not within {PATIENCE_SECONDS} s: {what}\n{log}")
            time.sleep(LOOK_SECONDS)


def lock_is_free(where: Paths) -> bool:
    lock = files.lock_directory(where.directory)
    if lock is not None:
        os.close(lock)
    return lock is not None


def spec(args: dict[str, Any], *, deaths: int, kind: str = "python") -> TaskSpec:
    return TaskSpec("a told task", kind, f"{SKILL}:told", args=args, limits=Limits(deaths=deaths))
