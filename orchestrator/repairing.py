"""Rewriting a task.md as we write it: first as a plan that can be shown, then for certain what was shown."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator import files, store
from orchestrator.core import canonical
from orchestrator.core.checklist import Checklist, Finding
from orchestrator.core.names import is_task_id
from orchestrator.errors import Damaged, Held, OrchestratorError, Refused, TaskNotFound
from orchestrator.store import Paths


@dataclass(frozen=True, slots=True)
class Plan:
    """What `repair` makes of one task.md. `left` is what only a person can put right, or what is kept on purpose."""

    path: str
    where: Paths | None  #: the task it belongs to
    before: bytes
    after: bytes
    findings: tuple[Finding, ...]
    left: tuple[Finding, ...]

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """What is changed, as a unified diff; line ends and a byte order mark are made visible."""
        old, new = (_shown(text) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(old, new, self.path, f"{self.path} (repaired)"))


def plan(path: str) -> Plan:
    """What would be done with a file; nothing is written.

    Raises TaskNotFound when there is none, Damaged for one that cannot be read as a checklist, Refused for one that is
    none.
    """
    where = _task_of(path)
    try:
        before = files.read(path)
    except FileNotFoundError:
        raise TaskNotFound(f"{path}: there is no such file", "name a task.md, a task's directory or its id") from None
    seen = store.look(where) if where is not None else None
    known = list(seen.snapshot.steps) if seen is not None else []
    found = Checklist.parse(before, known)
    _check(path, where, found)
    task_id = where.task_id if where is not None else None
    after = canonical.canonical(before, task_id=task_id, title=_title(where), known=known)
    left = canonical.left(Checklist.parse(after, known).findings)
    return Plan(path, where, before, after, tuple(found.findings), tuple(left))


def carry_out(shown: Plan) -> None:
    """Write what was shown, durably; under the task's lock when it is a task's.

    Raises Held when a worker or somebody else has the task, Refused when the file has changed since, also in the very
    moment: then it is as it was changed.
    """
    with _held(shown.where):
        if files.read(shown.path) != shown.before:
            raise _changed(shown)
        displaced = files.exchange(shown.path, shown.after, expected=shown.before, sync=True)
        if displaced is not None and displaced != shown.before:
            _put_back(shown, displaced)
            raise _changed(shown)


def _put_back(shown: Plan, edit: bytes) -> None:
    """Put an edit back that we displaced; and one that was saved while we did so, which then is the newest."""
    ours = shown.after
    for _ in range(100):  # an editor that saves faster than we write for ever is no editor
        displaced = files.exchange(shown.path, edit, expected=ours, sync=True)
        if displaced in (None, ours):
            return
        ours, edit = edit, displaced or b""


@contextmanager
def _held(where: Paths | None) -> Iterator[None]:
    if where is None:
        yield
        return
    lock = files.lock_patiently(where.directory)
    if lock is None:
        raise Held(
            f"{where.task_id} is being worked on: its worker keeps task.md in order itself",
            f"wait for it: orchestrator wait {where.task_id}   or end it: orchestrator cancel {where.task_id}",
        )
    try:
        yield
    finally:
        os.close(lock)


def _changed(shown: Plan) -> Refused:
    return Refused(f"{shown.path} was changed meanwhile: nothing was written", "look at it anew: orchestrator repair")


def _check(path: str, where: Paths | None, found: Checklist) -> None:
    if found.damaged:
        what = next(f.message for f in found.findings)
        way = f"orchestrator recover {where.task_id}" if where is not None else "put back what it said"
        raise Damaged(f"{path}: {what}; there is nothing to rewrite", f"what was done is in other files: {way}")
    if not canonical.is_checklist(found):
        raise Refused(f"{path} is no checklist: no step, no status, no [start done]", "name a task.md")


def _task_of(path: str) -> Paths | None:
    directory, name = os.path.split(os.path.abspath(path))
    return Paths(directory) if name == "task.md" and is_task_id(os.path.basename(directory)) else None


def _title(where: Paths | None) -> str | None:
    try:
        return store.read_spec(where).name if where is not None else None
    except (OSError, OrchestratorError):
        return None


def _shown(text: bytes) -> list[str]:
    """Lines for a diff: what is not printable is written as its escape."""
    lines = text.decode("utf-8", "surrogateescape").split("\n")
    last = lines.pop()
    found = [_visible(line) + "\n" for line in lines]
    return [*found, _visible(last) + "\n\\ No newline at end of file\n"] if last else found


def _visible(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
