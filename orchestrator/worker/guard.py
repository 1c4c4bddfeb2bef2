"""The guard: a small process around every worker, which holds when the worker itself is stuck or dead.

It is forked off before anything heavy is imported. Worker and guard share the descriptor that carries the task's lock,
so the lock is free only when both are gone, and the guard goes last: after it has ended every process the worker left.
So a free lock says that nothing of the worker can still write, whether or not a coordinator lives.

* It reads the worker's stdout and stderr and writes them to files of bounded size, head and tail kept (fault 64). The
  worker never dies of a closed pipe: if its guard is killed, the kernel kills it too (PR_SET_PDEATHSIG), or, where
  there is none, a thread that waits for the guard's end of a pipe.
* SIGTERM and SIGINT are passed on; after the grace the worker gets SIGKILL. So it does after its life's limit. Time
  in which the guard itself was stopped, or the machine slept, counts for neither.
* It writes down how the worker ended, for a coordinator that is not its parent and cannot see it otherwise.
* It collects orphans (PR_SET_CHILD_SUBREAPER), and ends them when the worker has ended; with a cgroup, by
  `cgroup.kill`.
* It imports no more than it must: it lives as long as the worker does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from orchestrator.worker.capped import Log as _Log

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HANDLED = (*_PASSED_ON, signal.SIGCHLD)
#: Still blocked in the worker when `enter` returns; it unblocks them once it can listen, before it starts anything.
STOPS = (signal.SIGTERM, signal.SIGINT)
#: How long the end of the tree may take before the guard gives up and says so by its exit code.
_CLEAN_SECONDS = 10.0
#: While it keeps a limit it looks at the clock so often; when it was kept from that for `_LATE_SECONDS` or more (the
#: machine slept, the whole tree was stopped), the rest is not counted: see worker/lived.py.
_TICK_SECONDS = 1.0
_LATE_SECONDS = 3.0
UNCLEAN = 113
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a fifo is not waited for


class Settings(NamedTuple):
    run: str
    out: str
    err: str
    ended: str
    output_bytes: int
    grace_seconds: float
    life_seconds: float | None
    cgroup: str | None
    subreaper: bool


def enter(settings: Settings) -> None:
    """Fork. Returns in the worker; the guard never returns: it exits as the worker did.

    The exit code is the worker's, or the guard dies of the same signal; 113 when processes are left that cannot be
    ended.
    """
    if settings.cgroup:
        with contextlib.suppress(OSError):
            _write(f"{settings.cgroup}/cgroup.procs", b"0")
    prctl = _prctl() if settings.subreaper else None
    if prctl:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    lifeline, held = os.pipe()
    wake, waker = os.pipe()
    guard = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # until there is a handler: none may get lost, none may kill us
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_HANDLED} - {*STOPS})
        for fd in (out_read, err_read, held, wake, waker):
            os.close(fd)
        _become_worker(out_write, err_write, lifeline, guard, prctl)
        return
    for fd in (out_write, err_write, lifeline):
        os.close(fd)
    for fd in (wake, waker):
        os.set_blocking(fd, False)
    try:
        logs = [_Log(*end, settings.output_bytes) for end in ((settings.out, out_read), (settings.err, err_read))]
        _guard(pid, logs, wake, waker, settings, _Ending(settings.ended, settings.run))
    finally:
        os._exit(UNCLEAN)


def _become_worker(out: int, err: int, lifeline: int, guard: int, prctl: Callable[..., int] | None) -> None:
    os.setpgid(0, 0)  # so that the group can be ended without the guard
    for fd, number in ((out, 1), (err, 2)):
        os.dup2(fd, number)
        os.close(fd)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != guard:
            os._exit(UNCLEAN)
        os.close(lifeline)
    else:
        _die_with_the_guard(lifeline)


def _die_with_the_guard(lifeline: int) -> None:
    import threading  # only where the kernel cannot do it

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


def _guard(pid: int, logs: list[_Log], wake: int, waker: int, settings: Settings, ending: _Ending) -> NoReturn:
    stop = _Stop(pid, settings)
    for number in _PASSED_ON:
        signal.signal(number, stop.on_signal)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    status = _watch(pid, logs, wake, stop)
    for number in _PASSED_ON:  # there is nobody to pass them on to, and we still have work to do
        signal.signal(number, signal.SIG_IGN)
    _end_group(pid)
    if status is None:
        status = os.waitpid(pid, 0)[1]
    clean = _end_the_rest(settings)
    for log in logs:
        log.finish()
    status = status if clean else UNCLEAN << 8
    ending.write(status)
    _exit_as(status)


def _watch(pid: int, logs: list[_Log], wake: int, stop: _Stop) -> int | None:
    """Pump output until the worker has ended. Returns its wait status; None when it was not collected yet.

    Until it is, its pid and its process group are nobody else's: a late signal meets no stranger.
    """
    reading = {log.source: log for log in logs}
    while True:
        ended, status = _collect_orphans(pid)
        if ended:
            return status
        ready, _, _ = select.select([wake, *reading], [], [], stop.timeout())
        stop.enforce()
        for fd in ready:
            if fd == wake:
                _drain(wake)
            elif not reading[fd].pump():
                del reading[fd]


def _collect_orphans(worker: int) -> tuple[bool, int | None]:
    """Collect whatever has ended but the worker. Whether that has, and its status where it had to be collected."""
    if not hasattr(os, "waitid"):  # macOS
        status = _reap(worker)
        return status is not None, status
    while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if found.si_pid == worker:
            return True, None
        os.waitpid(found.si_pid, 0)
    return False, None


def _reap(pid: int) -> int | None:
    """Collect whatever has ended; the worker's status if it is among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = status


class _Stop:
    """When the worker is told to stop, and when it is made to."""

    def __init__(self, pid: int, settings: Settings) -> None:
        self._pid = pid
        self._grace = settings.grace_seconds
        now = self._looked = time.monotonic()
        self._lost = 0.0
        # The worker ends by itself at its limit; the guard is there for one that is stuck.
        life = settings.life_seconds
        self._kill_at = now + life + 2 * self._grace if life is not None else None

    def on_signal(self, _number: int, _frame: object) -> None:
        self._kill_at = min(self._kill_at or float("inf"), self._now() + self._grace)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
            os.kill(self._pid, signal.SIGCONT)

    def timeout(self) -> float | None:
        if self._kill_at is None:
            return None
        return min(_TICK_SECONDS, max(0.0, self._kill_at - self._now()))

    def enforce(self) -> None:
        if self._kill_at is not None and self._now() >= self._kill_at:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._kill_at = self._now() + self._grace

    def _now(self) -> float:
        """The time, without that in which nobody came to look at it."""
        now = time.monotonic()
        gap, self._looked = now - self._looked, now
        if gap > _LATE_SECONDS:
            self._lost += gap - _TICK_SECONDS
        return now - self._lost


class _Ending:
    """How the worker ended, in a file that has its full length from the start: a full disk takes it as well."""

    def __init__(self, path: str, run: str) -> None:
        self._run, self._fd = run, -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, _NEW, 0o644)
            self._put("runs")

    def _put(self, how: str) -> None:
        os.pwrite(self._fd, f"{self._run} {how:<10}\n".encode(), 0)

    def write(self, status: int) -> None:
        signalled = os.WIFSIGNALED(status)
        with contextlib.suppress(OSError):
            self._put(f"signal {os.WTERMSIG(status)}" if signalled else f"exit {os.WEXITSTATUS(status)}")


def _end_group(worker: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)


def _end_the_rest(settings: Settings) -> bool:
    """End every process the worker left. True when none is left that we can reach."""
    deadline = time.monotonic() + _CLEAN_SECONDS
    if settings.cgroup and _leave(settings.cgroup):
        _empty_cgroup(settings.cgroup, deadline)
    pause = 0.001
    rest = _children if settings.subreaper else _marked
    while time.monotonic() < deadline:
        left = list(rest())
        if not left:
            return True
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap(-1)
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return False


def _children() -> Iterator[int]:
    """Our children; with the subreaper set, orphans of the worker become ours one generation after the other."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            yield from map(int, file.read().split())
    except OSError:
        return  # without /proc the process group was all there is


def _marked() -> Iterator[int]:
    """Without the subreaper: every other process that carries our token in its environment."""
    mark = b"ORCHESTRATOR_TOKEN=" + os.environb.get(b"ORCHESTRATOR_TOKEN", b"")
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid():
                with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        yield int(name)


def _leave(cgroup: str) -> bool:
    with contextlib.suppress(OSError):
        _write(f"{os.path.dirname(cgroup)}/cgroup.procs", b"0")
        return True
    return False


def _empty_cgroup(cgroup: str, deadline: float) -> None:
    pause = 0.001
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            _write(f"{cgroup}/cgroup.kill", b"1")
        _reap(-1)
        if _remove_cgroup(cgroup):
            return
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def _remove_cgroup(cgroup: str) -> bool:
    try:
        for entry in os.scandir(cgroup):
            if entry.is_dir(follow_symlinks=False):
                _remove_cgroup(entry.path)
        os.rmdir(cgroup)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _exit_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)  # a signal that does not kill us: fall through
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 512):
            pass


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _prctl() -> Callable[..., int] | None:
    try:
        import ctypes

        prctl: Callable[..., int] = ctypes.CDLL(None).prctl
        return prctl
    except (ImportError, OSError, AttributeError):
        return None
