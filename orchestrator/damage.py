"""What is wrong with the files of a task beside its journal and its task.md, and putting it right.

`wrongs` only looks. Whoever holds the lock puts right what can be: `open_up` before he reads, `put_right` once he has
read. Nothing is thrown away: what cannot be read is moved aside, under a name that says so. A disk that gives no answer
is no damage of the file: it is told (`wrongs`), or raised to the holder of the lock, and nothing is moved.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from orchestrator import files, store
from orchestrator.core import results, stepfile
from orchestrator.core.model import StepStatus
from orchestrator.core.snapshot import Snapshot, StepState
from orchestrator.errors import Damaged
from orchestrator.store import Paths
from orchestrator.writer import TaskWriter

#: A step's file, or a result, that is larger is not looked through.
_LARGEST = 256 * 1024 * 1024


class Wrong(NamedTuple):
    """Something wrong. `hint` is what a person can do; without one the lock's next holder puts it right."""

    what: str
    hint: str = ""


def wrongs(where: Paths, snapshot: Snapshot) -> list[Wrong]:
    """All that is wrong with the directories, requests, step files and results of a task. Total."""
    found = [Wrong(f"{_short(where, path)} is no directory") for path in _not_directories(where)]
    found += _answered(lambda: _of_requests(where))
    for state in snapshot.steps.values():
        found += _answered(functools.partial(_of_step, where, state))
    return found + _answered(lambda: result_wrongs(where, snapshot))


def _answered(look: Callable[[], Iterable[Wrong]]) -> list[Wrong]:
    """What a look tells; or that the disk does not let us look, which no holder of the lock can put right."""
    try:
        return list(look())
    except OSError as error:
        return [Wrong(f"{error.filename or 'a file'}: {error.strerror or error}", "mend the disk, and look again")]


def _of_requests(where: Paths) -> list[Wrong]:
    # by the same rule as `open_up`: a line of NULs is a lost order (`unread_requests`), the others are good
    readable = not os.path.lexists(where.requests) or _is_request_file(where.requests)
    return [] if readable else [Wrong(f"{_short(where, where.requests)} cannot be read")]


def unread_requests(where: Paths) -> int:
    """How many lines of the requests are none: if one of them was an order, it is lost."""
    try:
        lines = files.read(where.requests, files.TEXT_BYTES).splitlines()
    except (OSError, Damaged):
        return 0
    return sum(1 for line in lines if line.strip()) - len(store.read_requests(where))


def _of_step(where: Paths, state: StepState) -> Iterator[Wrong]:
    path = where.step(state.file)
    if not _is_text(path):
        yield Wrong(f"{state.file} cannot be read")
    elif state.tries and state.status.finished and not _tells(path, state):
        yield Wrong(f"{state.file} lacks what became of step {state.label!r}")
    if state.status is StepStatus.DONE and state.result_file is not None and not _is_result(where, state):
        again = f"do it anew: orchestrator redo {where.task_id} {state.label!r}"
        yield Wrong(f"the result of step {state.label!r} is lost: {state.result_file} is not what was committed", again)


def result_wrongs(where: Paths, snapshot: Snapshot) -> list[Wrong]:
    """Whether the result of an ended task is not the one that it gave; at most one."""
    end = snapshot.end or {}
    if not (end.get("announcement") or {}).get("result") or _is_whole(where, end):
        return []
    if "result" in end:
        return [Wrong("results/result.json is not what the task gave")]
    last = snapshot.order[-1] if snapshot.order else "STEP"
    again = f"its steps have theirs; to have it made anew: orchestrator redo {where.task_id} {last!r}"
    return [Wrong("the result of the task is lost: results/result.json is not what it gave", again)]


def _is_whole(where: Paths, end: dict[str, Any]) -> bool:
    """Whether the result is there, and the one that was recorded, as far as that was."""
    path = f"{where.results}/result.json"
    return store.result_may_be_whole(where, end) and end.get("result_sha256") in (None, _digest(path))


def _is_result(where: Paths, state: StepState) -> bool:
    path = f"{where.directory}/{state.result_file}"
    return (_digest(path) or "?")[:16] in (state.result_file or "")


def _digest(path: str) -> str | None:
    if os.path.islink(path) or files.size(path) > _LARGEST:
        return None
    try:
        return files.sha256(path)[1]
    except OSError as error:
        files.check_answer(error)
        return None


def _tells(path: str, state: StepState) -> bool:
    """Whether a step's file has the last word on it. One that is gone has not."""
    try:
        found = stepfile.parse(files.read(path, files.TEXT_BYTES).decode("utf-8", "replace"))
    except (Damaged, OSError) as error:
        files.check_answer(error)
        return False
    return any(
        (block.name, block.n, block.key) == state.id and (block.status, block.try_number) == (state.status, state.tries)
        for block in found.checkpoints
    )


def _is_text(path: str) -> bool:
    """Whether a file is not there, or can be read as text: a regular one, of a size that can be true, without NUL."""
    try:
        return b"\0" not in files.read(path, files.TEXT_BYTES)
    except FileNotFoundError:
        return True
    except (Damaged, OSError) as error:
        files.check_answer(error)
        return False


def _not_directories(where: Paths) -> list[str]:
    paths = (where.inner, where.logs, where.results)
    return [path for path in paths if os.path.lexists(path) and not _is_directory(path)]


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _short(where: Paths, path: str) -> str:
    return os.path.relpath(path, where.directory)


# -- with the lock held ----------------------------------------------------------------------------------------------


def open_up(where: Paths, stamp: str) -> Iterator[str]:
    """Before a task is read: its own files may be read again, and its directories are directories. Says what it did."""
    for path in _not_directories(where):
        yield f"{_short(where, path)} is no directory: moved to {files.set_aside(path, stamp)}"
    for path in (where.task_md, where.journal, where.spec):
        if files.make_readable(path):
            yield f"{_short(where, path)} may be read again: its permissions forbade it"
    if os.path.lexists(where.requests) and not _is_request_file(where.requests):
        if files.make_readable(where.requests):
            yield f"{_short(where, where.requests)} may be read again: its permissions forbade it"
        else:
            aside = files.set_aside(where.requests, stamp)
            yield f"{_short(where, where.requests)} could not be read: moved to {aside}"


def _is_request_file(path: str) -> bool:
    size = files.regular_size(path)
    return size is not None and size <= files.TEXT_BYTES and os.access(path, os.R_OK)


def put_right(task: TaskWriter, stamp: str) -> Iterator[str]:
    """Make again what can be made again from the journal: step files, and a small result. Says what it did."""
    for state in task.snapshot.steps.values():
        path = task.where.step(state.file)
        if not _is_text(path):
            aside = files.set_aside(path, stamp)
            yield f"{state.file} could not be read: moved to {aside}, made again from the journal"
            task.steps.tell(state)
        elif state.tries and state.status.finished and not _tells(path, state):
            task.steps.tell(state)
            yield f"{state.file} lacked what became of step {state.label!r}: appended"
    yield from restore_result(task, stamp)


def restore_result(task: TaskWriter, stamp: str) -> Iterator[str]:
    """Write the result of an ended task again, when the journal has it and the file has not."""
    end = task.snapshot.end
    if end is None or "result" not in end or _is_whole(task.where, end):
        return
    path = f"{task.where.results}/result.json"
    aside = f": moved to {files.set_aside(path, stamp)}" if os.path.lexists(path) else ""
    task.make(task.where.results)
    files.replace(path, results.text(end["result"]), sync=True)
    yield f"results/result.json was not what the task gave{aside}, made again from the journal"
