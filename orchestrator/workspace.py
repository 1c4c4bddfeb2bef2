"""The directory of one task: made whole or not at all, directly under the root."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from orchestrator import files, mounts
from orchestrator.core import checklist, journal, names, submit
from orchestrator.core.model import TaskSpec
from orchestrator.core.spec import to_yaml
from orchestrator.errors import Damaged, Held, Refused, RootUnusable
from orchestrator.store import Clock, Paths, paths, timestamp

_STAGING = ".orchestrator-new-"
_GONE = ".orchestrator-gone-"


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
    disk) as it comes, and then nothing of the task is left; BadSpec for what no worker could run.
    """
    submit.check(spec)
    return _made(root, lambda staging: _fill(root, staging, spec, clock, template, claim))


def take_in(root: str, clock: Clock, fill: Callable[[Paths, str], None]) -> tuple[Paths, int]:
    """As `create`, for a task that is made of something: `fill` writes all of it into an empty directory.

    It is told the id that the task will have, and called again with another when that was taken meanwhile.
    """
    return _made(root, lambda staging: _named(root, staging, clock, fill))


def _made(root: str, make: Callable[[str], Paths]) -> tuple[Paths, int]:
    """A task made in a staging directory, and its lock; nothing is left of it when that fails."""
    open_root(root)
    staging, lock = _stage(root)
    try:
        return make(staging), lock
    except BaseException:
        os.close(lock)
        with contextlib.suppress(OSError):
            files.remove_tree(staging)
        raise


def staging_name(root: str) -> str:
    """A name under the root that is swept when whoever took it is gone."""
    return os.path.join(root, _STAGING + secrets.token_hex(8))


def _stage(root: str) -> tuple[str, int]:
    """An empty directory of our own, with its lock."""
    while True:
        staging = staging_name(root)
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

    def write_face(where: Paths, task_id: str) -> None:
        first = {"run": names.run_id(task_id, 0), "seq": 1, "at": timestamp(clock()), "kind": "created"}
        files.replace(where.journal, journal.encode(first), sync=True)  # an empty one has been lost
        face = checklist.new(spec.name, task_id, template=template)
        files.replace(where.task_md, face.render(), sync=True)
        claim(task_id)

    return _named(root, staging, clock, write_face)


def _named(root: str, staging: str, clock: Clock, write: Callable[[Paths, str], None]) -> Paths:
    """Give a staged directory a task's name, after `write` has written into it what depends on that."""
    at = datetime.fromtimestamp(clock(), UTC)
    number = _first_free(root, at)
    where = Paths(staging)
    while True:
        task_id = names.task_id(at, number)
        write(where, task_id)
        for directory in (where.inner, staging):
            files.sync_directory(directory)
        target = os.path.join(root, task_id)
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


def leftovers(root: str) -> list[str]:
    """What a killed `create` or `remove` left; one that is still being made or removed holds its lock."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in list(os.scandir(root)):
            if entry.name.startswith((_STAGING, _GONE)) and entry.is_dir(follow_symlinks=False):
                found.append(entry.path)
    return sorted(found)


def links(root: str) -> list[str]:
    """Links under the root that have the name of a task."""
    with contextlib.suppress(OSError):
        return sorted(e.path for e in os.scandir(root) if e.is_symlink() and names.is_task_id(e.name))
    return []


def sweep_staging(root: str) -> int:
    """Remove what a killed `create` or `remove` left. What cannot be removed stays, and keeps nobody from working."""
    swept = 0
    for path in leftovers(root):
        with contextlib.suppress(OSError):
            lock = files.lock_directory(path)
            if lock is not None:
                try:
                    files.remove_tree(path)
                    swept += 1
                finally:
                    os.close(lock)
    return swept


def remove(root: str, task_id: str, ended: Callable[[Paths], bool]) -> None:
    """Remove the directory of a task that has ended, whole or not at all.

    It is renamed first, durably, and then deleted: a crash in the middle leaves what `sweep_staging` removes.
    `ended` is asked with the task's lock held. Raises Refused for whatever is not certainly a task of this id that
    has ended, Held when somebody holds it, TaskNotFound; OSError as it comes, when not all of it could be deleted.
    """
    where = paths(root, task_id)
    _check_ours(where)
    lock = files.lock_patiently(where.directory)
    if lock is None:
        raise Held(f"{task_id} is held by somebody", f"see by whom: orchestrator explain {task_id}")
    try:
        if not ended(where):
            raise Refused(f"{task_id} has not ended, or was taken up again", f"see: orchestrator explain {task_id}")
        gone = os.path.join(root, f"{_GONE}{task_id}-{secrets.token_hex(4)}")
        if not files.rename_directory(where.directory, gone):
            raise Refused(f"{task_id} cannot be renamed: {gone} is there", "remove that first")
        files.sync_directory(root)
        files.remove_tree(gone)
    finally:
        os.close(lock)


def _check_ours(where: Paths) -> None:
    """Only a real directory, directly under the root, marked with exactly its own id, and with no mount in it."""
    points = mounts.at_or_below(where.directory)
    if points:
        raise Refused(f"{where.task_id}: a file system is mounted at {points[0]}", f"unmount it: umount {points[0]}")
    if marks(where) != {where.task_id}:
        raise Refused(
            f"{where.directory} does not carry the id of its name: it is not certain that it is a task of ours",
            "look at it, and remove it by hand",
        )


def marks(where: Paths) -> set[str]:
    """The ids by which a directory says which task it is: in task.md, and in each line of its journal."""
    found = set()
    with contextlib.suppress(OSError, Damaged):
        found |= {face.task_id for face in (checklist.Checklist.parse(files.read(where.task_md)),) if face.task_id}
    with contextlib.suppress(OSError, Damaged):
        entries = journal.read(files.read(where.journal, files.JOURNAL_BYTES)).entries
        found |= {run[0] for run in (names.parse_run(str(entry["run"])) for entry in entries) if run}
    return found
