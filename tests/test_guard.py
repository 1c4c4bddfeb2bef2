"""The guard around a worker: what it writes down, what it outlives, how it ends what it guards.

Each test forks a guard by itself, without the rest of a worker: `enter` is called in a fresh interpreter, then a few
lines run as the worker.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import until
from launching import is_alive

from orchestrator import means
from orchestrator.worker import guard

LIMIT = 10_000
#: Seconds within which the guard must have done what it does at once; what it must not wait for lasts 300 or for ever.
LOADED = 100

_PROGRAM = """
import json, os, signal, subprocess, sys, time, resource
from orchestrator.worker import guard
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
guard.enter(guard.Settings(*json.loads(sys.argv[1])))
signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOPS)
def say(data, fd=1):
    while data:
        data = data[os.write(fd, data):]
exec(sys.argv[2])
os._exit(0)
"""


class Guarded:
    """A guard, started with a few lines of Python as its worker."""

    def __init__(self, directory: Path, subreaper: bool) -> None:
        self.out, self.err, self.end = (directory / f"1.{kind}" for kind in ("out", "err", "end"))
        self._directory = directory
        self._subreaper = subreaper
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, code: str, *, limit: int = LIMIT, grace: float = 5.0, life: float | None = None, file_size: int = -1
    ) -> subprocess.Popen[bytes]:
        paths = [str(self.out), str(self.err), str(self.end)]
        settings = ["task.1", *paths, limit, grace, life, None, self._subreaper]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(settings), code, str(file_size)],
            cwd=self._directory,
            env={**os.environ, "ORCHESTRATOR_TOKEN": uuid.uuid4().hex},
            start_new_session=True,
        )
        return self.process

    def run(self, code: str, **how: float | int | None) -> int:
        return self.start(code, **how).wait(120)  # type: ignore[arg-type]

    async def file(self, name: str) -> str:
        """What the worker wrote into a file of this name, as soon as it did."""
        path = self._directory / name
        return str(await until(lambda: path.exists() and path.read_text(), f"the worker wrote {name}"))


@pytest.fixture(params=[True, False], ids=["subreaper", "no-subreaper"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    if request.param and not means.has("subreaper"):
        pytest.skip("no subreaper here")
    found = Guarded(tmp_path, request.param)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


def left_out(text: bytes) -> tuple[bytes, int, bytes]:
    """Head, the number of bytes that the line in the middle tells, tail."""
    parts = re.split(rb"\n\.\.\. (\d+) bytes were left out here \.\.\.\n", text)
    assert len(parts) == 3, parts[0][-200:]
    return parts[0], int(parts[1]), parts[2]


# -- output --------------------------------------------------------------------------------------------------------


def test_short_output_is_kept_byte_for_byte_with_no_line_of_ours(guarded):
    assert guarded.run("say(bytes(range(256)) * 8); say(b'to err, no newline', 2)") == 0
    assert guarded.out.read_bytes() == bytes(range(256)) * 8
    assert guarded.err.read_bytes() == b"to err, no newline"


@pytest.mark.parametrize("lines", [2_000, 5_000, 200_000])
def test_of_long_output_head_and_tail_are_kept_and_the_rest_is_counted_exactly(guarded, lines):
    """Who reads a log of a crash needs how it began and how it ended; and must see that something is missing."""
    said = b"".join(b"%07d\n" % number for number in range(lines))
    guarded.run(f"say(b''.join(b'%07d\\n' % n for n in range({lines})))")
    head, missing, tail = left_out(guarded.out.read_bytes())
    assert said.startswith(head)
    assert said.endswith(tail)
    assert len(head) == LIMIT // 2
    assert len(tail) >= LIMIT // 2
    assert len(head) + missing + len(tail) == len(said)
    assert len(head) + len(tail) <= LIMIT


def test_the_last_words_before_a_crash_are_in_the_log(guarded):
    guarded.run("say(b'x' * 300_000); say(b'the reason', 2); say(b'the end'); os.kill(os.getpid(), 9)")
    assert guarded.out.read_bytes().endswith(b"the end")
    assert guarded.err.read_bytes() == b"the reason"


def test_writes_of_several_processes_are_interleaved_whole(guarded):
    code = """
for name in b'abcd':
    if os.fork() == 0:
        for _ in range(500): os.write(1, bytes([name]) * 60 + b'\\n')
        os._exit(0)
for _ in range(4): os.wait()
"""
    guarded.run(code, limit=1 << 20)
    lines = guarded.out.read_bytes().splitlines()
    assert len(lines) == 2000
    assert {len(line) for line in lines} == {60}
    assert all(len(set(line)) == 1 for line in lines)


# fault 64
def test_a_hundred_megabytes_cost_seconds_and_two_megabytes_of_disk(guarded):
    limit = 2 * 1024 * 1024
    begun = time.monotonic()
    assert guarded.run("for _ in range(100): say(b'x' * 1_000_000)", limit=limit) == 0
    assert time.monotonic() - begun < LOADED
    assert guarded.out.stat().st_size <= limit + 200
    head, missing, tail = left_out(guarded.out.read_bytes())
    assert len(head) + missing + len(tail) == 100_000_000


def test_a_later_attempt_of_the_same_number_adds_to_the_log_and_keeps_it_small(guarded):
    guarded.run("say(b'a' * 50_000)")
    guarded.run("say(b'b' * 50_000)")
    text = guarded.out.read_bytes()
    assert len(text) <= LIMIT + 200
    assert text.startswith(b"a" * (LIMIT // 2))
    assert text.endswith(b"b" * (LIMIT // 2))


# -- a log that cannot be written ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1000, 7000])
def test_a_full_disk_loses_output_and_never_stops_the_worker(guarded, size):
    code = "say(b'x' * 1_000_000); say(b'y' * 1_000_000, 2); os.mkdir('worked on')"
    assert guarded.run(code, file_size=size) == 0
    assert (guarded.out.parent / "worked on").is_dir()
    assert guarded.out.stat().st_size <= size


def test_a_log_that_is_no_file_loses_output_and_never_stops_the_worker(guarded):
    guarded.out.mkdir()
    guarded.err.symlink_to(elsewhere := guarded.err.parent / "elsewhere")
    assert guarded.run("say(b'x' * 1_000_000); say(b'y' * 1_000_000, 2)") == 0
    assert not elsewhere.exists()


def test_a_fifo_in_the_place_of_a_log_does_not_hold_up_the_worker(guarded):
    os.mkfifo(guarded.out)
    assert guarded.run("say(b'x' * 1_000_000)") == 0


# -- how it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, 113, 255])
def test_the_exit_code_passes_through(guarded, code):
    assert guarded.run(f"os._exit({code})") == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT", "SIGTERM", "SIGPIPE"])
def test_the_guard_dies_of_the_signal_that_killed_its_worker(guarded, name):
    reset = "" if name == "SIGKILL" else f"signal.signal(signal.{name}, signal.SIG_DFL)\n"
    assert guarded.run(f"{reset}os.kill(os.getpid(), signal.{name})") == -signal.Signals[name]


async def test_sigterm_is_passed_on_and_the_worker_may_end_in_its_own_way(guarded):
    code = """
def stop(*_):
    say(b'putting things away')
    os._exit(7)
signal.signal(signal.SIGTERM, stop)
open('ready', 'w').write('yes')
while True: signal.pause()
"""
    process = guarded.start(code)
    await guarded.file("ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 7
    assert guarded.out.read_bytes() == b"putting things away"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
async def test_a_worker_that_ignores_the_signal_is_killed_after_the_grace_and_no_earlier(guarded, number):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').write('yes')\nwhile True: time.sleep(9)"
    process = guarded.start(code, grace=0.3)
    await guarded.file("ready")
    begun = time.monotonic()
    process.send_signal(number)
    assert process.wait(120) == -signal.SIGKILL
    assert 0.3 <= time.monotonic() - begun < LOADED


async def test_asking_again_does_not_lengthen_the_grace(guarded):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').write('yes')\nwhile True: time.sleep(9)"
    process = guarded.start(code, grace=0.5)
    await guarded.file("ready")
    begun = time.monotonic()

    def asked_again() -> bool:
        process.send_signal(signal.SIGTERM)
        return process.poll() is not None

    await until(asked_again, "the worker is killed")
    assert time.monotonic() - begun < LOADED


# fault 62
def test_a_stuck_worker_is_killed_at_the_limit_of_its_life(guarded):
    begun = time.monotonic()
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(9)"
    assert guarded.run(code, life=0.2, grace=0.1) == -signal.SIGKILL
    assert 0.4 <= time.monotonic() - begun < LOADED  # the worker's own limit comes first, then twice the grace


# -- what is left behind -------------------------------------------------------------------------------------------


# fault 55
async def test_a_grandchild_that_holds_stdout_does_not_hold_up_the_end(guarded):
    code = "p = subprocess.Popen(['sleep', '300'], start_new_session=True); open('pid', 'w').write(str(p.pid))"
    begun = time.monotonic()
    assert guarded.run(code) == 0
    assert time.monotonic() - begun < LOADED
    assert not is_alive(int(await guarded.file("pid")))


def test_one_that_got_away_and_writes_without_end_is_not_listened_to_for_ever(tmp_path):
    """A daemon that nothing finds must not keep the lock with what it says."""
    log = guard._Log(str(tmp_path / "log"), os.open("/dev/zero", os.O_RDONLY), LIMIT)
    begun = time.monotonic()
    log.finish()
    assert time.monotonic() - begun < LOADED
    assert (tmp_path / "log").stat().st_size <= LIMIT + 200


async def test_orphans_of_orphans_are_ended_to_the_last(guarded):
    code = """
for depth in range(6):
    if os.fork():
        if depth: signal.pause()
        break
    os.setsid()
else:
    open('deepest', 'w').write(str(os.getpid()))
    signal.pause()
POLL_SECONDS = 0.005
while not (os.path.exists('deepest') and open('deepest').read()): time.sleep(POLL_SECONDS)
"""
    assert guarded.run(code) == 0
    assert not is_alive(int(await guarded.file("deepest")))


async def test_a_worker_does_not_outlive_a_guard_that_is_killed(guarded):
    process = guarded.start("open('pid', 'w').write(str(os.getpid()))\nwhile True: time.sleep(9)")
    pid = int(await guarded.file("pid"))
    process.kill()
    await until(lambda: not is_alive(pid), "the worker ends too")


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="without waitid the worker is collected when it is seen to end")
def test_the_pid_of_an_ended_worker_is_nobody_elses_while_it_may_still_be_signalled():
    """A signal that comes late, or the end of the group, would meet whatever process got the number since."""
    worker, orphan = (subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(2))
    ended = os.WEXITED | os.WNOWAIT
    for process in (worker, orphan):
        os.waitid(os.P_PID, process.pid, ended)
    wake, waker = os.pipe()
    settings = guard.Settings("", "", "", "", LIMIT, 1.0, None, None, False)
    assert guard._watch(worker.pid, [], wake, guard._Stop(worker.pid, settings)) is None
    assert os.waitid(os.P_PID, worker.pid, ended | os.WNOHANG) is not None
    assert worker.wait() == 0
    orphan.wait()
    for fd in (wake, waker):
        os.close(fd)


async def test_a_stop_that_comes_after_the_end_of_the_worker_does_not_keep_its_children_alive(guarded):
    """The guard still ends what the worker left: a signal must not end it before that."""
    code = """
for _ in range(50): subprocess.Popen(['sleep', '300'], start_new_session=True)
open('ready', 'w').write(str(subprocess.Popen(['sleep', '300'], start_new_session=True).pid))
"""
    process = guarded.start(code)
    left = int(await guarded.file("ready"))

    def asked_again() -> bool:
        process.send_signal(signal.SIGTERM)
        return process.poll() is not None

    await until(asked_again, "the guard ends")
    assert not is_alive(left)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os._exit(74)", "exit 74"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("say(b'x' * 5000); os._exit(74)", "exit 74"),
    ],
)
def test_how_a_worker_ended_is_written_down_for_whoever_is_not_its_parent_also_on_a_full_disk(guarded, code, told):
    """The file has its full length when the worker begins: here nothing may grow beyond it."""
    room = len(b"task.1 runs      \n")
    process = guarded.start(code, file_size=room)
    process.wait()
    assert guarded.end.read_text().split() == ["task.1", *told.split()]
    assert not guarded.out.exists() or guarded.out.stat().st_size <= room


def test_the_guard_imports_nothing_that_is_heavy():
    """It lives as long as the worker does: each module is memory of every task that runs."""
    code = "import sys; from orchestrator.worker import guard; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "anyio", "pydantic", "yaml", "json", "subprocess", "threading"} & set(loaded)
    assert guard.UNCLEAN not in (0, 1)
