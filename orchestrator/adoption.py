"""Taking over a workspace that another tool of the protocol made, or one of ours that lost what it is to run.

A directory of the root that has a task's id is adopted where it lies; any other is copied, whole or not at all, and
left as it is. Every file and every note is kept; only the `TaskID` line of task.md is set right.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator import copying, files, rebuilding, remains, store, workspace
from orchestrator.core import canonical, lifecycle, names, rebuild, submit
from orchestrator.core.checklist import Checklist
from orchestrator.core.lifecycle import Ended, Start, Wait
from orchestrator.core.model import Outcome, TaskSpec
from orchestrator.core.rebuild import Remains
from orchestrator.core.spec import to_yaml
from orchestrator.errors import Damaged, Held, OrchestratorError, Refused, TaskNotFound, UsageError
from orchestrator.store import Clock, Paths
from orchestrator.takeover import take_over


@dataclass(slots=True)
class Adopted:
    """A task that was adopted. `lock` is its lock when a worker is to be started: hand it to a supervisor.

    action: `resumed` (a worker may start at `step`), `ended`, `waits` (for a person), `kept` (no worker was wanted).
    """

    where: Paths
    lock: int | None = None
    action: str = "kept"
    step: str | None = None
    reason: str = ""
    runnable: bool = False  #: whether it is known what it is to run
    notices: list[str] = field(default_factory=list)


def adopt(
    root: str, directory: str, spec: TaskSpec | None, clock: Clock, *, name: str | None = None, start: bool = True
) -> Adopted:
    """Adopt a workspace: its finished steps stay finished, and work goes on at the first that is not.

    `name` is what the task is called, by default what its task.md says.
    `directory` is a path, or the id of a task of the root. Without `spec` it is kept as it is, to be shown and given
    one later. A task that has failed is tried again when it is to start. Raises TaskNotFound, Refused, Damaged, Held
    or UsageError when it cannot be adopted, and then nothing was changed; OSError as it comes.
    """
    root, directory = os.path.abspath(root), _directory(root, directory)
    if spec is not None:
        submit.check(spec)
        spec = dataclasses.replace(spec, name=name or _title(Paths(directory)) or spec.name)
    if os.path.dirname(directory) == root and names.is_task_id(os.path.basename(directory)):
        found, lock = _in_place(Paths(directory), spec, clock, start)
    else:
        found, lock = _copied(root, directory, spec, clock)
    try:
        found.runnable = _knows_what_to_run(found.where)
        _go_on(found, lock, clock, start=start and found.runnable)
    finally:
        if found.lock is None:
            os.close(lock)
    return found


def _directory(root: str, given: str) -> str:
    path = os.path.join(root, given) if names.is_task_id(given) and not os.path.lexists(given) else given
    path = os.path.abspath(path)
    if os.path.islink(path):
        raise Refused(f"{path} is a link", f"name the directory itself: {os.path.realpath(path)}")
    if not os.path.isdir(path):
        raise TaskNotFound(f"{path}: there is no such directory", "name the directory that has the task.md in it")
    return path


# -- where it lies -------------------------------------------------------------------------------------------------


def _in_place(where: Paths, spec: TaskSpec | None, clock: Clock, start: bool) -> tuple[Adopted, int]:
    lock = _locked(where.directory, f"wait for it: orchestrator wait {where.task_id}")
    try:
        if _knows_what_to_run(where):
            raise Refused(f"{where.task_id} is a task of this root", f"go on: orchestrator recover {where.task_id}")
        found = Adopted(where)
        if not remains.has_journal(where):
            _check_remains(where)
            foreign = not remains.tell(where)
            found.notices = _write_journal(where, where.task_id, spec, clock, foreign=foreign)
            rebuilding.find_children(where)
        elif spec is None and start:
            raise UsageError(f"what {where.task_id} is to run is not known", "say it: --worker WORKER")
        _set_task_id(where, where.task_id)
        if spec is not None:
            _write_spec(where, spec, clock)
        return found, lock
    except BaseException:
        os.close(lock)
        raise


# -- or as a copy --------------------------------------------------------------------------------------------------


def _copied(root: str, source: str, spec: TaskSpec | None, clock: Clock) -> tuple[Adopted, int]:
    _check_source(root, source)
    lock = _locked(source, "wait until its worker has ended")
    try:
        found = Adopted(Paths(source))
        where, held = workspace.take_in(root, clock, _filler(found, source, spec, clock))
        found.where = where
        return found, held
    finally:
        os.close(lock)


def _filler(found: Adopted, source: str, spec: TaskSpec | None, clock: Clock) -> Callable[[Paths, str], None]:
    """Fills the directory of the new task; called again when its id was taken meanwhile."""
    copied: list[str] = []

    def fill(where: Paths, task_id: str) -> None:
        if not copied:
            copied.append(source)
            found.notices += [f"left out, it is no file: {path}" for path in copying.copy_tree(source, where.directory)]
            said = _write_journal(where, task_id, spec, clock, foreign=True)
            found.notices += said
            if spec is not None:
                _write_spec(where, spec, clock)
        else:
            _write_journal(where, task_id, spec, clock, foreign=True)
        _set_task_id(where, task_id)

    return fill


def _check_source(root: str, source: str) -> None:
    inside = os.path.realpath(source) + os.sep
    if (os.path.realpath(root) + os.sep).startswith(inside):
        raise Refused(f"{source} has the root {root} in it", "name another root: --root DIR")
    where = Paths(source)
    if remains.has_journal(where):
        raise Refused(
            f"{source} is a task of ours with its journal: a copy would have its history under another id",
            f"move it as it is: mv {source} {root}/   then: orchestrator recover",
        )
    if not os.path.lexists(where.task_md):
        raise Refused(f"{source} has no task.md", "name the directory that has the task.md in it")
    _check_remains(where)


# -- what both write -----------------------------------------------------------------------------------------------


def _locked(directory: str, hint: str) -> int:
    lock = files.lock_patiently(directory)
    if lock is None:
        raise Held(f"{directory} is being worked on", hint)
    return lock


def _check_remains(where: Paths) -> None:
    """Raises Damaged or Refused when nothing tells what was done."""
    try:
        face = Checklist.parse(files.read(where.task_md))
        if not face.damaged and canonical.is_checklist(face):
            return
        what = "is empty or unreadable" if face.damaged else "is no checklist: no step, no status, no [start done]"
    except FileNotFoundError:
        what = "is not there"
    except Damaged as error:
        what = f"cannot be read ({error.what})"
    if not remains.tell(where):
        raise Damaged(f"{where.task_md} {what}: nothing tells what was done", "put it back, or spawn the work anew")


def _write_journal(where: Paths, task_id: str, spec: TaskSpec | None, clock: Clock, *, foreign: bool) -> list[str]:
    """Make the journal that the face tells of. Returns what a person should know of it."""
    at = store.timestamp(clock())
    left = remains.gather(where, store.read_requests(where), spec, task_id=task_id, foreign=foreign)
    notices = _compared(left, spec) if spec is not None and spec.kind == "steps" else []
    rebuilding.make_inner(where)
    if os.path.lexists(where.journal) and not os.path.isfile(where.journal):
        files.set_aside(where.journal, at.replace(":", ""))
    files.replace(where.journal, rebuilding.encode(left, at), sync=True)
    return notices


def _compared(left: Remains, spec: TaskSpec) -> list[str]:
    """Which steps of the checklist and of the steps file do not match. Raises Refused when none does."""
    without, new = rebuild.unmatched(left)
    there = rebuild.steps(left)
    if there and len(without) == len(there):
        raise Refused(
            f"none of its steps is in {spec.worker}: {', '.join(map(repr, without[:5]))}",
            f"the steps file has: {', '.join(map(repr, new[:5]))}; name them as in task.md",
        )
    said = [f"not in the steps file, and so never run: {label!r}" for label in without]
    return said + [f"not in the checklist, and so still to be run: {name!r}" for name in new]


def _write_spec(where: Paths, spec: TaskSpec, clock: Clock) -> None:
    rebuilding.make_inner(where)
    if os.path.lexists(where.spec):
        files.set_aside(where.spec, store.timestamp(clock()).replace(":", ""))
    files.replace(where.spec, to_yaml(spec).encode(), sync=True)


def _title(where: Paths) -> str | None:
    try:
        return Checklist.parse(files.read(where.task_md)).title
    except (Damaged, OSError):
        return None


def _knows_what_to_run(where: Paths) -> bool:
    try:
        store.read_spec(where)
    except (OSError, OrchestratorError):
        return False
    return True


def _set_task_id(where: Paths, task_id: str) -> None:
    """Have task.md say whose it is; every other byte of it stays."""
    for _ in range(20):  # somebody may be saving it right now
        try:
            text = files.read(where.task_md)
        except (Damaged, OSError):
            return  # made again by whoever takes the task over
        face = Checklist.parse(text)
        if face.damaged or face.task_id == task_id:
            return
        face.set_task_id(task_id)
        if files.exchange(where.task_md, face.render(), expected=text, sync=True) in (None, text):
            return


# -- going on ------------------------------------------------------------------------------------------------------


def _go_on(found: Adopted, lock: int, clock: Clock, *, start: bool) -> None:
    task = take_over(found.where, clock)
    try:
        end = task.snapshot.end
        if start and end is not None and end["outcome"] == Outcome.FAILED:
            task.record("handled", sync=True, request=f"adopt-{secrets.token_hex(4)}", verb="retry")
            task.show_all()
        action = lifecycle.next_action(task.snapshot)
    finally:
        task.close()
    found.notices += task.notices
    match action:
        case Ended(outcome):
            found.action, found.reason = "ended", outcome
        case Wait(_, step, reason, verb):
            found.action, found.step = "waits", step
            found.reason = f"{reason}: {lifecycle.command_line(verb, found.where.task_id)}"
        case Start(step, _):
            found.action, found.step = ("resumed", step) if start else ("kept", step)
            found.lock = lock if start else None
        case _:
            found.reason = str(action.reason)
