"""The hand of the lock's holder: the journal first, then the step file, then the mark in task.md.

Whoever holds a task's lock, coordinator or worker, changes the task through one TaskWriter and nothing else does. All
of it is plain blocking code, also where a loop runs: a commit is one append and one sync, waited for where it is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from orchestrator import files
from orchestrator.core import handedit, names, results, stepfile
from orchestrator.core.checklist import Checklist
from orchestrator.core.lifecycle import FACE, check_transition, end_summary
from orchestrator.core.model import (
    INLINE_RESULT_BYTES,
    Announcement,
    Effect,
    Json,
    Output,
    StepError,
    StepId,
    StepStatus,
    TaskStatus,
)
from orchestrator.core.snapshot import Snapshot, StepState
from orchestrator.errors import Damaged
from orchestrator.face import Face, StepFiles, block_text
from orchestrator.ledger import Ledger
from orchestrator.report import retrospects
from orchestrator.store import Clock, Paths, announcement_to_json, seconds_of


class TaskWriter(Ledger):
    """All changes of one task. Made by `take_over`; to be closed before the lock is given up.

    Every method that records raises OSError or SyncFailed when the disk does not take it; then nothing after it may be
    believed and the holder has to stop.
    """

    def __init__(
        self,
        where: Paths,
        clock: Clock,
        lines: list[bytes],
        snapshot: Snapshot,
        face: Checklist,
        written: bytes | None,
    ) -> None:
        super().__init__(where, clock, lines, snapshot)
        self._face = Face(where.task_md, face, snapshot, written)
        self.steps = StepFiles(where.directory)
        self._result: dict[str, Any] = {}  # of the task, as its end has it

    # -- attempts ----------------------------------------------------------------------------------------------

    def begin_attempt(self, **fields: Any) -> str:
        """Record the next attempt, durably, before its worker exists. Returns its run id."""
        number = self.snapshot.attempt_number + 1
        self.run = self._run_of(number)
        self.record("attempt", sync=True, **fields)
        retrospects.mark_earlier(self.where, self.entries)  # whoever reopened it may have been killed before it did
        return self.run

    def record(self, kind: str, *, sync: bool, **fields: Any) -> None:
        had_ended = self.snapshot.end is not None
        before = [(s, s.status) for s in self.snapshot.steps.values()] if kind in ("redo", "handled") else []
        super().record(kind, sync=sync, **fields)
        for state, status in before:  # what a person ordered is in the step's file too, in case the journal is lost
            if state.status is not status:
                self.steps.tell(state)
        if had_ended and self.snapshot.end is None:  # a person's order has reopened the task
            retrospects.mark_earlier(self.where, self.entries)

    def started(self, **fields: Any) -> None:
        """The worker's first act: who it is. The status says `working` from here on."""
        self.record("started", sync=True, **fields)
        self._face.status(TaskStatus.WORKING)
        self.settle()

    def close_attempt(self, outcome: str, **fields: Any) -> None:
        """The attempt's last line. An attempt without it has died."""
        self.record("closed", sync=True, outcome=outcome, **fields)

    # -- steps -------------------------------------------------------------------------------------------------

    def identify(self, step: StepId, outputs: Collection[str] = ()) -> tuple[str, dict[str, Any]]:
        """The label of a step, and the fields that name a new one in the journal.

        Its file never has the name of one of its `outputs`, nor of a file that is there and is not its own.
        """
        known = self.snapshot.labels.get(step)
        if known is not None:
            planned = self.snapshot.steps[known].file
            return known, {"file": self._free_file(known, outputs)} if planned in outputs else {}
        label = names.label(step, ())
        line = self.snapshot.steps.get(label)
        if line is not None and line.foreign and not line.status.finished:  # or ours, of a journal line that was lost
            own = names.file_name(label, ())
            free = own.casefold() not in self.snapshot.files and self.steps.belongs(own, step.name)
            return label, {**names.unsaid(step, label), "file": own if free else line.file}
        label = names.label(step, self.snapshot.steps)
        file = names.file_name(label, self.snapshot.files)
        if file in outputs or not self.steps.belongs(file, step.name):
            file = self._free_file(label, [*outputs, file])
        return label, names.unsaid(step, label) | ({"file": file} if file != label + ".md" else {})

    def _free_file(self, label: str, besides: Iterable[str]) -> str:
        return names.file_name(label, {*self.snapshot.files, *(name.casefold() for name in besides)})

    def plan(self, steps: Iterable[StepId], after: str | None = None) -> None:
        """Record steps that lie ahead, behind `after` or at the end. Known ones stay where they are."""
        new = [step for step in steps if step not in self.snapshot.labels]
        if not new:
            return
        for step in new:  # one line each: the name of a file depends on those before it
            label, said = self.identify(step)
            self.record("plan", sync=False, steps=[{"step": label, **said}], **({"after": after} if after else {}))
            after = label if after else None
        self._journal.sync()
        self._show_all()
        self.settle(sync=True)

    def begin_try(
        self,
        step: StepId,
        number: int,
        *,
        effect: str,
        args: str,
        after: str | None = None,
        outputs: Collection[str] = (),
    ) -> StepState:
        """A try begins: `running`, step file, `[working]`, in this order; all on disk on return.

        Synced for `once` only: what may run twice is run again after a power cut that took the line away.
        """
        label, said = self.identify(step, outputs)
        if after is not None and label not in self.snapshot.steps and self.snapshot.order[-1] != after:
            said["after"] = after
        state = self.snapshot.steps.get(label)
        if state is not None:
            check_transition(state.status, StepStatus.WORKING, label)
        self.record(
            "running", sync=effect == Effect.ONCE, step=label, **said, **{"try": number}, effect=effect, args=args
        )
        state = self.snapshot.steps[label]
        self.steps.append(state, block_text(state, "running"))
        self._face.show(state, self.snapshot.before(label))
        self.settle()
        return state

    def note(self, label: str, text: str) -> None:
        """Append to the step's file what was thought or done. Not synced before the task ends."""
        self.steps.append(self.snapshot.steps[label], stepfile.escape_note(text))

    def raised(self, label: str, error: StepError) -> None:
        state = self.snapshot.steps[label]
        self.record("raised", sync=False, step=label, **{"try": state.tries}, error=error.to_json())
        self.steps.append(state, block_text(state, "raised"))

    def interrupted(self, label: str, why: str) -> None:
        """The try was stopped on purpose; it is refunded and runs again when work goes on."""
        self.record("interrupted", sync=False, step=label, **{"try": self.snapshot.steps[label].tries}, why=why)

    def commit(
        self,
        label: str,
        status: StepStatus,
        *,
        result: Json = None,
        error: StepError | None = None,
        outputs: Sequence[Output] = (),
        why: str = "",
        by_hand: bool = False,
    ) -> None:
        """The durable record that a step is done, skipped, failed for good, or uncertain.

        On return it survives a power cut. The mark in task.md follows with the next `settle`.
        """
        state = self.snapshot.steps[label]
        if not (state.by_hand and state.status is status is StepStatus.DONE):  # then only its result comes after
            check_transition(state.status, status, label)
        fields: dict[str, Any] = {"step": label, "try": state.tries, "status": status.value}
        if status is StepStatus.DONE:
            fields |= self._store_result(label, result)
        if error is not None:
            fields["error"] = error.to_json()
        if outputs:
            fields["outputs"] = [{"path": o.path, "size": o.size, "sha256": o.sha256} for o in outputs]
        if why:
            fields["why"] = why
        if by_hand:
            fields["by_hand"] = True
        self.record("commit", sync=True, **fields)
        self.steps.append(state, block_text(state, status.value))
        self._face.show(state, None)

    def _store_result(self, label: str, result: Json) -> dict[str, Any]:
        """A result above the inline limit goes to a file that is durable before the commit that names it."""
        text = results.dumps(result).encode()
        if len(text) <= INLINE_RESULT_BYTES:
            return {"result": result}
        digest = hashlib.sha256(text).hexdigest()
        stem = names.file_name(label, ()).encode()[:-3][:200].decode("utf-8", "ignore")  # 255 bytes with the rest
        path = f"results/{stem}-{digest[:16]}.json"
        self.make(self.where.results)
        files.replace(f"{self.where.directory}/{path}", text, sync=True)
        return {"result_file": path, "result_sha256": digest}

    def store_result(self, result: Json) -> str:
        """The whole result of the task, durable before its end is recorded. Returns the absolute path.

        Raises ValueError or TypeError for what JSON cannot hold.
        """
        text = results.text(result)
        self.make_room(path := f"{self.where.results}/result.json")
        files.replace(path, text, sync=True)
        self._result = results.end_fields(result, text)
        return path

    def result_of(self, state: StepState) -> Json:
        """A committed result. Raises Damaged when its file is gone, or not the one that was committed; OSError."""
        if state.result_file is None:
            return state.result
        path = f"{self.where.directory}/{state.result_file}"
        try:
            text = files.read(path)
            if hashlib.sha256(text).hexdigest()[:16] not in state.result_file:
                raise ValueError("it is not what was committed")
            return json.loads(text)
        except (FileNotFoundError, NotADirectoryError, ValueError, Damaged) as error:
            raise Damaged(
                f"the result of step {state.label!r} is lost: {path} is not what was committed",
                f"do it anew: orchestrator redo {self.where.task_id} {state.label!r}",
            ) from error

    # -- the face ----------------------------------------------------------------------------------------------

    def settle(self, *, sync: bool = False) -> None:
        """Bring task.md up to the journal. An edit that was saved meanwhile is merged, and the result written again."""
        for _ in range(100):  # an editor that saves faster than we write for ever is no editor
            displaced = self._face.flush(sync=sync)
            if displaced is None:
                return
            self.take_edits(displaced.text, displaced.before)

    def being_edited(self) -> bool:
        """Whether task.md has been touched since we wrote it or looked at it last. Costs one look at its time."""
        return self._face.touched()

    def look_for_edits(self) -> None:
        """Take over what was saved in task.md since we wrote it, though no mark of ours makes us write it now."""
        edited = self._face.edited()
        if edited is not None:
            self.take_edits(edited.text, edited.before)
            self.settle()

    def take_edits(self, text: bytes, before: bytes | None = None) -> None:
        """Take over what a person changed in task.md. Everything in it that is no mark is kept byte for byte.

        `before` is the text that was edited, when it is known: what it has already is not the person's.
        """
        face = Checklist.parse(text, self.snapshot.steps)
        if face.damaged:
            self._face.take(self._face.checklist, self.snapshot)
            return
        edited = None if before is None else Checklist.parse(before, self.snapshot.steps)
        for edit in handedit.edits(self.snapshot, face, edited):
            self._take(edit)
        self._face.take(face, self.snapshot)
        self._face.compare()
        self.show_status()

    def merge_displaced(self, text: bytes, finished: Collection[str] = ()) -> None:
        """Merge a text that a kill left beside task.md: our own, or an edit displaced in that very moment.

        Of the steps that were `finished` before task.md itself was looked at, it says nothing new: one that task.md has
        as `[redo]` was `[working done]` in the text that this one displaced.
        Its edits of marks are taken over; lines of it that task.md lacks are added at the end, as notes.
        """
        other = Checklist.parse(text, self.snapshot.steps)
        for edit in handedit.edits(self.snapshot, other):
            if not (isinstance(edit, handedit.DoneByHand | handedit.SkippedByHand) and edit.label in finished):
                self._take(edit)
        self._show_all()
        here = self._face.checklist.render()
        known = set(here.splitlines())
        steps = {step.line for step in other.steps}
        lost = [
            line
            for number, line in enumerate(text.splitlines(), 1)
            if number not in steps and line.strip() and line not in known and not line.startswith((b"#", b"["))
        ]
        if lost:
            self.take_edits(here.rstrip(b"\n") + b"\n\n" + b"\n".join(lost) + b"\n")
            self.settle(sync=True)

    def _take(self, edit: handedit.Edit) -> None:
        match edit:
            case handedit.NewStep(step, label, after):
                said = {**self.identify(step)[1], "step": label, "by_hand": True}
                self.record("plan", sync=True, steps=[said], **({"after": after} if after else {}))
            case handedit.DoneByHand(label):
                self.commit(label, StepStatus.DONE, by_hand=True, why="marked done in task.md")
            case handedit.SkippedByHand(label):
                self.commit(label, StepStatus.SKIPPED, by_hand=True, why="marked skipped in task.md")
            case _:
                kind, fields = handedit.entry(edit)
                self.record(kind, sync=True, **fields)

    def will_reopen(self, label: str) -> None:
        """Let task.md say `[redo]`, durably, before the journal reopens a finished step: should we die in between, a
        `[working done]` that still stands there would be taken for the word of a person."""
        if self.snapshot.steps[label].status.finished:
            self._face.order_redo(label)
            if self.snapshot.end is not None:
                self._face.status(TaskStatus.WORKING)  # `[end]` goes before the end does
            self.settle(sync=True)

    def show_all(self) -> None:
        """Bring task.md up to the journal after orders were carried out, durably."""
        self._show_all()
        self.show_status()
        self.settle(sync=True)

    def show_status(self) -> None:
        ended = self.snapshot.end
        if ended is not None or self.snapshot.attempts:
            self._face.status(FACE[ended["outcome"]] if ended is not None else TaskStatus.WORKING)

    def _show_all(self) -> None:
        before: str | None = None
        for label in self.snapshot.order:
            self._face.show(self.snapshot.steps[label], before)
            before = label

    # -- what is told -------------------------------------------------------------------------------------------

    def announcement(
        self, outcome: str, reason: str, *, hint: str = "", result: str | None = None, event: str = "end"
    ) -> Announcement:
        """What the main session will be told, to be recorded before it is. No other has its id."""
        snapshot = self.snapshot
        if snapshot.announced == self.run:  # it waited for a person, and the person's word ended it without a worker
            event = f"{event}-{snapshot.seq[self.run] + 1}"
        name = self._face.checklist.title or self.where.task_id
        begun = seconds_of(snapshot.begun) if snapshot.begun else self._clock()
        return Announcement(
            f"{self.run}.{event}",
            self.where.task_id,
            name,
            str(outcome),
            end_summary(snapshot, outcome, reason),
            result,
            snapshot.counts(),
            round(max(0.0, self._clock() - begun - snapshot.idle), 3),
            None,
            hint,
        )

    def wait_for_person(self, said: Announcement) -> None:
        """Close the attempt because a person has to decide; the task stays open."""
        self.settle(sync=True)
        self.close_attempt(said.status, announcement=announcement_to_json(said))

    # -- the end -----------------------------------------------------------------------------------------------

    def end(self, said: Announcement, **fields: Any) -> None:
        """The end of the task: outcome and announcement in one synced line, then its face.

        Step files are synced first; a crash anywhere in here leaves an end that the next look completes.
        """
        fields |= self._result if said.result is not None else {}
        self.complete_step_files()
        self.record("end", sync=True, outcome=said.status, announcement=announcement_to_json(said), **fields)
        self.show_end()
        self.write_retro()
        self.close_attempt(said.status)  # last: whoever finds it need not look whether the rest is there

    def write_retro(self) -> None:
        """Write task-retro.md. It is made from the journal and can be made again: its failure fails nothing."""
        name, status = self._face.checklist.title or self.where.task_id, str(self._face.checklist.status or "")
        retrospects.write_at_end(self.where, self.entries(), name=name, status=status)

    def show_end(self) -> None:
        """Make the face say what the journal says of the end. Idempotent."""
        if self.snapshot.end is not None:
            self.show_all()

    def complete_step_files(self) -> None:
        """Put back the blocks that an agent or a crash took from the step files, and make them durable."""
        for state in self.snapshot.steps.values():
            if state.tries or state.status.finished:
                self.steps.complete(state)
