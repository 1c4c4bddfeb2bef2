"""What the lock's holder writes of a task's steps: the journal first, then the step file, then the mark in task.md.

Edits of task.md by a person are taken over here too, and merged with what is written. `TaskWriter` is the whole of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from orchestrator import files
from orchestrator.core import handedit, names, results, stepfile, verbs
from orchestrator.core.checklist import Checklist
from orchestrator.core.lifecycle import FACE, check_transition
from orchestrator.core.model import INLINE_RESULT_BYTES, Effect, Json, Output, StepError, StepId, StepStatus, TaskStatus
from orchestrator.core.snapshot import Snapshot, StepState
from orchestrator.core.verbs import Verb
from orchestrator.errors import Damaged
from orchestrator.face import Face, StepFiles, block_text
from orchestrator.ledger import Ledger
from orchestrator.report import retrospects
from orchestrator.store import Clock, Paths, read_requests


class StepWriter(Ledger):
    """The part of a TaskWriter that knows the steps, their files and the face."""

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
        self._owes_sync = False  #: what task.md says on disk must not be read there again: the next write is synced

    def record(self, kind: str, *, sync: bool, **fields: Any) -> None:
        had_ended = self.snapshot.end is not None
        before = [(s, s.status) for s in self.snapshot.steps.values()] if kind in ("redo", "handled") else []
        super().record(kind, sync=sync, **fields)
        for state, status in before:  # what a person ordered is in the step's file too, in case the journal is lost
            if state.status is not status:
                self.steps.tell(state)
        if had_ended and self.snapshot.end is None:  # a person's order has reopened the task
            retrospects.mark_earlier(self.where, self.entries)

    # -- steps -------------------------------------------------------------------------------------------------

    def identify(self, step: StepId, outputs: Collection[str] = ()) -> tuple[str, dict[str, Any]]:
        """The label of a step, and the fields that name a new one in the journal.

        Its file never has the name of one of its `outputs`, nor of a file that is there and is not its own.
        """
        known = self.snapshot.labels.get(step)
        if known is not None:
            state = self.snapshot.steps[known]
            said = names.unsaid(step, known) if state.foreign else {}  # its first try says whose it is (core/snapshot)
            return known, said | ({"file": self._free_file(known, outputs)} if state.file in outputs else {})
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
        self._face.show(state, self.snapshot.before(label) if by_hand else None)

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
        merged: list[str] = []
        for _ in range(100):  # an editor that saves faster than we write for ever is no editor
            displaced = self._face.flush(sync=sync or self._owes_sync)
            if displaced is None:
                break
            taken = self.take_edits(displaced.text, displaced.before)
            if displaced.temporary is not None and taken:
                merged.append(displaced.temporary)
            elif displaced.temporary is not None:
                self.set_face_aside(displaced.temporary)
            self._owes_sync = True  # what was displaced goes only when what has become of it is durable
        else:
            return
        self._owes_sync = False
        for temporary in merged:
            files.drop(temporary)
        if merged:
            files.sync_directory(self.where.directory)

    def being_edited(self) -> bool:
        """Whether task.md has been touched since we wrote it or looked at it last. Costs one look at its time."""
        return self._face.touched()

    def look_for_edits(self) -> None:
        """Take over what was saved in task.md since we wrote it, though no mark of ours makes us write it now."""
        edited = self._face.edited()
        if edited is not None:
            if not self.take_edits(edited.text, edited.before):
                self._face.reject()
            self.settle()

    def take_edits(self, text: bytes, before: bytes | None = None) -> bool:
        """Take over what a person changed in task.md. Everything in it that is no mark is kept byte for byte.

        `before` is the text that was edited, when it is known: what it has already is not the person's. False when it
        is damaged: then nothing of it is taken, and it is to be kept beside task.md.
        """
        face = Checklist.parse(text, self.snapshot.steps)
        if face.damaged:
            self._face.take(self._face.checklist, self.snapshot)
            return False
        edited = None if before is None else Checklist.parse(before, self.snapshot.steps)
        for edit in handedit.edits(self.snapshot, face, edited):
            self._take(edit)
        self._face.take(face, self.snapshot)
        self._face.compare()
        self.show_status()
        return True

    def set_face_aside(self, temporary: str) -> None:
        """Keep beside task.md what lay in its place and is no text."""
        aside = files.set_aside(temporary, "replaced", beside=self.where.task_md)
        self.notices.append(f"task.md could not be read: moved to {aside}, made again from the journal")

    def merge_displaced(self, text: bytes, finished: Collection[str] = ()) -> bool:
        """Merge a text that a kill left beside task.md: our own, or an edit displaced in that very moment.

        Of the steps that were `finished` before task.md itself was looked at, it says nothing new: one that task.md has
        as `[redo]` was `[working done]` in the text that this one displaced.
        Its edits of marks are taken over; lines of it that task.md lacks are added at the end, as notes. False when it
        is damaged, and has more in it than a power cut makes of a text of ours: then it is to be kept beside task.md.
        """
        other = Checklist.parse(text, self.snapshot.steps)
        if other.damaged:
            here = self._face.checklist.render()
            return all(part in here for line in text.splitlines() for part in line.split(b"\0"))
        for edit in handedit.edits(self.snapshot, other):
            if not self._is_stale(edit, finished):
                self._take(edit)
        self._show_all()
        here = self._face.checklist.render()
        known = set(here.splitlines())
        if not text.endswith(b"\n") and any(line.startswith(text.rpartition(b"\n")[2]) for line in known):
            text = text.rpartition(b"\n")[0]  # one of ours, cut off while it was written
        steps = {step.line for step in other.steps}
        lost = [
            line
            for number, line in enumerate(text.splitlines(), 1)
            if number not in steps and line.strip() and line not in known and not line.startswith((b"#", b"["))
        ]
        if lost:
            self.take_edits(here.rstrip(b"\n") + b"\n\n" + b"\n".join(lost) + b"\n")
            self.settle(sync=True)
        return True

    def _is_stale(self, edit: handedit.Edit, finished: Collection[str]) -> bool:
        """Whether a mark says only what was true before its step was reopened."""
        if not isinstance(edit, handedit.DoneByHand | handedit.SkippedByHand):
            return False
        state = self.snapshot.steps.get(edit.label)
        return edit.label in finished or (state is not None and state.committed > 0)

    def _take(self, edit: handedit.Edit) -> None:
        self._owes_sync = True
        kind, fields = handedit.entry(edit)
        if isinstance(edit, handedit.RedoByHand) and edit.label in self._ordered_anew():
            return  # our own mark: whoever wrote it was killed before he had recorded the order
        if isinstance(edit, handedit.DoneByHand | handedit.SkippedByHand):
            self.commit(edit.label, StepStatus(fields["status"]), by_hand=True, why=fields["why"])
            return
        if isinstance(edit, handedit.NewStep):
            fields["steps"][0] |= self.identify(edit.id)[1]  # with a file of its own
        self.record(kind, sync=True, **fields)

    def _ordered_anew(self) -> set[str]:
        """The steps of the orders to redo that are due and will be carried out."""
        due = (r for r in read_requests(self.where) if r["verb"] == Verb.REDO and r["id"] not in self.snapshot.handled)
        return {str(request["step"]) for request in due if verbs.refusal(self.snapshot, request) is None}

    def will_reopen(self, label: str, *, redo: bool = True) -> None:
        """Let task.md say `[redo]` (or `[working]`), durably, before the journal reopens a finished step: should we die
        in between, a `[working done]` that still stands there would be taken for the word of a person."""
        if self.snapshot.steps[label].status.finished:
            self._face.unmark(label, redo=redo)
            if self.snapshot.end is not None:
                self._face.status(TaskStatus.WORKING)  # `[end]` goes before the end does
            self.settle(sync=True)
            self._owes_sync = True

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
