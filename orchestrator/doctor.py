"""Whether a root, its tasks and what lies around them are in order; and mending what can be mended.

Looking touches nothing but a probe directory of its own. Mending takes each task's lock, keeps the originals of what it
makes anew, and ends only processes whose own environment or arguments name this root: the files of a task prove nothing
about them, they may be a copy. What cannot be known is never acted upon.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import containment, damage, files, holders, identity, inspection, recovery, store, strays, workspace
from orchestrator.errors import Damaged, OrchestratorError
from orchestrator.findings import Finding
from orchestrator.holders import Seen
from orchestrator.store import Clock, Look, Paths
from orchestrator.takeover import take_over


@dataclass(frozen=True, slots=True)
class Room:
    """What is looked at once for all tasks: the root, its tasks, and every process that names it."""

    root: str
    now: float
    wheres: tuple[Paths, ...]
    ours: tuple[Seen, ...]
    serving: bool

    @classmethod
    def of(cls, root: str, clock: Clock) -> Room:
        ids = store.task_ids(root)
        ours = tuple(seen for seen in holders.processes() if seen.belongs_to(root) and seen.pid != os.getpid())
        serving = bool(holders.of_lock(root, shared=True)) if os.path.isdir(root) else False
        return cls(root, clock(), tuple(Paths(os.path.join(root, task_id)) for task_id in ids), ours, serving)


def examine(root: str, clock: Clock) -> list[Finding]:
    """What there is to say of the tasks of a root and of what lies beside them. Total: one bad task hides no other."""
    room = Room.of(root, clock)
    found: list[Finding] = []
    known: set[str] = set()
    for where in room.wheres:
        try:
            found += _task(room, where, known)
        except (OSError, OrchestratorError) as error:
            found.append(_person("damaged", recovery.failed(where, error).reason, "look at its directory", where))
    return [*found, *_orphans(room, known), *_leftovers(room)]


def _person(code: str, what: str, hint: str, where: Paths) -> Finding:
    return Finding("tasks", "person", code, what, hint, where.task_id)


def _task(room: Room, where: Paths, known: set[str]) -> Iterator[Finding]:
    """One task. `known` collects the tokens of its attempts, when some process of this root has to be placed."""
    seen = store.look(where)
    known |= {attempt.token for attempt in seen.snapshot.attempts}
    left = strays_of(room, seen)
    if left:
        pids = ", ".join(str(stray.pid) for stray in left)
        ended = "has ended" if seen.snapshot.end is not None else "has no worker"
        yield Finding("tasks", "mend", "stray", f"it {ended}, and processes of it live: {pids}", _FIX, where.task_id)
    last = seen.snapshot.attempt
    if last is not None and not store.begun_here(where, last):
        what = f"it is a copy: {last.run} was begun in another directory; what is begun here is its own"
        yield Finding("tasks", "note", "copied", what, "both would do the same work: keep one of them", where.task_id)
    yield from _standing(room, where, seen)


_FIX = "orchestrator doctor --fix"


def _standing(room: Room, where: Paths, seen: Look) -> Iterator[Finding]:
    if seen.snapshot.end is None and seen.alive is not False:
        yield from _not_to_be_asked(where, seen)
        if seen.damage:
            what = f"{'; '.join(seen.damage)}: its worker writes it again at its next step"
            yield Finding("tasks", "note", "damaged", what, "", where.task_id)
        return
    said, locked = recovery.inspect(where), inspection.is_locked(where)
    recover = f"orchestrator recover {where.task_id}"
    damaged = _damaged(where, seen)
    spec = _spec_problem(where) if seen.snapshot.end is None and said.action != "waits" else None
    if damaged is not None:
        yield damaged
    elif spec is not None:
        yield _person("no-spec", f"what it is to run is not known: {spec.what}", spec.hint, where)
    elif said.action == "waits":
        yield _person("waits", f"it waits for a person: {said.reason}", "", where)
    elif said.action in ("resumed", "failed", "cancelled") and not locked:
        queued = "" if seen.snapshot.attempts else "it was never started; "
        level = "note" if room.serving else "person"
        hint = "somebody serves this root and goes on with it" if room.serving else recover
        what = f"nobody works on it; {queued}next: {said.reason}"
        yield Finding("tasks", level, "interrupted", what, hint, where.task_id)
    elif locked and seen.snapshot.unclosed is not None:
        yield from _held(where, seen)
    yield from _cannot_run(where, seen)
    unread = damage.unread_requests(where) if seen.snapshot.end is None else 0
    if unread:
        what = f"{unread} line{'' if unread == 1 else 's'} of its requests cannot be read: an order in them is lost"
        yield Finding("tasks", "note", "requests", what, "give an order again that had no effect", where.task_id)


def _not_to_be_asked(where: Paths, seen: Look) -> Iterator[Finding]:
    """Nobody here can tell whether its worker lives, or the worker is stopped: it would stay so for ever."""
    if seen.elsewhere is not None and inspection.is_locked(where) is False:
        what = f"its worker is on {seen.elsewhere}, which cannot be asked from here, and nobody holds its lock"
        yield _person(
            "elsewhere", what, f"if that machine is gone: {recovery.presume_dead_command(where.task_id)}", where
        )
    for who in inspection.stopped(seen):
        cancel = f"or end it: orchestrator cancel {where.task_id}"
        yield _person("stopped", f"its process {who.pid} is stopped", f"kill -CONT {who.pid}   {cancel}", where)


def _held(where: Paths, seen: Look) -> Iterator[Finding]:
    """The worker is dead, and a process that has not its mark has its lock: it is not ours to end."""
    around = holders.processes()
    attendants = {who.pid for who in inspection.attending(where, around)}
    for holder in inspection.holding(where, seen.snapshot, around):
        if holder.role == "other" and holder.pid not in attendants:
            what = f"its worker is dead, and process {holder.pid} has its lock: {holder.command}"
            yield _person("held", what, f"if that is no coordinator, end it: kill {holder.pid}", where)


def _damaged(where: Paths, seen: Look) -> Finding | None:
    """All that is damaged of a task, as one finding with its way out; None when nothing is, but what it is to run."""
    wrongs = damage.wrongs(where, seen.snapshot)
    said = [*seen.damage, *(["its journal is lost"] if seen.lost and not seen.damage else [])]
    what = "; ".join([*said, *(wrong.what for wrong in wrongs)])
    if not what:
        return None
    try:
        store.check_readable(where)
    except OrchestratorError as error:
        return _person("damaged", error.what, error.hint, where)
    spec = _spec_problem(where) if seen.snapshot.end is None else None
    hints = [wrong.hint for wrong in wrongs if wrong.hint]
    if spec is not None and said:
        return _person("damaged", f"{what}; and {spec.what}", spec.hint, where)
    if hints and not said and all(wrong.hint for wrong in wrongs):
        return _person("damaged", what, hints[0], where)
    return Finding("tasks", "mend", "damaged", what, f"{_FIX}: it is made again from what is left", where.task_id)


def _spec_problem(where: Paths) -> Damaged | None:
    """Why it is not known what a task is to run, and what to do; None when it is, or can be looked up again."""
    if files.is_closed(where.spec):
        return None
    try:
        store.read_spec(where)
    except Damaged as error:
        return error
    except OSError as error:
        return Damaged(f"{where.spec}: {error.strerror or error}", "mend the disk, or put the file back")
    return None


def _cannot_run(where: Paths, seen: Look) -> Iterator[Finding]:
    """A task that no worker can ever run (fault 82)."""
    if seen.snapshot.end is not None or seen.damage:
        return
    spec, _ = inspection.spec_of(where)
    place = spec.worker.rpartition(":")[0] if spec is not None else ""
    if spec is not None and spec.kind == "python" and place.endswith(".py") and not os.path.isfile(place):
        yield _person("no-worker", f"its worker's file is gone: {place}", "put it back, or cancel the task", where)


def strays_of(room: Room, seen: Look) -> list[Seen]:
    """Processes that carry the mark of this task's attempts, though the attempt has ended or its worker is dead.

    Only such as name this root themselves; none while the worker lives, or when that cannot be known.
    """
    marks = {attempt.token for attempt in strays.over(seen.where, seen.snapshot, room.now) if attempt.token}
    return [process for process in room.ours if process.token in marks]


def _orphans(room: Room, known: set[str]) -> Iterator[Finding]:
    """Workers of this root whose task is gone."""
    for process in orphans(room, known):
        what = f"process {process.pid} works for {process.task_of(room.root)}, which is gone: {process.command}"
        yield Finding("leftovers", "mend", "orphan", what, _FIX)


def orphans(room: Room, known: set[str]) -> list[Seen]:
    """Marked processes whose own arguments name a task of this root that is not there, and of no mark we know."""
    there = {where.task_id for where in room.wheres}
    marked = (process for process in room.ours if process.token and process.token not in known)
    return [process for process in marked if (process.task_of(room.root) or "") not in {"", *there}]


def _leftovers(room: Room) -> Iterator[Finding]:
    for path in workspace.leftovers(room.root):
        if inspection.is_locked(Paths(path)) is False:
            yield Finding("leftovers", "mend", "staging", f"{path} was left by a crash", _FIX)
    for path in workspace.links(room.root):
        what = f"{path} is a link: what it leads to is no task of this root, and is left alone"
        yield Finding("leftovers", "person", "link", what, f"put the directory itself there, or: rm '{path}'")
    for where in room.wheres:
        for path in temporaries(where):
            if inspection.is_locked(where) is False:
                yield Finding("leftovers", "mend", "temporary", f"{path} was left by a crash", _FIX, where.task_id)
    for cgroup in containment.empty_ones(room.now):
        yield Finding("leftovers", "note", "cgroup", f"{cgroup} is empty; it costs nothing", f"to remove it: {_FIX}")


def temporaries(where: Paths) -> list[str]:
    found = []
    for directory in (where.directory, where.inner, where.logs, where.results):
        with contextlib.suppress(OSError):
            found += [f"{directory}/{name}" for name in os.listdir(directory) if name.startswith(files.TEMPORARY)]
    return found


# -- mending ---------------------------------------------------------------------------------------------------------


def mend(root: str, clock: Clock) -> Iterator[str]:
    """Mend what can be mended, and say each thing that was done, in a line. What goes wrong is said as well."""
    room = Room.of(root, clock)
    known: set[str] = set()
    for where in room.wheres:
        try:
            yield from _mend_task(room, where, clock, known)
        except (OSError, OrchestratorError) as error:
            yield f"{where.task_id}: not mended: {recovery.failed(where, error).reason}"
    for process in orphans(room, known):
        yield _end(process)
    before = workspace.leftovers(root)
    workspace.sweep_staging(root)
    yield from (f"removed {path}" for path in before if not os.path.lexists(path))
    for cgroup in containment.empty_ones(room.now):
        if containment.remove_empty(cgroup):
            yield f"removed the empty cgroup {cgroup}"


def _mend_task(room: Room, where: Paths, clock: Clock, known: set[str]) -> Iterator[str]:
    seen = store.look(where)
    known |= {attempt.token for attempt in seen.snapshot.attempts}
    for process in strays_of(room, seen):
        yield f"{where.task_id}: {_end(process)}"
    if not _can_be_mended(where, seen):
        return
    lock = files.lock_directory(where.directory)
    if lock is None:
        yield f"{where.task_id}: left alone: somebody holds it"
        return
    try:
        if recovery.inspect(where, locked=True).action != "alive":
            yield from _put_in_order(where, clock, temporaries(where))
    finally:
        os.close(lock)


def _can_be_mended(where: Paths, seen: Look) -> bool:
    if seen.snapshot.end is None and seen.alive is not False:
        return False
    found = _damaged(where, seen)
    return (found is not None and found.level == "mend") or (found is None and bool(temporaries(where)))


def _put_in_order(where: Paths, clock: Clock, left: list[str]) -> Iterator[str]:
    """With the lock held and no worker alive: made again from what is left; the originals stay beside it."""
    task = take_over(where, clock, thorough=True)
    try:
        task.show_all()
        yield from (f"{where.task_id}: {notice}" for notice in task.notices)
        yield from (f"{where.task_id}: removed {path}" for path in left if not os.path.lexists(path))
    finally:
        task.close()


def _end(process: Seen) -> str:
    """End a process that is still the very one that was seen."""
    if identity.alive(process.who) is not True:
        return f"process {process.pid} was gone already"
    containment.send(process.pid, signal.SIGKILL)
    return f"ended process {process.pid}: {process.command}"
