"""Gathering what is known of one task, for `explain`: its files, its lock, its processes. Touches nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

from orchestrator import files, holders, identity, orders, store
from orchestrator.core import handedit
from orchestrator.core.evidence import Facts, Process, numbered
from orchestrator.core.model import Identity, Limits, TaskSpec
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.errors import Damaged
from orchestrator.holders import Seen
from orchestrator.store import Clock, Look, Paths


def facts_of(where: Paths, clock: Clock) -> Facts:
    """Everything that explains the state of a task, as of this moment. Takes no lock for longer than a look."""
    seen = store.look(where)
    spec, problem = spec_of(where)
    locked = is_locked(where)
    around = holders.processes() if locked or seen.snapshot.end is None else []
    return Facts(
        where.task_id,
        seen.state,
        seen.snapshot,
        _after(where, seen),
        numbered(seen.reading) if seen.reading else (),
        store.timestamp(clock()),
        seen.alive,
        locked,
        holding(where, seen.snapshot, around) if locked else (),
        attending(where, around),
        tuple(orders.due(where, seen.snapshot)),
        tuple(pending_edits(seen)),
        tuple(seen.damage),
        problem,
        spec.limits if spec else Limits(),
        {step.name: step.retries for step in spec.steps} if spec else {},
        tuple(who.pid for who in stopped(seen)),
        seen.elsewhere is not None,
        seen.snapshot.attempt is not None and not store.begun_here(where, seen.snapshot.attempt),
    )


def stopped(seen: Look) -> Iterator[Identity]:
    """The worker and the guard of a living attempt, as far as a signal has stopped them."""
    attempt = seen.snapshot.unclosed
    if seen.alive and attempt is not None:
        both = dict.fromkeys(who for who in (attempt.identity, attempt.guard) if who is not None)
        yield from (who for who in both if identity.is_stopped(who))


def _after(where: Paths, seen: Look) -> Snapshot:
    """The snapshot that the next holder of the lock will have, when the last worker is dead."""
    after = fold(seen.reading.entries if seen.reading else ())
    after.presume_dead()
    orders.foresee(where, after)
    return after


def spec_of(where: Paths) -> tuple[TaskSpec | None, str]:
    """What the task runs, or why that is not known."""
    try:
        return store.read_spec(where), ""
    except (Damaged, OSError) as error:
        return None, error.what if isinstance(error, Damaged) else str(error.strerror or error)


def is_locked(where: Paths) -> bool | None:
    """Whether somebody holds the task's lock; None where that cannot be asked."""
    try:
        lock = files.lock_directory(where.directory)
    except OSError:
        return None
    if lock is None:
        return True
    os.close(lock)
    return False


def holding(where: Paths, snapshot: Snapshot, around: list[Seen]) -> tuple[Process, ...]:
    """Who has the task's lock, and which part each plays; empty where that cannot be seen."""
    pids = set(holders.of_lock(where.directory) or ()) - {os.getpid()}
    return tuple(Process(seen.pid, role(where, snapshot, seen), seen.command) for seen in around if seen.pid in pids)


def role(where: Paths, snapshot: Snapshot, seen: Seen) -> str:
    """The part that a process plays in a task: worker, guard, supervisor, stray (it has its mark), or other."""
    attempt = snapshot.attempt
    if attempt is not None and not store.begun_here(where, attempt):
        attempt = None
    if attempt is not None and seen.who == attempt.identity:
        return "worker"
    if attempt is not None and seen.who == attempt.guard:
        return "guard"
    if holders.supervises(seen, where.directory):
        return "supervisor"
    marked = seen.token and any(seen.token == known.token for known in snapshot.attempts)
    return _of_the_family(snapshot) if marked else "other"


def _of_the_family(snapshot: Snapshot) -> str:
    """A process with the mark of the task is a child while its worker lives, and a stray when that is dead."""
    attempt = snapshot.unclosed
    known = attempt.identity if attempt is not None else None
    return "stray" if known is None or identity.alive(known) is False else "child"


def attending(where: Paths, around: list[Seen]) -> tuple[Process, ...]:
    """Who looks after the task: its detached supervisor, and every `serve` of its root."""
    serving = set(holders.of_lock(os.path.dirname(where.directory), shared=True) or ()) if around else set()
    found = [Process(s.pid, "supervisor", s.command) for s in around if holders.supervises(s, where.directory)]
    return tuple(found + [Process(s.pid, "serve", s.command) for s in around if s.pid in serving])


def pending_edits(seen: Look) -> list[str]:
    """What a person changed in task.md and nobody has taken over yet, in words."""
    if seen.face is None or seen.face.damaged:
        return []
    return [_edit(edit) for edit in handedit.edits(seen.snapshot, seen.face)]


def _edit(edit: handedit.Edit) -> str:
    match edit:
        case handedit.NewStep(_, label, _):
            return f"new step {label!r}"
        case handedit.DoneByHand(label):
            return f"step {label!r} was marked done"
        case handedit.SkippedByHand(label):
            return f"step {label!r} was marked skipped"
        case handedit.RedoByHand(label):
            return f"step {label!r} was marked to be done anew"
        case handedit.NewOrder(_):
            return "the steps have another order"
