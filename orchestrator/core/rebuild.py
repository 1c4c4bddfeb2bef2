"""A journal made again from the face of a task: task.md, and the checkpoints of its step files. Pure.

The rules are those of docs/protocol.md, When the journal is lost: the face is enough by itself. A checkpoint beats a
tag; a tag `[working done]` without a checkpoint is done by hand; a step that only its file tells of is a step.
"""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.core import names, recognise
from orchestrator.core.checklist import Checklist, FaceStep, display
from orchestrator.core.lifecycle import end_summary, one_line
from orchestrator.core.model import Announcement, Checkpoint, Json, Outcome, StepId, StepStatus, TaskStatus
from orchestrator.core.snapshot import fold
from orchestrator.core.stepfile import StepFile

#: What is said of a try whose end nobody knows any more.
CUT_OFF = "its end is not known: the journal was lost"
BY_FACE = "marked {} in task.md"

_MOST = 10**9  # attempts and tries beyond this were never made: somebody has written into a checkpoint
_RESULT_FILE = re.compile(r"results/[^/\0]+")  # never outside of the workspace, whoever wrote the checkpoint
_HEAD = frozenset({"run", "seq", "at", "kind"})
_COMMITS = frozenset({StepStatus.DONE, StepStatus.SKIPPED, StepStatus.FAILED, StepStatus.UNCERTAIN})


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a task whose journal is lost, or that never had one of ours.

    foreign: another tool made it; a file named as a step that was begun is that step's, whatever stands in it.
    by_hand: a step that only its tag calls done was marked so by a person: its outputs are checked, and a skill that
    needs its result does not go on. Else it is taken as it is, without a result.
    """

    task_id: str
    face: Checklist | None
    files: Mapping[str, StepFile]  #: the texts beside task.md that may be step files, by their names
    taken: Collection[str] = ()  #: the names of whatever else is there
    name: str = ""
    attempt: int = 0  #: the highest that something else than a checkpoint tells of
    result: str | None = None  #: where the full result lies
    requests: Sequence[tuple[str, str]] = ()  #: id and verb of orders that were given to the lost journal
    foreign: bool = False
    by_hand: bool = True
    spec_names: Collection[str] = ()  #: of the steps that are to be run, where that is known
    outputs: Collection[str] = ()  #: files that these declare: never a step's own


@dataclass(slots=True)
class Step:
    """A step that the remains tell of. `blocks` are its checkpoints, in their order."""

    id: StepId
    label: str
    face: FaceStep | None = None
    blocks: tuple[Checkpoint, ...] = ()
    file: str = ""

    @property
    def since(self) -> str:
        return next((block.at for block in self.blocks if block.at), "")


def entries(remains: Remains, generation: str, at: str) -> list[dict[str, Any]]:
    """The journal that says what the face says, from its `rebuilt` line to the end that the face shows, if any."""
    found = steps(remains)
    attempt = max([remains.attempt, *(bounded(block.attempt) for step in found for block in step.blocks)])
    lines = _Lines(names.run_id(remains.task_id, attempt, generation), at)
    lines.add("rebuilt", generation=generation, attempt=attempt)
    for step in found:
        lines.add("plan", steps=[said(step)])
    for step in found:
        lines.stand(step, by_hand=remains.by_hand)
    lines.put_in_time()
    died = deaths(found)
    if died:
        lines.add("deaths", deaths=died)
    for request, verb in remains.requests:
        lines.add("handled", request=request, verb=verb, refused="it was given to a journal that was lost")
    outcome = _outcome(remains.face)
    if outcome is not None:
        lines.end(remains, outcome)
    return lines.found


def by_blocks(step: Step, *, begun: bool, open_: bool) -> list[tuple[str, dict[str, Any]]]:
    """The lines, kind and fields, of which the checkpoints of a step are the copies; an open try was cut off.

    begun, open_: whether the journal knows of a try, and of one whose end it does not tell.
    """
    lines = _Lines("", "")
    if lines.by_blocks(step, begun=begun, open_=open_)[0]:
        lines.add("interrupted", step=step.label, why=CUT_OFF)
    return [(line["kind"], {k: v for k, v in line.items() if k not in _HEAD}) for line in lines.found]


def deaths(found: Sequence[Step]) -> int:
    """In how many attempts, since the last that finished a step, a try was begun that nothing was said of any more.

    Without this a step that takes the journal away and its worker with it would be begun for ever.
    """
    done = max((b.attempt for step in found for b in step.blocks if b.status == "done"), default=0)
    cut_off: set[int] = set()
    for step in found:
        for block, after in itertools.zip_longest(step.blocks, step.blocks[1:]):
            if block.status == "running" and (after is None or after.status == "running") and block.attempt >= done:
                cut_off.add(block.attempt)
    return len(cut_off)


def known(files: Mapping[str, StepFile]) -> set[str]:
    """The labels that steps with a checkpoint have: what a torn last line of task.md is judged by."""
    return {names.label(step, ()) for step in blocks_of(files)}


# -- which steps there are -----------------------------------------------------------------------------------------


def steps(remains: Remains) -> list[Step]:
    """All steps, in the order of task.md; those it lacks stand where the time of their first checkpoint puts them."""
    told = blocks_of(remains.files)
    found = _of_face(remains, {step: file for step, (file, _) in told.items()})
    there = {step.id for step in found}
    reserved = {step.label for step in found}
    lost = [Step(id_, "", None, blocks) for id_, (_, blocks) in told.items() if id_ not in there]
    lost.sort(key=_in_time)
    for step in lost:
        step.label = names.label(step.id, reserved)
        reserved.add(step.label)
    found = _put_between(found, lost)
    _name_files(remains, found, told)
    return found


def _put_between(found: Sequence[Step], lost: Sequence[Step]) -> list[Step]:
    """Each of the lost steps, oldest first, behind the last step of task.md that began before it."""
    begun = sorted((step.since, i) for i, step in enumerate(found) if step.since)
    last = list(itertools.accumulate((i for _, i in begun), max))
    behind: dict[int, list[Step]] = {}
    for step in lost:
        before = bisect_right(begun, (step.since, len(found)))
        behind.setdefault(last[before - 1] if before else -1, []).append(step)
    return [*behind.get(-1, ()), *(s for i, step in enumerate(found) for s in (step, *behind.get(i, ())))]


def _in_time(step: Step) -> tuple[str, bool, str]:
    """By when it began; of those that began in one millisecond the finished ones come first."""
    last = step.blocks[-1]
    return step.since, last.status in ("running", "raised"), last.at


def blocks_of(files: Mapping[str, StepFile]) -> dict[StepId, tuple[str, tuple[Checkpoint, ...]]]:
    """The file and the checkpoints of each step. Of copies, the one counts that has the step's own name."""
    found: dict[StepId, tuple[tuple[bool, bool, int], str, tuple[Checkpoint, ...]]] = {}
    for file, text in sorted(files.items()):
        mine: dict[StepId, list[Checkpoint]] = {}
        for block in text.checkpoints:
            mine.setdefault(StepId(block.name, max(1, block.n), block.key), []).append(block)
        for step, blocks in mine.items():
            own = names.file_name(names.label(step, ()), ()) == file
            rank = (own, text.heading == display(step.name), len(blocks))
            if step not in found or rank > found[step][0]:
                found[step] = (rank, file, tuple(blocks))
    return {step: (file, blocks) for step, (_, file, blocks) in found.items()}


def _of_face(remains: Remains, told: Mapping[StepId, str]) -> list[Step]:
    """The steps of task.md, each with the identity that its checkpoints, the spec, or else its name give it."""
    shown = remains.face.steps if remains.face is not None else []
    names_there = {step.name for step in shown}
    index, spec_names = recognise.by_line(told), recognise.in_specs(remains.spec_names)
    blocks = blocks_of(remains.files)
    taken = set(names_there)
    counted: dict[str, int] = {}
    found: list[Step] = []
    used: set[StepId] = set()
    for step in shown:
        n = counted[step.name] = counted.get(step.name, 0) + 1
        id_ = recognise.recognised(step.name, n, told, index, used) or recognise.identity(
            step.name, n, names_there, spec_names, used
        )
        label = step.name if n == 1 else names.label(StepId(step.name, n), taken)
        taken.add(label)
        used.add(id_)
        found.append(Step(id_, label, step, blocks[id_][1] if id_ in blocks else ()))
    return found


# -- which file each has -------------------------------------------------------------------------------------------


def _name_files(
    remains: Remains, found: Sequence[Step], told: Mapping[StepId, tuple[str, tuple[Checkpoint, ...]]]
) -> None:
    taken = {told[step.id][0].casefold() for step in found if step.id in told}
    taken |= {name.casefold() for name in (*remains.taken, *remains.outputs)}
    for step in found:
        step.file = told[step.id][0] if step.id in told else _free_file(remains, step, taken)
        taken.add(step.file.casefold())


def _free_file(remains: Remains, step: Step, taken: set[str]) -> str:
    """A file that is the step's, or may become it."""
    others: list[str] = []
    while True:
        file = names.file_name(step.label, taken)
        text = remains.files.get(file)
        if text is None or _belongs(remains, step, text):
            taken.difference_update(others)
            return file
        others.append(file.casefold())
        taken.add(others[-1])


def _belongs(remains: Remains, step: Step, text: StepFile) -> bool:
    if text.checkpoints:
        return False
    begun = step.face is not None and step.face.status is not StepStatus.PENDING
    return text.heading == display(step.id.name) or (remains.foreign and begun)


def said(step: Step) -> dict[str, Any]:
    """The step as a `plan` line names it."""
    said: dict[str, Any] = {"step": step.label}
    if step.label != step.id.name:
        said["name"] = step.id.name
    if step.id.n != 1:
        said["n"] = step.id.n
    if step.id.key is not None:
        said["key"] = step.id.key
    if step.file != step.label + names.SUFFIX:
        said["file"] = step.file
    return said


# -- what became of them -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Lines:
    """The lines made so far."""

    run: str
    at: str
    found: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, *, when: str = "", **fields: Any) -> None:
        at = when or self.at
        self.found.append({"run": self.run, "seq": len(self.found) + 1, "at": at, "kind": kind, **fields})

    def put_in_time(self) -> None:
        """Of all steps, by when each line was written: whether a step was done before another was reopened is what
        tells its arguments from those of a skill that has changed. The lines of one step stay in their order."""
        latest: dict[str, tuple[bool, str, bool]] = {}
        keys: list[tuple[bool, str, bool]] = []
        for line in self.found:
            of_step = line["kind"] not in ("rebuilt", "plan")
            key = (of_step, line["at"], line["kind"] == "redo") if of_step else (False, "", False)
            keys.append(max(key, latest.get(line.get("step", ""), key)))
            latest[line.get("step", "")] = keys[-1]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self.found = [{**self.found[i], "seq": number} for number, i in enumerate(order, 1)]

    def stand(self, step: Step, *, by_hand: bool) -> None:
        """Where a step stands: by its checkpoints, and where these say less, by its tag."""
        open_, status = self.by_blocks(step)
        shown = step.face.status if step.face is not None and not step.face.redo else None
        if shown is StepStatus.WORKING and not step.blocks:
            self.add("running", **{"step": step.label, "try": 1})  # type: ignore[arg-type]
            open_ = True
        if open_:
            self.add("interrupted", step=step.label, why=CUT_OFF)
        if shown in (StepStatus.DONE, StepStatus.SKIPPED, StepStatus.FAILED) and not status.finished:
            self._by_tag(step, shown, status, by_hand)

    def by_blocks(self, step: Step, *, begun: bool = False, open_: bool = False) -> tuple[bool, StepStatus]:
        """Whether a try is left whose end is not told, and the status that the checkpoints give."""
        status = StepStatus.PENDING
        for block in step.blocks:
            if block.status == "running" and open_:
                self.add("interrupted", step=step.label, when=block.at, why=CUT_OFF)
            kind, fields = _entry(step.label, block)
            if kind is None or (kind == "redo" and not begun):
                continue
            if kind == "raised" and not open_:  # it had begun: else nothing is known of this try a second time
                self.add("running", when=block.at, step=step.label, **{"try": fields["try"]})
            self.add(kind, when=block.at, **fields)
            begun = True
            open_ = block.status == "running"
            status = StepStatus(block.status) if block.status in _COMMITS else StepStatus.PENDING
        return open_, status

    def _by_tag(self, step: Step, shown: StepStatus, status: StepStatus, by_hand: bool) -> None:
        if shown is status:
            return
        tries = max((bounded(block.try_number) for block in step.blocks), default=0)
        fields: dict[str, Any] = {"step": step.label, "try": tries, "status": shown.value}
        fields["why"] = BY_FACE.format(shown.value)
        if by_hand and shown is not StepStatus.FAILED:
            fields["by_hand"] = True
        self.add("commit", **fields)

    def end(self, remains: Remains, outcome: Outcome) -> None:
        """An end that the face shows is an end, and is announced again."""
        snapshot = fold(self.found)
        said = Announcement(
            f"{self.run}.restored",
            remains.task_id,
            one_line((remains.face.title if remains.face else None) or remains.name or remains.task_id),
            str(outcome),
            end_summary(snapshot, outcome, "restored from its task.md"),
            remains.result if outcome is Outcome.COMPLETED else None,
            snapshot.counts(),
        )
        self.add("end", outcome=str(outcome), announcement=asdict(said))
        self.add("closed", outcome=str(outcome))


def _entry(label: str, block: Checkpoint) -> tuple[str | None, dict[str, Any]]:
    """The line of the journal that a checkpoint was the copy of; None for one that says nothing we know."""
    fields: dict[str, Any] = {"step": label, "try": bounded(block.try_number)}
    if block.status == "running":
        return "running", {**fields, "effect": block.effect, "args": block.args}
    if block.status == "raised" and block.error is not None:
        return "raised", {**fields, "error": block.error.to_json()}
    if block.status == "reopened":
        return "redo", {**fields, "why": "it was reopened"}
    if block.status in _COMMITS:
        return "commit", {**fields, **_committed(block)}
    return None, {}


def _committed(block: Checkpoint) -> dict[str, Any]:
    fields: dict[str, Any] = {"status": block.status}
    if block.args is not None:
        fields["args"] = block.args
    if block.result_file is not None and _RESULT_FILE.fullmatch(block.result_file):
        fields["result_file"] = block.result_file
    elif _can_be_stored(block.result):
        fields["result"] = block.result
    if block.error is not None:
        fields["error"] = block.error.to_json()
    if block.outputs:
        fields["outputs"] = [asdict(output) for output in block.outputs]
    if block.why:
        fields["why"] = block.why
    if block.by_hand:
        fields["by_hand"] = True
    return fields


def _can_be_stored(result: Json) -> bool:
    try:
        json.dumps(result, allow_nan=False)
    except ValueError:  # somebody wrote it by hand
        return False
    return True


def bounded(number: int) -> int:
    return number if 0 <= number < _MOST else 0


def _outcome(face: Checklist | None) -> Outcome | None:
    """The end that task.md shows; None while the task is open."""
    if face is None:
        return None
    if face.ended:
        return Outcome.COMPLETED
    if face.status is TaskStatus.FAILED:
        return Outcome.FAILED
    return Outcome.CANCELLED if face.status is TaskStatus.CANCELLED else None


def unmatched(remains: Remains) -> tuple[list[str], list[str]]:
    """The steps of task.md that the spec does not have, and those of the spec that task.md does not have."""
    found = steps(remains)
    there, wanted = {step.id.name for step in found}, set(remains.spec_names)
    return (
        [step.label for step in found if step.id.name not in wanted],
        [display(name) for name in remains.spec_names if name not in there],
    )
