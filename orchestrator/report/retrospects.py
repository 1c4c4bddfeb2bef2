"""Retrospects of tasks as they lie on disk: read, measured, written, and gathered over all tasks of a root."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator import files, remains, store, templates
from orchestrator.core import retro, retro_text
from orchestrator.core.names import is_task_id
from orchestrator.core.retro import Retro, Volumes
from orchestrator.core.snapshot import Snapshot
from orchestrator.errors import Damaged, OrchestratorError
from orchestrator.store import Look, Paths

if TYPE_CHECKING:  # a worker, which writes one retrospect, does not need it
    from orchestrator.core.verdict import Record

_TEMPLATE = "task-retro.md"

#: The skill of a task of which neither journal nor spec can say what it ran.
UNKNOWN = "(not known)"


@dataclass(frozen=True, slots=True)
class Found:
    """The retrospect of one task, and the look it was made of."""

    seen: Look
    retro: Retro

    @property
    def text(self) -> str:
        """As task-retro.md. Of a task that has not ended, it says so at its top."""
        status = str(self.seen.face.status or "") if self.seen.face else ""
        said = _rendered(self.retro, self.seen.title, self.seen.task_id, status)
        return said if self.retro.outcome else retro_text.unfinished(self.seen.state, self.retro.last_at) + said

    @property
    def json(self) -> dict[str, Any]:
        seen = self.seen
        return retro_text.to_json(
            self.retro, task_id=seen.task_id, name=seen.title, state=seen.state, damage=seen.damage
        )


def find(where: Paths) -> Found:
    """The retrospect of one task, whatever state it is in. Without a journal, what its step files say."""
    seen = store.look(where)
    entries: Iterable[Mapping[str, Any]] = seen.reading.entries if seen.reading else ()
    if seen.lost:
        entries = remains.imagine(where, store.read_requests(where)) or ()
    skill, version = _of_spec(where)
    found = retro.analyse(counted(entries), version=version)
    found.skill = found.skill or skill
    found.volumes = measure(where, found)
    return Found(seen, found)


def counted(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries without those of an attempt that had been replaced, or that are there twice, in their order.

    A journal that was made again has its lines step by step: of that one, in the order of their times.
    """
    snapshot = Snapshot()
    found = [entry for entry in entries if snapshot.apply(entry)]
    return sorted(found, key=lambda entry: str(entry.get("at", ""))) if snapshot.generation else found


def _of_spec(where: Paths) -> tuple[str | None, str | None]:
    """The skill that the spec names, and for a checklist its version: there the steps are the skill."""
    try:
        spec = store.read_spec(where)
    except (OrchestratorError, OSError):
        return None, None
    return spec.worker, hashlib.sha256(repr(spec.steps).encode()).hexdigest()[:12] if spec.steps else None


# -- volumes ---------------------------------------------------------------------------------------------------------


def measure(where: Paths, found: Retro) -> Volumes:
    """What the task keeps, in bytes. A directory that is not there is unknown, but for that of the large results."""
    inline = sum(step.result_bytes for step in found.steps.values())
    return Volumes(
        inline + (_bytes_in(where.results) or 0),
        sum(step.output_bytes for step in found.steps.values()),
        _bytes_in(where.logs),
        _bytes_of_notes(where),
    )


def _bytes_of_notes(where: Paths) -> int | None:
    try:
        found = remains.texts(where.directory)[0]
    except OSError:
        return None
    return sum(len(text.encode()) for file in found.values() for _, text in file.notes)


def _bytes_in(directory: str) -> int | None:
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(directory))
    except OSError:
        return None


# -- task-retro.md ---------------------------------------------------------------------------------------------------


def _rendered(found: Retro, name: str, task_id: str, status: str) -> str:
    template = templates.read(_TEMPLATE) or "# Retrospect: {name}\n\n**{verdict}**\n\n{steps_table}\n"
    return retro_text.render(found, template, name=name, task_id=task_id, status=status)


def write_at_end(where: Paths, entries: Iterable[Mapping[str, Any]], *, name: str, status: str) -> None:
    """Write task-retro.md; the caller holds the lock. It can be made again at any time: its failure fails nothing."""
    found = retro.analyse(counted(entries))
    found.volumes = measure(where, found)
    with contextlib.suppress(OSError):
        _replace(where, _rendered(found, name, where.task_id, status))


def _replace(where: Paths, text: str) -> None:
    files.replace(where.retro, text.encode("utf-8", "replace"), sync=True)


def mark_earlier(where: Paths, entries: Callable[[], list[dict[str, Any]]]) -> None:
    """Say at the top of task-retro.md, if it is there, that it is of an earlier end, and that there will be another.

    The caller holds the lock, of a task that goes on. What already says something of the kind is left as it is.
    """
    with contextlib.suppress(OSError, Damaged):
        text = files.read(where.retro)
        if text.startswith(retro_text.REMARK.encode()):
            return
        end = next((entry for entry in reversed(entries()) if entry["kind"] == "end"), None)
        if end is not None:
            files.replace(where.retro, retro_text.earlier(end["outcome"], end["at"]).encode() + text, sync=False)


def write(where: Paths) -> Found | None:
    """Write task-retro.md anew, with the task's lock. None when somebody works on it, who writes it at its end.

    Raises OSError when the disk does not take it.
    """
    lock = files.lock_patiently(where.directory)
    if lock is None:
        return None
    try:
        found = find(where)
        _replace(where, found.text)
        return found
    finally:
        os.close(lock)


# -- all tasks of a root ---------------------------------------------------------------------------------------------


def gather(root: str, skill: str | None = None, besides: str = "") -> tuple[list[Record], dict[str, str]]:
    """What judging needs of every task of a root, or of one skill; and what is wrong with those that are damaged.

    A damaged task counts as far as it can be read, and never hides the others. `besides` is a task to leave out.
    """
    records: list[Record] = []
    damaged: dict[str, str] = {}
    for task_id in store.task_ids(root):
        if task_id == besides:
            continue
        found, said = _record(Paths(os.path.join(root, task_id)))
        if skill is None or is_skill(found.skill, skill):
            records.append(found)
        elif found.skill != UNKNOWN:  # one whose skill nobody knows may be meant
            continue
        if said:
            damaged[task_id] = said
    return records, damaged


def is_skill(worker: str, wanted: str) -> bool:
    """Whether a worker is meant by this name: by the whole, by its function's, or without its directories."""
    return wanted in (worker, worker.rpartition(":")[2], os.path.basename(worker))


def _record(where: Paths) -> tuple[Record, str]:
    """One task's record, and what is wrong with it ("": nothing)."""
    from orchestrator.core import verdict

    said = ""
    try:
        reading = store.read_journal(where)
        if reading.damaged:
            said = f".task/journal.jsonl: bad line {reading.damaged[0]} with good ones after it"
        found = retro.analyse(counted(reading.entries))
    except OrchestratorError as error:
        found, said = Retro(), error.what
    except OSError as error:
        found, said = Retro(), f"{error.filename or where.journal}: {error.strerror}"
    except (KeyError, TypeError, ValueError) as error:  # whole by its checksum, and yet no line of ours
        found, said = Retro(), f".task/journal.jsonl: not to be understood: {error!r}"
    skill = found.skill
    if skill is None:
        skill, found = _with_spec(where, found)
    if skill is None and not said:
        said = ".task/spec.yaml is gone or cannot be read"
    if not said and not os.path.isfile(where.task_md):
        said = "task.md is gone"
    return verdict.record(where.task_id, skill or UNKNOWN, found), said


def _with_spec(where: Paths, found: Retro) -> tuple[str | None, Retro]:
    skill, version = _of_spec(where)
    failures = [replace(failure, version=failure.version or version) for failure in found.failures]
    return skill, replace(found, version=found.version or version, failures=failures)


def write_missing(root: str, records: Iterable[Record]) -> int:
    """Write the task-retro.md of every task that has ended and has none; how many."""
    written = 0
    for found in records:
        where = Paths(os.path.join(root, found.task))
        if found.outcome and is_task_id(found.task) and not os.path.lexists(where.retro):
            with contextlib.suppress(OSError, OrchestratorError):
                written += write(where) is not None
    return written
