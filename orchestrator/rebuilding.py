"""The journal of a task made again from what is left of it. The caller holds the task's lock."""

from __future__ import annotations

import contextlib
import os
import secrets

from orchestrator import files, remains
from orchestrator.core import journal
from orchestrator.core.rebuild import Remains, entries
from orchestrator.errors import Damaged
from orchestrator.store import Paths, read_requests, read_spec, task_ids


def rebuild(where: Paths, at: str, stamp: str) -> bytes | None:
    """Make a lost journal again, durably, and return it; an unreadable one is kept beside it.

    None when it is not lost, or nothing is left to make it from.
    """
    left = remains.lost(where, read_requests(where))
    if left is None:
        return None
    data = encode(left, at)
    make_inner(where)
    find_children(where)
    if os.path.lexists(where.journal):
        files.set_aside(where.journal, stamp)
    files.replace(where.journal, data, sync=True)
    return data


def encode(left: Remains, at: str) -> bytes:
    """A journal of its own generation."""
    return b"".join(map(journal.encode, entries(left, secrets.token_hex(4), at)))


def make_inner(where: Paths) -> None:
    """The directory `.task` and its logs, durable, as far as they are not there."""
    for directory in (where.inner, where.logs):
        if not os.path.isdir(directory):
            files.make_directory(directory)
            files.sync_directory(os.path.dirname(directory))


def find_children(where: Paths) -> None:
    """Write the notes about sub-tasks again, by what these say of their parent: or they would be spawned anew."""
    root = os.path.dirname(where.directory)
    mark = f"{where.task_id}/".encode()
    for task_id in task_ids(root):
        child = Paths(os.path.join(root, task_id))
        with contextlib.suppress(OSError, Damaged):
            if mark not in files.read(child.spec):  # a spec is slow to parse, and there may be thousands
                continue
            parent, _, key = (read_spec(child).parent or "").partition("/")
            if parent == where.task_id and key.isalnum() and not os.path.lexists(where.child(key)):
                files.replace(where.child(key), task_id.encode(), sync=True)
