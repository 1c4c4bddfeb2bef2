"""Which tasks were spawned by which: told by the notes that a parent's steps leave before they make a child."""

from __future__ import annotations

import os

from orchestrator import files
from orchestrator.errors import Damaged, TaskNotFound
from orchestrator.store import CHILD, Paths, paths, read_spec


def children(where: Paths) -> list[Paths]:
    """The sub-tasks of a task that exist, by the notes its steps left before they made them."""
    found = []
    try:
        keys = [entry.name for entry in files.entries(where.inner) if entry.name.startswith(CHILD)]
    except OSError:
        return []
    for key in keys:
        child = child_of(where, key[len(CHILD) :])
        if child is not None:
            found.append(child)
    return found


def child_of(where: Paths, key: str) -> Paths | None:
    """The sub-task that the step with this idempotency key has made; None when it has not, or not yet."""
    try:
        task_id = files.read(where.child(key)).decode("utf-8", "replace").strip()
        child = paths(os.path.dirname(where.directory), task_id)
        return child if read_spec(child).parent == f"{where.task_id}/{key}" else None
    except (OSError, Damaged, TaskNotFound):
        return None
