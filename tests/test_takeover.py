"""How a holder of the lock begins, and who may not: what was left is put in order, by one alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import kit
import pytest
from conftest import Ledger
from desk import Desk

from orchestrator import Coordinator, files, identity, recovery, store
from orchestrator.core.model import Outcome, StepId, StepStatus
from orchestrator.errors import Damaged
from orchestrator.store import look
from orchestrator.takeover import continue_attempt, take_over

# -- the journal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b'{"run":"task', b"\0" * 100, b"\0" * 100 + b"\n", b"half a line\n"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_torn_or_holed_tail_is_cut_off_before_anything_is_added(desk: Desk, tail: bytes, closed: bool) -> None:
    """Else the next line would be swallowed by it, and a commit with it."""
    if closed:
        desk.task.close_attempt(Outcome.PAUSED)
    with open(desk.where.journal, "ab") as file:
        file.write(tail)
    desk.next_holder()
    desk.task.commit("b", StepStatus.DONE, result=1)
    reading = store.read_journal(desk.where)
    assert (reading.torn, reading.damaged) == (0, ())
    assert look(desk.where).snapshot.steps["b"].status is StepStatus.DONE


def test_a_journal_cut_off_anywhere_loses_nothing_that_the_step_files_prove_and_no_run_id_comes_twice(
    root: Path,
) -> None:
    """Also when whole attempts are gone: what they did is not done again, and their names are not used again."""
    for kept in range(1, 100):
        desk = Desk(root)
        for step in ("c", "b"):
            desk.task.begin_attempt(token="t")
            desk.run(step)
        path = Path(desk.where.journal)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:kept]))
        before = {entry["run"] for entry in desk.task.entries()}
        task = desk.next_holder()
        for snapshot in (task.snapshot, look(desk.where).snapshot):
            done = {label: (step.status.value, step.result, step.by_hand) for label, step in snapshot.steps.items()}
            assert done == {label: ("done", label, False) for label in "abc"}, f"{kept} of {len(lines)} lines"
            assert snapshot.ignored == 0
        task.begin_attempt(token="t")
        assert look(desk.where).snapshot.attempt_number == 4
        assert task.run not in before
        task.plan([StepId("d")])
        desk.run("d")
        assert look(desk.where).snapshot.steps["d"].result == "d"
        desk.close()
        if kept == len(lines):
            return


def test_what_lay_in_the_middle_of_a_damaged_journal_is_kept_beside_it(desk: Desk) -> None:
    path = Path(desk.where.journal)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"x" * 20 + b"\n", lines[-1]]))
    damaged = path.read_bytes()
    task = desk.next_holder()
    assert any("line" in notice and "damaged" in notice for notice in task.notices)
    assert [p.read_bytes() for p in path.parent.glob("journal.jsonl.damaged-*")] == [damaged]
    assert path.read_bytes().startswith(b"".join(lines))


def test_a_task_of_which_nothing_can_be_read_is_not_begun_anew(desk: Desk) -> None:
    """It may have done all of its work."""
    desk.task.close()
    for path in Path(desk.where.directory).glob("*.md"):
        path.write_bytes(b"\0" * 100)
    Path(desk.where.journal).write_bytes(b"\0" * 100)
    with pytest.raises(Damaged, match=r"neither task.md nor the journal"):
        take_over(desk.where, time.time)
    assert Path(desk.where.journal).read_bytes() == b"\0" * 100


# -- the fence -------------------------------------------------------------------------------------------------------


def test_only_one_worker_can_begin_an_attempt_and_only_the_newest(desk: Desk) -> None:
    old = desk.task.run
    run = desk.task.begin_attempt(token="t")
    desk.task.close()
    assert continue_attempt(desk.where, time.time, old) is None
    worker = continue_attempt(desk.where, time.time, run)
    assert worker is not None
    worker.started(worker=list(identity.mine()), guard=list(identity.mine()))
    assert continue_attempt(desk.where, time.time, run) is None, "a second worker of the same run"
    worker.close_attempt(Outcome.STOPPED)
    worker.close()
    assert continue_attempt(desk.where, time.time, run) is None, "its attempt is over"


def test_no_two_attempts_have_one_run_id(desk: Desk) -> None:
    """By it messages, kills and announcements tell one worker from the next."""
    runs = [desk.task.run, *(desk.task.begin_attempt(token="t") for _ in range(3))]
    desk.next_holder()
    runs.append(desk.task.begin_attempt(token="t"))
    assert runs == [f"{desk.where.task_id}.{number}" for number in range(1, 6)]


# -- what a killed one left ------------------------------------------------------------------------------------------


def test_temporaries_of_a_killed_holder_are_gone_after_the_next_has_begun(desk: Desk) -> None:
    """Wherever he was killed: they would fill the disk, one for each kill."""
    os.makedirs(desk.where.results, exist_ok=True)
    places = [desk.where.directory, desk.where.inner, desk.where.logs, desk.where.results]
    for place in places:
        Path(place, files.TEMPORARY + "anything").write_text("half")
    desk.next_holder()
    assert [name for place in places for name in os.listdir(place) if name.startswith(files.TEMPORARY)] == []


def test_an_edit_that_is_still_being_saved_is_waited_for_by_the_next_holder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that writes in place has the file empty, then half; what it says then is no order of a person."""
    desk.task.close()
    whole = desk.text.replace("[pending] c", "[working done] c") + "a thought\n"
    path, asleep = Path(desk.where.task_md), threading.Event()
    path.write_text(whole[: whole.index("[working done] c")] + "[skipped] c\n")  # in the middle of typing

    def saved(_seconds: float) -> None:
        if not asleep.is_set():
            asleep.set()
            path.write_text(whole)

    monkeypatch.setattr(files, "time", _Clock(saved))
    desk.task = take_over(desk.where, time.time)
    assert asleep.is_set()
    assert desk.status("c") is StepStatus.DONE
    assert "a thought\n" in desk.text


class _Clock:
    """The time, but for a sleep."""

    def __init__(self, sleep: object) -> None:
        self.sleep = sleep
        self.time = time.time
        self.monotonic = time.monotonic


def test_a_finished_step_marked_skipped_stays_done(desk: Desk) -> None:
    """A commit beats any tag: its result is there, and those after it may rest on it."""
    desk.edit(lambda text: text.replace("[working done] a", "[skipped] a"))
    desk.next_holder()
    assert desk.status("a") is StepStatus.DONE
    assert "[working done] a" in desk.text


def test_the_face_of_an_end_whose_writer_died_is_put_right(desk: Desk) -> None:
    said = desk.task.announcement(Outcome.COMPLETED, "")
    desk.task.record("end", sync=True, outcome=said.status, announcement=store.announcement_to_json(said))
    last = desk.task.snapshot.attempt
    desk.next_holder()
    recovery.bury(desk.task, last, None)
    assert "## Status: end\n" in desk.text
    assert desk.text.rstrip().endswith("[end]")
    assert os.path.exists(desk.where.retro)
    ended = look(desk.where).snapshot
    assert ended.unclosed is None
    assert ended.deaths == 0


# -- the lock --------------------------------------------------------------------------------------------------------

_FORKS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from desk import Desk
from orchestrator import files
from orchestrator.worker import loop
desk = Desk(Path(sys.argv[2]))
loop._guard_forks(desk.task, desk._lock)
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(write)
    held = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if "task-" in os.readlink(f"/proc/self/fd/{name}"):
                held.append(name)
        except OSError:
            pass
    os._exit(len(held))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
desk.mark()
print(os.get_inheritable(desk._lock))
desk.close()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="what a process holds is read from /proc")
def test_a_process_that_the_skill_forks_holds_neither_lock_nor_journal(root: Path) -> None:
    """It may outlive the worker: the task would be held by nobody who works on it, or written to by two."""
    words = [sys.executable, "-W", "ignore", "-c", _FORKS, str(Path(__file__).parent), str(root)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["0", "False"], said


async def test_a_cancel_waits_for_whoever_holds_the_task(desk: Desk) -> None:
    """Two who write one journal at once spoil it."""
    desk.task.close_attempt(Outcome.STOPPED)
    before = Path(desk.where.journal).read_bytes()
    async with Coordinator(os.path.dirname(desk.where.directory)) as coordinator, anyio.create_task_group() as group:
        group.start_soon(coordinator.cancel, desk.where.task_id)
        await kit.until(lambda: store.read_requests(desk.where), "the cancel is asked for")
        with pytest.raises(TimeoutError):  # longer than it asks for the lock before it looks again
            await kit.until(lambda: Path(desk.where.journal).read_bytes() != before, "somebody wrote", timeout=1.5)
        os.close(desk._lock)
    desk._lock = os.open(os.devnull, os.O_RDONLY)
    assert look(desk.where).state == "cancelled"


async def test_a_thing_to_be_done_once_that_raised_is_not_done_again_unasked(root: Path, ledger: Ledger) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("raises_once", ledger))
        said = await handle.wait(120)
        await kit.let_go(handle.where)
    assert said.status == "uncertain"
    assert kit.tries(ledger, "send") == [1]
