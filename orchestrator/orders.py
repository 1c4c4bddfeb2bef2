"""A person's orders: made durable, carried out by whoever holds the task's lock, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator import files, store
from orchestrator.core import glance, names, verbs
from orchestrator.core.snapshot import Snapshot
from orchestrator.core.verbs import OF_A_STEP, Verb
from orchestrator.errors import Damaged, Refused
from orchestrator.store import Paths

if TYPE_CHECKING:  # a dry run over thousands writes nothing
    from orchestrator.writer import TaskWriter

#: What of a request is written into the line that is its effect.
_FIELDS = ("step", "why", "done", "result", "question", "text")


def due(where: Paths, snapshot: Snapshot) -> list[dict[str, Any]]:
    """The requests that nobody has handled, oldest first."""
    return [r for r in store.read_requests(where) if str(r["id"]) not in snapshot.handled]


def check(where: Paths, snapshot: Snapshot, request: Mapping[str, Any]) -> None:
    """Raises Refused, with what can be done instead, when the order makes no sense in the state the task is in."""
    said = verbs.refusal(snapshot, request)
    if said is not None:
        what, hint = (text.replace("TASK", where.task_id) for text in said)
        if request.get("step") and "STEP" in hint:
            hint = hint.replace("STEP", repr(request["step"]))
        raise Refused(f"{where.task_id}: {what}", hint)


def check_now(where: Paths, request: Mapping[str, Any]) -> None:
    """As `check`, of the task as it lies; what a dead worker left open does not run."""
    seen = store.look(where)
    if seen.alive is False:
        seen.snapshot.presume_dead()
    check(where, seen.snapshot, request)


def handled(where: Paths, request_id: str) -> dict[str, Any] | None:
    """The journal's line by which this request was handled; None as long as it was not."""
    entries = store.read_journal(where).entries
    return next((e for e in reversed(entries) if e["kind"] == "handled" and e["request"] == request_id), None)


def carry_out(task: TaskWriter) -> list[dict[str, Any]]:
    """Carry out every order that is due, each by one synced line. The lock's holder calls it.

    A cancel is left to the end of the task, a message to the skill that reads it. An order that has lost its sense
    since it was made is recorded as refused: so is a cancel of a task that has ended, or it would end it again when it
    is taken up anew. Returns those that took effect.
    """
    found, effective = [], []
    for request in due(task.where, task.snapshot):
        if _is_left(task.snapshot, request):
            continue
        if request["verb"] in (Verb.REDO, Verb.RESOLVE) and verbs.refusal(task.snapshot, request) is None:
            task.will_reopen(str(request["step"]))
        if handle(task, request):
            effective.append(request)
        found.append(request)
    if found:
        task.show_all()
    return effective


def _is_left(snapshot: Snapshot, request: Mapping[str, Any]) -> bool:
    return request["verb"] == Verb.SEND or (request["verb"] == Verb.CANCEL and snapshot.end is None)


def _edits(where: Paths, snapshot: Snapshot) -> list[tuple[str, dict[str, Any]]]:
    """The edits of task.md that are to be taken over, as entries of the journal."""
    try:
        if glance.says_the_same(files.read(where.task_md), snapshot):
            return []
    except (OSError, Damaged):
        return []
    from orchestrator.core import handedit  # reads a checklist: not for a dry run over thousands

    face, damage = store.read_face(where, snapshot)
    return [handedit.entry(edit) for edit in handedit.edits(snapshot, face)] if face is not None and not damage else []


def foresee(where: Paths, snapshot: Snapshot) -> bool:
    """Fold into the snapshot, and nowhere else, what the next holder of the lock will take over: a person's edits of
    task.md, and the orders that are due. Whether there are any."""
    forecast = Forecast(where.task_id, snapshot)
    edits = _edits(where, snapshot)
    for kind, fields in edits:
        forecast.record(kind, sync=True, **fields)
    orders = [r for r in due(where, snapshot) if not _is_left(snapshot, r)]
    for request in orders:
        handle(forecast, request)
    return bool(edits or orders)


class Recorder(Protocol):
    """What takes down that an order was handled."""

    @property
    def snapshot(self) -> Snapshot: ...

    def record(self, kind: str, *, sync: bool, **fields: Any) -> None: ...


class Forecast:
    """A recorder that writes nothing."""

    def __init__(self, task_id: str, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._run = snapshot.current or names.run_id(task_id, 0, snapshot.generation)

    def record(self, kind: str, *, sync: bool, **fields: Any) -> None:
        entry = {"run": self._run, "seq": self.snapshot.seq.get(self._run, 0) + 1, "kind": kind, **fields}
        self.snapshot.apply(entry)


def handle(task: Recorder, request: Mapping[str, Any]) -> bool:
    """Record that an order was handled. Whether it took effect: else it was refused."""
    fields = {key: request[key] for key in _FIELDS if request.get(key) is not None}
    said = verbs.refusal(task.snapshot, request)
    if said is not None:
        fields["refused"] = said[0]
        if request["verb"] in OF_A_STEP and request.get("step") not in task.snapshot.steps:
            fields.pop("step", None)  # a step that is not there is not made by refusing it
    if request["verb"] == Verb.ANSWER and "question" not in fields and said is None:
        fields["question"] = next(q for q, answer in task.snapshot.questions.items() if answer is None)
    task.record("handled", sync=True, request=str(request["id"]), verb=str(request["verb"]), **fields)
    return said is None
