"""What becomes of a task whose worker is gone: told without a lock, claimed with it, buried and concluded."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import containment, files, holders, store, strays
from orchestrator.core import lifecycle
from orchestrator.core.lifecycle import FACE, Ended, Finish, Wait
from orchestrator.core.model import Announcement, Containment, Outcome, StepError, StepStatus, WorkerExit
from orchestrator.core.snapshot import AttemptState, Snapshot
from orchestrator.errors import Damaged, OrchestratorError, SyncFailed
from orchestrator.store import Look, Paths
from orchestrator.strays import AtLarge

if TYPE_CHECKING:
    from orchestrator.writer import TaskWriter

#: How long the end of what a dead worker left is waited for, when that keeps the task's lock.
STRAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` does, or would do, with one task.

    action: `alive` (left alone), `resumed` (or begun: its first attempt), `ended`, `waits` (for a decision; the reason
    names the verb), `failed` (its budget is spent: the end is recorded), `cancelled`, `damaged` (the reason says what
    is wrong and what is done).
    """

    id: str
    action: str
    step: str | None
    reason: str
    news: bool = False  #: a person's orders or edits are to be taken over; what is told comes after them


def inspect(where: Paths, *, locked: bool = False, presume_dead: bool = False) -> Recovery:
    """Tell what `recover` would do. Takes no lock, writes nothing; total. `locked`: the caller has the task's lock.

    `presume_dead`: a person says that a worker on another machine is gone.
    """
    end = store.ended_by_tail(where)
    if end is not None and not _may_be_reopened(where):
        return Recovery(where.task_id, "ended", None, str(end["outcome"]))
    return _judge(where, store.look(where, with_face=False), locked, presume_dead)


def _may_be_reopened(where: Paths) -> bool:
    """Whether a task that has ended has to be looked at closely: orders were given, or task.md has a tag of one."""
    if files.size(where.requests):
        return True
    try:
        data = files.read(where.task_md, files.TEXT_BYTES).lower()
    except (OSError, Damaged):
        return True  # it is made again
    return b"redo" in data or b"skipped" in data or b"\0" in data or not data.strip()


def failed(where: Paths, error: OSError | OrchestratorError) -> Recovery:
    """What is said of a task that an error keeps from going on."""
    what = error.what if isinstance(error, OrchestratorError) else f"{error.strerror or error}"
    return Recovery(where.task_id, "damaged", None, what)


def claim(where: Paths, at_large: AtLarge | None = None, presume_dead: bool = False) -> tuple[Recovery, int | None]:
    """Tell what is to be done, and take the task's lock when there is something to do.

    Of a task that nobody goes on with, what a killed guard left alive is ended; `at_large` is where that is looked for,
    when the caller looks at many tasks.

    The lock is None for a task that is alive elsewhere, or that has ended, or waits for a person, and has nothing to
    be taken over: no order, no edit of its task.md. What a dead worker left and keeps the lock with is ended. With
    `presume_dead`, a worker on a machine that cannot be asked is taken for dead, if the lock is free.
    """
    said = inspect(where, presume_dead=presume_dead)
    swept = said.news or not _left_in(where)
    rests = said.action == "waits" or (said.action == "ended" and _face_is_right(where, said))
    if rests and not said.news and swept:
        strays.end(where, at_large or AtLarge.of(os.path.dirname(where.directory)), time.time())
        return said, None
    problem = _problem(where) if said.action in ("damaged", "resumed") else None
    if problem is not None:
        return (said if said.action == "damaged" else Recovery(where.task_id, "damaged", said.step, problem)), None
    if not os.access(where.directory, os.W_OK):  # not even for root on a read-only file system
        return Recovery(where.task_id, "damaged", said.step, f"{where.directory} cannot be written"), None
    lock = files.lock_patiently(where.directory, 0.0 if said.action == "alive" else 1.0)
    if lock is None and said.action == "alive":
        return said, None
    if lock is None:
        lock = _lock_of_the_dead(where)
    if lock is None:
        return _held(where), None
    if presume_dead:
        _declare_dead(where)
    again = inspect(where, locked=True)  # what was true before the lock need not be now
    if again.action == "alive" or (again.action == "waits" and not again.news and swept):
        os.close(lock)
        return again, None
    return again, lock


def _lock_of_the_dead(where: Paths) -> int | None:
    """End what a dead worker left, for it keeps the lock; the lock then, or None when somebody has it all the same."""
    last = store.look(where, with_face=False).snapshot.attempt
    if last is None or not store.begun_here(where, last) or not strays.both_dead(last):
        return None
    containment.end(Containment(last.token, last.cgroup), STRAY_SECONDS)
    return files.lock_patiently(where.directory)


def _held(where: Paths) -> Recovery:
    """What is said of a task whose lock cannot be had."""
    again = inspect(where)
    if again.action in ("alive", "ended", "waits"):  # meanwhile somebody has seen to it
        return again
    last = store.look(where, with_face=False).snapshot.attempt
    left = list(containment.marked(last.token)) if last is not None and last.token and strays.both_dead(last) else []
    if left:
        what = f"its worker is dead, and what it left cannot be ended: process {', '.join(map(str, left))}"
        return Recovery(where.task_id, "damaged", again.step, f"{what}; no other is started beside it")
    return Recovery(where.task_id, "alive", again.step, f"{held_by(where)} at this moment")


def held_by(where: Paths) -> str:
    """Who has the task's lock, in words."""
    seen = holders.named(where.directory)
    return "; ".join(f"process {who.pid} holds it: {who.command}" for who in seen) or "somebody holds it"


def _declare_dead(where: Paths) -> None:
    """With the lock held: a person has said that the worker on another machine is gone. Its end is recorded so."""
    from orchestrator.takeover import take_over

    if store.look(where, with_face=False).elsewhere is None:
        return
    task = take_over(where, time.time)
    try:
        task.close_attempt(Outcome.LOST, reason="its machine is gone: a person said so")
    finally:
        task.close()


def _left_in(where: Paths) -> bool:
    """Whether somebody was killed while he wrote."""
    return any(entry.name.startswith(files.TEMPORARY) for entry in files.entries(where.directory))


def _face_is_right(where: Paths, ended: Recovery) -> bool:
    from orchestrator.core.checklist import Checklist  # not for a dry run over thousands

    try:
        face = Checklist.parse(files.read(where.task_md, files.TEXT_BYTES))
    except (OSError, Damaged):
        return False
    end = store.ended_by_tail(where) or {}
    if (end.get("announcement") or {}).get("result") and not store.result_may_be_whole(where, end):
        return False
    return face.status is FACE[ended.reason]


def _problem(where: Paths) -> str | None:
    """Why no worker can be started: what was done, or what it is to run, is not known."""
    try:
        store.check_readable(where)
        if not files.is_closed(where.spec):  # whoever takes the task over opens it
            store.read_spec(where)
    except (OrchestratorError, OSError) as error:
        hint = f"; {error.hint}" if isinstance(error, OrchestratorError) and error.hint else ""
        return f"{failed(where, error).reason}: it cannot go on{hint}"
    return None


def _judge(where: Paths, seen: Look, locked: bool, presume_dead: bool) -> Recovery:
    snapshot = seen.snapshot
    if snapshot.end is None and seen.alive is not False and not _is_gone(seen, locked, presume_dead):
        return _alive(seen, locked)
    unburied = snapshot.end is not None and not snapshot.end_closed  # it died before all of its end was written
    snapshot.presume_dead()
    news = _foresee(seen) or unburied
    action = lifecycle.next_action(snapshot, cancel=seen.cancel_request())
    news = news or (isinstance(action, Wait) and _is_untold(snapshot, action))
    said = _by_action(where, seen, action)
    if seen.lost:
        said, news = _without_journal(where, said, locked), True  # whoever takes the lock makes it again
    if not seen.damage:
        return dataclasses.replace(said, news=news)
    done = _problem(where) or f"mended, then {said.reason}"
    return Recovery(where.task_id, "damaged", said.step, f"{'; '.join(seen.damage)}: {done}", news)


def _is_untold(snapshot: Snapshot, action: Wait) -> bool:
    """Whether it has not been announced that a person has to decide this; of something else perhaps."""
    return (snapshot.attention or {}).get("status") != action.outcome


def _without_journal(where: Paths, said: Recovery, locked: bool) -> Recovery:
    """What is told of a task by its face alone. A worker that lives writes the journal again at its next step."""
    if said.action == "ended":
        return said
    if not locked and not store.lock_is_free(where):
        return Recovery(where.task_id, "alive", said.step, "somebody works on it, and its journal is lost: left alone")
    problem = _problem(where) if said.action == "resumed" else None
    if problem is not None:
        return Recovery(where.task_id, "damaged", said.step, problem)
    return dataclasses.replace(said, reason=f"{said.reason}; its journal is lost: told by its checklist")


def _foresee(seen: Look) -> bool:
    """Fold in what the next holder takes over. Whether there is anything."""
    from orchestrator import orders  # not for a dry run over thousands that have ended

    return orders.foresee(seen.where, seen.snapshot)


def _is_gone(seen: Look, locked: bool, presume_dead: bool) -> bool:
    """Whether a worker that cannot be asked is gone.

    In another pid namespace of this very kernel: when we have the lock. On another machine: when a person says so.
    """
    return seen.alive is None and (presume_dead if seen.elsewhere is not None else locked)


def _alive(seen: Look, locked: bool) -> Recovery:
    attempt = seen.snapshot.attempt
    assert attempt is not None
    assert attempt.identity is not None
    where = f"worker {attempt.identity.pid} (attempt {attempt.number})"
    more = ""
    if seen.alive is None:
        where += f" on {attempt.identity.host}, which cannot be asked from here"
    if seen.elsewhere is not None and (locked or store.lock_is_free(seen.where)):
        more = f"; its lock is free here: if that machine is gone: {presume_dead_command(seen.task_id)}"
    step = seen.snapshot.resume_point()
    return Recovery(seen.task_id, "alive", step.label if step else None, f"{where}: left alone{more}")


def presume_dead_command(task_id: str) -> str:
    return lifecycle.command_line("recover TASK --presume-dead", task_id)


def _by_action(where: Paths, seen: Look, action: Ended | lifecycle.Start | Finish | Wait) -> Recovery:
    match action:
        case Ended(outcome):
            return Recovery(where.task_id, "ended", None, outcome)
        case lifecycle.Start(step, fresh):
            reason = "started" if fresh else f"resumed at step {step!r}" if step else "resumed: only its end is missing"
            return Recovery(where.task_id, "resumed", step, reason)
        case Wait(_, step, reason, verb):
            return Recovery(where.task_id, "waits", step, f"{reason}: {lifecycle.command_line(verb, where.task_id)}")
        case Finish(outcome, reason, step):
            action_name = "cancelled" if outcome is Outcome.CANCELLED else "failed"
            return Recovery(where.task_id, action_name, step, reason)


# -- with the lock held --------------------------------------------------------------------------------------------


def bury(task: TaskWriter, last: AttemptState | None, seen: WorkerExit | None) -> None:
    """Close the attempt of a worker that is confirmed dead. `seen` is how it ended, when somebody saw it."""
    if last is None or task.snapshot.unclosed is None:
        return
    exit_ = how_it_ended(task.where, last, seen)
    outcome = lifecycle.outcome_of(task.snapshot, exit_)
    if task.snapshot.end is not None:  # it died between the end and `closed`: what comes before that is ours to write
        task.show_end()
        task.write_retro()
    fields: dict[str, Any] = {"exit": exit_.code, "signal": exit_.signal}
    if exit_ is not seen:
        fields["last_sign"] = _last_sign(task, last)
    if _by_the_disk(last, exit_):
        fields["death"] = False
    task.close_attempt(outcome, **{k: v for k, v in fields.items() if v is not None})


def how_it_ended(where: Paths, last: AttemptState, seen: WorkerExit | None) -> WorkerExit:
    """How the worker of an attempt ended: as its parent saw it, else as its guard wrote it down, else not known."""
    if seen is not None and seen.run == last.run and (seen.code, seen.signal) != (None, None):
        return seen
    try:
        run, how, number = files.read(where.log(last.number, "end"), 4096).decode("ascii").split()
    except (OSError, Damaged, ValueError):  # it runs, or its guard was killed, or could not write
        return WorkerExit(last.run, None)
    known = run == last.run and number.isdecimal()
    code, signal = (int(number) if known and how == kind else None for kind in ("exit", "signal"))
    return WorkerExit(last.run, code, signal)


def _by_the_disk(last: AttemptState | None, seen: WorkerExit | None) -> bool:
    return last is not None and seen is not None and seen.run == last.run and seen.code == SyncFailed.exit_code


def check_disk(task: TaskWriter, last: AttemptState | None, seen: WorkerExit | None) -> None:
    """Start no worker on a disk that just took nothing from the last one: it would spend the budget and do no good.

    Raises SyncFailed; the task stays as it is, and the next `recover` goes on with it.
    """
    if _by_the_disk(last, seen):
        words = last_words(task.where, task.snapshot.attempt_number)
        raise SyncFailed(
            f"{task.where.task_id}: {words or 'the disk does not take what its worker writes'}",
            f"free some space, or mend the disk; then: orchestrator recover {task.where.task_id}",
        )


def _last_sign(task: TaskWriter, last: AttemptState) -> str | None:
    """When a worker whose end nobody saw last wrote to its logs, or to the file of a step it was in; or its guard."""
    cut_off = [state for state in task.snapshot.steps.values() if state.open_run == last.run]
    paths = [*(task.where.log(last.number, kind) for kind in ("out", "err", "end")), *map(task.steps.path, cut_off)]
    times = [os.path.getmtime(path) for path in paths if os.path.exists(path)]
    return store.timestamp(max(times)) if times else None


def conclude(task: TaskWriter, action: Ended | Finish | Wait) -> Announcement:
    """Record the end without another attempt, or restore the face of one that is recorded; say what was announced."""
    match action:
        case Ended():
            task.show_end()
            assert task.snapshot.end is not None
            return store.announcement_from_json(task.snapshot.end["announcement"])
        case Wait(outcome, _, reason, verb):
            if _is_untold(task.snapshot, action):
                task.wait_for_person(
                    task.announcement(outcome, reason, hint=lifecycle.command_line(verb, task.where.task_id))
                )
            return store.announcement_from_json(task.snapshot.attention or {})
        case Finish(outcome, reason, step, error, request):
            return _finish(task, outcome, reason, step, error, request)


def _finish(
    task: TaskWriter, outcome: Outcome, reason: str, step: str | None, error: StepError | None, request: str | None
) -> Announcement:
    if outcome is not Outcome.CANCELLED and step is not None:
        failed = error or StepError("runtime", str(outcome), reason)
        task.commit(step, StepStatus.FAILED, error=failed)
    words = last_words(task.where, task.snapshot.attempt_number)
    if words and outcome is not Outcome.CANCELLED:
        reason = f"{reason}; its last words: {words}"
    why_and_on = "see why: orchestrator logs {0}   then, to try again: orchestrator retry {0}"
    hint = "" if outcome is Outcome.CANCELLED else why_and_on.format(task.where.task_id)
    said = task.announcement(outcome, reason, hint=hint)
    task.end(said, **({"request": request} if request else {}))
    return said


def last_words(where: Paths, attempt: int) -> str:
    """The last line of a worker's stderr that is not blank; empty when there is none."""
    try:
        data, _ = files.read_tail(where.log(attempt, "err"), 4096)
    except OSError:
        return ""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
