"""What a person or an agent changed in task.md, told from what the journal knows. Pure.

The rules are those of the protocol, section 5: a commit beats any tag; `[working done]` without a commit is done by
hand; `[skipped]`, `[redo]`, new lines and a new order are taken over; a vanished line drops nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

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
    """The label of each step of the face, in its order: the n-th X is the n-th."""
    seen: dict[str, int] = {}
    labels: list[str] = []
    for step in face.steps:
        n = seen[step.name] = seen.get(step.name, 0) + 1
        if n == 1 and step.name in snapshot.steps:
            labels.append(step.name)
        else:
            labels.append(snapshot.labels.get(StepId(step.name, n)) or _new_label(step.name, n))
    return labels


def _new_label(name: str, n: int) -> str:
    return name if n == 1 else f"{name} ({n})"


def edits(snapshot: Snapshot, face: Checklist, shown: Collection[str] | None = None) -> list[Edit]:
    """The changes to take over, in the order in which they are to be recorded. Empty for a face that only lags.

    `shown` are the steps that the text had before it was edited, all by default: an order counts when all are there.
    """
    found: list[Edit] = []
    before: str | None = None
    seen: dict[str, int] = {}
    labels = face_labels(face, snapshot)
    for label, step in zip(labels, face.steps, strict=True):
        n = seen[step.name] = seen.get(step.name, 0) + 1
        if label not in snapshot.steps:
            found.append(NewStep(StepId(step.name, n), label, before))
        found.extend(_status_edit(snapshot, label, step))
        before = label
    if set(labels).issuperset(snapshot.steps if shown is None else shown) and _order_differs(labels, snapshot.order):
        found.append(NewOrder(tuple(labels)))
    return found


def _order_differs(labels: list[str], order: list[str]) -> bool:
    known, there = set(order), set(labels)
    return [label for label in labels if label in known] != [label for label in order if label in there]


def _status_edit(snapshot: Snapshot, label: str, step: FaceStep) -> list[Edit]:
    state = snapshot.steps.get(label)
    status = state.status if state is not None else StepStatus.PENDING
    if step.redo:
        return [RedoByHand(label)] if status.finished or status is StepStatus.FAILED else []
    if step.status is StepStatus.DONE and not status.finished:
        return [DoneByHand(label)]
    if step.status is StepStatus.SKIPPED and not status.finished:
        return [SkippedByHand(label)]
    return []
