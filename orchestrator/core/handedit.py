"""What a person or an agent changed in task.md, told from what the journal knows. Pure.

The rules are those of docs/protocol.md, Edits: a commit beats any tag; `[working done]` without a commit is done by
hand; `[skipped]`, `[redo]`, new lines and a new order are taken over; a vanished line drops nothing. That a step is
uncertain is no commit: each of the three tags settles it. That it failed is one: `[redo]` or `[skipped]` reopen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.core import names
from orchestrator.core.checklist import Checklist, FaceStep
from orchestrator.core.model import StepId, StepStatus
from orchestrator.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class NewStep:
    id: StepId
    label: str
    after: str | None


@dataclass(frozen=True, slots=True)
class DoneByHand:
    label: str


@dataclass(frozen=True, slots=True)
class SkippedByHand:
    label: str


@dataclass(frozen=True, slots=True)
class RedoByHand:
    label: str


@dataclass(frozen=True, slots=True)
class NewOrder:
    labels: tuple[str, ...]


Edit = NewStep | DoneByHand | SkippedByHand | RedoByHand | NewOrder


def face_labels(face: Checklist, snapshot: Snapshot) -> list[str]:
    """The label of each step of the face, in its order: the n-th X is the n-th. No two have the same."""
    seen: dict[str, int] = {}
    labels: dict[str, None] = {}
    for step in face.steps:
        n = seen[step.name] = seen.get(step.name, 0) + 1
        labels[next(label for label in _candidates(step.name, n, snapshot) if label not in labels)] = None
    return list(labels)


def _candidates(name: str, n: int, snapshot: Snapshot) -> Iterator[str]:
    """What the n-th step of this name may be called, the likeliest first: a line `X (2)` may stand beside two X."""
    if n == 1 and name in snapshot.steps:
        yield name
    known = snapshot.labels.get(StepId(name, n))
    if known is not None:
        yield known
    if n == 1:
        yield name
    yield from (f"{name} ({number})" for number in itertools.count(max(2, n)))


def edits(snapshot: Snapshot, face: Checklist, edited: Checklist | None = None) -> list[Edit]:
    """The changes to take over, in the order in which they are to be recorded. Empty for a face that only lags.

    `edited` is the text that was edited, when it is known. Then a tag counts only where it was changed: one that was
    only left as it stood says nothing of what has become of its step since. And an order counts when every step that
    the text had is there; else when all are.
    """
    shown = None if edited is None else face_labels(edited, snapshot)
    tags = dict(zip(shown or (), edited.steps if edited is not None else (), strict=True))
    found: list[Edit] = []
    before: str | None = None
    seen: dict[str, int] = {}
    taken = set(snapshot.labels)
    labels = face_labels(face, snapshot)
    for label, step in zip(labels, face.steps, strict=True):
        n = seen[step.name] = seen.get(step.name, 0) + 1
        if label not in snapshot.steps:  # a line `b` behind `b (2)`, which is the second b, is the third
            new = next(one for i in itertools.count(n) if (one := StepId(step.name, i)) not in taken)
            taken.add(new)
            found.append(NewStep(new, label, before))
        if label not in tags or (tags[label].status, tags[label].redo) != (step.status, step.redo):
            found.extend(_status_edit(snapshot, label, step))
        before = label
    if set(labels).issuperset(snapshot.steps if shown is None else shown) and _order_differs(labels, snapshot.order):
        found.append(NewOrder(tuple(labels)))
    return found


def _order_differs(labels: list[str], order: list[str]) -> bool:
    known, there = set(order), set(labels)
    return [label for label in labels if label in known] != [label for label in order if label in there]


#: Not finished, and not run again before a person says so.
_STOPPED = frozenset({StepStatus.FAILED, StepStatus.UNCERTAIN})


def _status_edit(snapshot: Snapshot, label: str, step: FaceStep) -> list[Edit]:
    state = snapshot.steps.get(label)
    status = state.status if state is not None else StepStatus.PENDING
    if step.redo:
        return [RedoByHand(label)] if status.finished or status in _STOPPED else []
    if step.status is StepStatus.DONE and not status.finished and status is not StepStatus.FAILED:
        return [DoneByHand(label)]
    if step.status is StepStatus.SKIPPED and not status.finished:
        return [SkippedByHand(label)]
    return []


def entry(edit: Edit) -> tuple[str, dict[str, Any]]:
    """The journal's line, kind and fields, by which an edit is taken over."""
    match edit:
        case NewStep(step, label, after):
            said = {**names.unsaid(step, label), "step": label, "by_hand": True}
            return "plan", {"steps": [said], **({"after": after} if after else {})}
        case DoneByHand(label):
            return "commit", {**_by_hand(label, "done"), "status": StepStatus.DONE.value}
        case SkippedByHand(label):
            return "commit", {**_by_hand(label, "skipped"), "status": StepStatus.SKIPPED.value}
        case RedoByHand(label):
            return "redo", _by_hand(label, "redo")
        case NewOrder(labels):
            return "order", {"steps": list(labels)}


def _by_hand(label: str, tag: str) -> dict[str, Any]:
    return {"step": label, "by_hand": True, "why": f"marked {tag} in task.md"}
