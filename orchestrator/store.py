"""Which file of a task holds what, and how a task is looked at without touching it.

`look` never writes and takes no lock; the lock's holder writes through `writer.TaskWriter`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from orchestrator import files, identity
from orchestrator.core import journal
from orchestrator.core.model import Announcement, Outcome, TaskSpec
from orchestrator.core.names import is_task_id
from orchestrator.core.snapshot import AttemptState, Snapshot, fold
from orchestrator.errors import BadSpec, Damaged, RootUnusable, TaskNotFound
from orchestrator.places import CHILD as CHILD
from orchestrator.places import Clock as Clock
from orchestrator.places import Paths as Paths
from orchestrator.places import seconds_of as seconds_of
from orchestrator.places import timestamp as timestamp
from orchestrator.requesting import make_request as make_request
from orchestrator.requesting import read_requests as read_requests

if TYPE_CHECKING:  # for lists of thousands: neither is needed to tell how a task stands
    from orchestrator.core.checklist import Checklist


def paths(root: str, task_id: str) -> Paths:
    """The paths of an existing task. Raises TaskNotFound: an id is matched whole, never by its beginning."""
    directory = os.path.join(root, task_id)
    if not is_task_id(task_id) or not os.path.isdir(directory) or os.path.islink(directory):
        raise TaskNotFound(f"no task {task_id!r} in {root}", f"see them all: orchestrator --root {root} list")
    return Paths(directory)


def task_ids(root: str) -> list[str]:
    """The ids of all tasks of a root, oldest first. An absent root has none. Raises RootUnusable for a file.

    A link is no task, wherever it leads: work would go on in a directory that another root may have as well.
    """
    try:
        names = [entry.name for entry in os.scandir(root) if not entry.is_symlink()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise RootUnusable(f"the root {root} is a file", "name another: --root DIR, or set ORCHESTRATOR_ROOT") from None
    return sorted((n for n in names if is_task_id(n)), key=lambda n: (n[:20], len(n), n))


def read_journal(where: Paths) -> journal.Reading:
    """The journal as it lies; empty when there is none. Raises Damaged when it is not a file."""
    try:
        return journal.read(files.read(where.journal, files.JOURNAL_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return journal.Reading((), 0, 0)


def check_readable(where: Paths) -> None:
    """Raises Damaged when neither journal, task.md nor step files say anything: that is no task that never began.

    And when `.task` is a link: what is behind it is nobody's to write to, and may be another task's.
    """
    if os.path.islink(where.inner):
        raise Damaged(
            f"{where.inner} is a link: nothing is written through it",
            "put the directory itself in its place, or remove the link: its journal is then made again from task.md",
        )
    if not _read_heading(where)[1]:
        return
    with contextlib.suppress(Damaged, OSError):
        if read_journal(where).entries:
            return
    from orchestrator import remains  # not for a list of sound tasks

    if remains.tell(where):
        return
    raise Damaged(
        f"{where.task_id}: neither task.md nor the journal can be read",
        f"put one of them back, or spawn the work anew; its files stay in {where.directory}",
    )


def read_spec(where: Paths) -> TaskSpec:
    """What the task runs. Raises Damaged when it cannot be known any more."""
    from orchestrator.core.spec import parse_spec

    try:
        data = files.read(where.spec, files.TEXT_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"{where.spec} is gone: what to run is not known", _ADOPT.format(where.task_id)) from None
    except PermissionError:
        raise Damaged(f"{where.spec} may not be read", f"let it be read: chmod u+rw {where.spec}") from None
    except Damaged as error:
        raise Damaged(error.what, _ADOPT.format(where.task_id)) from None
    try:
        return parse_spec(data.decode("utf-8", "replace"), where.spec)
    except BadSpec as error:
        raise Damaged(error.what, f"{error.hint}, or {_ADOPT.format(where.task_id)}") from error


_ADOPT = "say what it is to run: orchestrator adopt {} --worker WORKER"


@dataclass(slots=True)
class Look:
    """A task as it lies on disk at one moment."""

    where: Paths
    snapshot: Snapshot
    face: Checklist | None
    reading: journal.Reading | None
    damage: list[str]
    heading: str | None  #: the title, when the face was not parsed
    lost: bool  #: the journal is: all this is told by the face, as the next holder makes it again

    @property
    def task_id(self) -> str:
        return self.where.task_id

    @property
    def title(self) -> str:
        return (self.face.title if self.face else self.heading) or self.task_id

    @property
    def alive(self) -> bool | None:
        """Whether the worker of the last attempt lives; None when it cannot be known from here.

        The worker of a task that this is a copy of is none of ours.
        """
        attempt = self.snapshot.unclosed
        if attempt is None or attempt.identity is None or not begun_here(self.where, attempt):
            return False
        return identity.alive(attempt.identity)

    @property
    def elsewhere(self) -> str | None:
        """The machine on which the worker may live, when neither its processes nor its locks can be seen from here."""
        attempt = self.snapshot.unclosed
        if attempt is None or attempt.identity is None or self.alive is not None:
            return None
        return None if identity.same_kernel(attempt.identity) else attempt.identity.host

    @property
    def state(self) -> str:
        """One word: how it ended, or `working`, `queued`, `interrupted`, `uncertain`, `damaged`."""
        snapshot = self.snapshot
        if snapshot.end is not None:
            return str(snapshot.end["outcome"])
        if self.damage:
            return "damaged"
        if self.lost and _is_held(self.where):  # its worker will write the journal again
            return "working"
        if not (snapshot.attempts or snapshot.paused or snapshot.attention):
            return "interrupted" if snapshot.generation and snapshot.steps else "queued"
        if snapshot.unclosed is not None:
            return "working" if self.alive is not False else "interrupted"
        if snapshot.paused:
            return str(Outcome.PAUSED)
        return str(snapshot.attention["status"]) if snapshot.attention else "interrupted"

    def cancel_request(self) -> str | None:
        """The id of the first cancel request that nobody has handled."""
        handled = self.snapshot.handled
        found = (r for r in read_requests(self.where) if r["verb"] == "cancel" and r["id"] not in handled)
        return next((str(r["id"]) for r in found), None)

    def announcement(self) -> Announcement | None:
        """What was announced of its end, or of its waiting for a person."""
        said = self.snapshot.end.get("announcement") if self.snapshot.end else self.snapshot.attention
        return announcement_from_json(said) if said else None


def begun_here(where: Paths, attempt: AttemptState) -> bool:
    """Whether an attempt was begun in this very directory, and not in one that it was copied from.

    Told by the id in its run and by the number of the directory, which no copy has, and a directory that was moved
    keeps. Journals of before have no number: then the id has to do.
    """
    if not attempt.run.startswith(f"{where.task_id}."):
        return False
    found = files.identity(where.directory)
    return attempt.place is None or (found is not None and found[1] == attempt.place)


def look(where: Paths, *, with_face: bool = True) -> Look:
    """Read a task. Total: what cannot be read is listed in `damage`, and never taken for empty."""
    damage: list[str] = [".task is a link"] if os.path.islink(where.inner) else []
    reading: journal.Reading | None = None
    try:
        reading = read_journal(where)
    except (Damaged, OSError) as error:
        damage.append(f".task/journal.jsonl: {_said(error)}")
    if reading is not None and reading.damaged:
        damage.append(f".task/journal.jsonl: bad line {reading.damaged[0]} with good ones after it")
    snapshot = fold(reading.entries if reading else ())
    lost = None if snapshot.lines else _lost(where)
    snapshot = snapshot if lost is None else fold(lost)
    if lost is not None and reading is not None and reading.torn:
        damage.append(".task/journal.jsonl: not one line of it can be read")
    face, heading = None, None
    if with_face or not (snapshot.attempts or os.path.exists(where.journal)):  # without a journal, the face tells
        face, said = read_face(where, snapshot)
    else:
        heading, said = _read_heading(where)
    return Look(where, snapshot, face, reading, damage + said, heading, lost is not None)


def _lost(where: Paths) -> list[dict[str, Any]] | None:
    from orchestrator import remains  # not for a list of sound tasks

    return remains.imagine(where, read_requests(where))


def _read_heading(where: Paths) -> tuple[str | None, list[str]]:
    """The title of task.md, and whether it is damaged: all that a list needs of it."""
    try:
        data = files.read(where.task_md, files.TEXT_BYTES)
    except FileNotFoundError:
        return None, ["task.md is gone"]
    except (Damaged, OSError) as error:
        return None, [f"task.md: {_said(error)}"]
    if not data.strip() or b"\0" in data:
        return None, ["task.md is empty or unreadable"]
    first = data[:1024].lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    return (first[len("# Task:") :].strip() or None) if first.startswith("# Task:") else None, []


def read_face(where: Paths, snapshot: Snapshot) -> tuple[Checklist | None, list[str]]:
    """task.md, parsed, and what is wrong with it; None when it cannot be read at all."""
    from orchestrator.core.checklist import Checklist

    try:
        face = Checklist.parse(files.read(where.task_md, files.TEXT_BYTES), snapshot.steps)
    except FileNotFoundError:
        return None, ["task.md is gone"]
    except (Damaged, OSError) as error:
        return None, [f"task.md: {_said(error)}"]
    return face, ["task.md is empty or unreadable"] if face.damaged else []


def _said(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or getattr(error, "what", None) or error)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `list`."""

    id: str
    name: str
    state: str
    done: int
    total: int
    at: str


_TAIL_BYTES = 64 * 1024


def row(where: Paths) -> Row:
    """A task in short, for lists of thousands: an ended one is told by the last two lines of its journal."""
    ended = _ended_row(where)
    if ended is not None:
        return ended
    seen = look(where, with_face=False)
    counts = seen.snapshot.counts()
    return Row(
        seen.task_id, seen.title, seen.state, counts.get("done", 0), len(seen.snapshot.steps), seen.snapshot.last_at
    )


def last_lines(where: Paths) -> list[dict[str, Any]]:
    """The last two entries of the journal, when both are whole and lie in its last 64 KiB; else none."""
    try:
        data, _ = files.read_tail(where.journal, _TAIL_BYTES)
    except OSError:
        return []
    found = [journal.decode(line) for line in data.split(b"\n")[-3:-1]]
    entries = [e for e in found if e is not None]
    if not data.endswith(b"\n") or len(entries) != len(found):
        return []
    newest = data.rfind(b'"kind":"attempt"')
    begun = journal.decode(data[data.rfind(b"\n", 0, newest) + 1 : data.find(b"\n", newest)]) if newest >= 0 else None
    if begun is not None and any(e["run"] != begun["run"] for e in entries):
        return []  # of an attempt that was replaced: these may not count
    return entries


def ended_by_tail(where: Paths) -> dict[str, Any] | None:
    """The `end` entry when the journal's last two lines are `end` and `closed` of one run: nothing came after."""
    lines = last_lines(where)
    if (
        len(lines) != 2
        or lines[0]["kind"] != "end"
        or lines[1]["kind"] != "closed"
        or lines[0]["run"] != lines[1]["run"]
    ):
        return None
    return lines[0]


def _ended_row(where: Paths) -> Row | None:
    end = ended_by_tail(where)
    said = end.get("announcement") if end else None
    if end is None or not said:
        return None
    steps = said.get("steps", {})
    return Row(where.task_id, said["name"], end["outcome"], int(steps.get("done", 0)), sum(steps.values()), end["at"])


def rows(root: str) -> Iterator[Row]:
    for task_id in task_ids(root):
        yield row(Paths(os.path.join(root, task_id)))


def read_result(where: Paths) -> Any:
    """The full result of an ended task. Raises OSError, ValueError or Damaged when it cannot be read."""
    return json.loads(files.read(f"{where.results}/result.json"))


def result_may_be_whole(where: Paths, end: Mapping[str, Any]) -> bool:
    """Whether the result of a task that ended with one may be whole. Costs one look at its size. Raises OSError."""
    size = files.regular_size(f"{where.results}/result.json")
    return size is not None and size > 0 and end.get("result_bytes") in (None, size)


def told(where: Paths) -> Announcement | None:
    """What was announced, once its attempt is closed: then task.md says so too. Cheap for a task that goes on.

    An end whose worker died before it closed counts as well, when nobody is there to write the rest.
    """
    lines = last_lines(where)
    if lines and lines[-1]["kind"] != "closed" and not lock_is_free(where):
        return None
    seen = look(where)
    if seen.snapshot.unclosed is None:
        _let_guard_go(seen.snapshot)
        return seen.announcement()
    return seen.announcement() if seen.snapshot.end is not None and lock_is_free(where) else None


#: How long a guard is given to end, once its worker has closed the attempt: commonly it takes milliseconds.
_GUARD_SECONDS = 2.0


def _let_guard_go(snapshot: Snapshot) -> None:
    """Wait, not for ever, until nothing of the last worker can write any more: its guard goes last, with the lock."""
    last = snapshot.attempt
    deadline = time.monotonic() + _GUARD_SECONDS
    while last is not None and last.guard is not None and identity.alive(last.guard) is True:
        if time.monotonic() >= deadline:
            return
        time.sleep(0.005)


def lock_is_free(where: Paths) -> bool:
    """Whether nobody holds the task's lock in this moment."""
    lock = files.lock_directory(where.directory)
    if lock is not None:
        os.close(lock)
    return lock is not None


def _is_held(where: Paths) -> bool:
    try:
        return not lock_is_free(where)
    except OSError:  # gone meanwhile, or closed to us
        return False


def announcement_to_json(said: Announcement) -> dict[str, Any]:
    return asdict(said)


def announcement_from_json(data: Mapping[str, Any]) -> Announcement:
    return Announcement(**{f.name: data[f.name] for f in fields(Announcement) if f.name in data})
