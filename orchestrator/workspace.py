"""The directory of one task: made whole or not at all, directly under the root."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from orchestrator import files
from orchestrator.core import checklist, names
from orchestrator.core.model import TaskSpec
from orchestrator.core.spec import to_yaml
from orchestrator.errors import RootUnusable
from orchestrator.store import Clock, Paths

_STAGING = ".orchestrator-new-"


def create(
    root: str,
    spec: TaskSpec,
    clock: Clock,
    template: str | None = None,
    claim: Callable[[str], None] = lambda task_id: None,
) -> tuple[Paths, int]:
    """Make the workspace of a new task and take its lock. Returns its paths and the lock's descriptor.

    `claim` is told each id before a task of this id can exist: whoever dies after it finds the task by it.

    It is staged beside the tasks and then renamed, durably: a task exists whole or not at all, and nobody can start it
    before its maker lets go of the lock. Raises RootUnusable when the root cannot be had or written; OSError (a full
    disk) as it comes, and then nothing of the task is left.
    """
    open_root(root)
    staging, lock = _stage(root)
    try:
        return _fill(root, staging, spec, clock, template, claim), lock
    except BaseException:
        os.close(lock)
        with contextlib.suppress(OSError):
            files.remove_tree(staging)
        raise


def _stage(root: str) -> tuple[str, int]:
    """An empty directory of our own, with its lock."""
    while True:
        staging = os.path.join(root, _STAGING + secrets.token_hex(8))
        try:
            files.make_directory(staging)
        except OSError as error:
            raise _unusable(root, error) from error
        with contextlib.suppress(FileNotFoundError):
            lock = files.lock_directory(staging)
            if lock is not None and os.fstat(lock).st_nlink:
                return staging, lock
            if lock is not None:
                os.close(lock)
        # Before we had its lock somebody took it for a leftover and swept it: another one.


def _fill(
    root: str, staging: str, spec: TaskSpec, clock: Clock, template: str | None, claim: Callable[[str], None]
) -> Paths:
    where = Paths(staging)
    for directory in (where.inner, where.logs):
        files.make_directory(directory)
    files.replace(where.spec, to_yaml(spec).encode(), sync=True)
    files.replace(where.journal, b"", sync=True)
    at = datetime.fromtimestamp(clock(), UTC)
    number = _first_free(root, at)
    while True:
        task_id = names.task_id(at, number)
        face = checklist.new(spec.name, task_id, template=template)
        files.replace(where.task_md, face.render(), sync=True)
        for directory in (where.inner, staging):
            files.sync_directory(directory)
        target = os.path.join(root, task_id)
        claim(task_id)
        if not os.path.lexists(target) and files.rename_directory(staging, target):
            files.sync_directory(root)
            return Paths(target)
        number += 1


def _first_free(root: str, at: datetime) -> int:
    """One more than the highest number of this second that is there."""
    second = names.task_id(at, 0)[:-3]
    return 1 + max(
        (int(n[len(second) :]) for n in os.listdir(root) if n.startswith(second) and names.is_task_id(n)), default=0
    )


def open_root(root: str) -> None:
    """Make the root if it is not there. Raises RootUnusable."""
    try:
        files.make_directories(root)
    except OSError as error:
        raise _unusable(root, error) from error


def _unusable(root: str, error: OSError) -> OSError | RootUnusable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return error
    said = "a file is in its way" if error.errno in (errno.EEXIST, errno.ENOTDIR) else error.strerror
    return RootUnusable(
        f"the root {root} cannot be written: {said}", "name another: --root DIR, or set ORCHESTRATOR_ROOT"
    )


def sweep_staging(root: str) -> int:
    """Remove what a killed `create` left; one that is still being made holds its lock and is left alone."""
    swept = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(root)):
            if entry.name.startswith(_STAGING) and entry.is_dir(follow_symlinks=False):
                lock = files.lock_directory(entry.path)
                if lock is not None:
                    files.remove_tree(entry.path)
                    os.close(lock)
                    swept += 1
    return swept
