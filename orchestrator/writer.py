"""The hand of the lock's holder: the journal first, then the step file, then the mark in task.md.

Whoever holds a task's lock, coordinator or worker, changes the task through one TaskWriter and nothing else does. All
of it is plain blocking code, also where a loop runs: a commit is one append and one sync, waited for where it is made.
"""

from __future__ import annotations

from typing import Any

from orchestrator import files
from orchestrator.core import results
from orchestrator.core.lifecycle import end_summary, one_line
from orchestrator.core.model import Announcement, Json, TaskStatus
from orchestrator.report import retrospects
from orchestrator.stepwriter import StepWriter
from orchestrator.store import announcement_to_json, seconds_of


class TaskWriter(StepWriter):
    """All changes of one task. Made by `take_over`; to be closed before the lock is given up.

    Every method that records raises OSError or SyncFailed when the disk does not take it; then nothing after it may be
    believed and the holder has to stop.
    """

    # -- attempts ----------------------------------------------------------------------------------------------

    def begin_attempt(self, **fields: Any) -> str:
        """Record the next attempt, durably, before its worker exists. Returns its run id."""
        number = self.snapshot.attempt_number + 1
        self.run = self._run_of(number)
        self.record("attempt", sync=True, **fields)
        retrospects.mark_earlier(self.where, self.entries)  # whoever reopened it may have been killed before it did
        return self.run

    def started(self, **fields: Any) -> None:
        """The worker's first act: who it is. The status says `working` from here on."""
        self.record("started", sync=True, **fields)
        self._face.status(TaskStatus.WORKING)
        self.settle()

    def close_attempt(self, outcome: str, **fields: Any) -> None:
        """The attempt's last line. An attempt without it has died."""
        self.record("closed", sync=True, outcome=outcome, **fields)

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
            one_line(name),
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

    def store_result(self, result: Json) -> str:
        """The whole result of the task, durable before its end is recorded. Returns the absolute path.

        Raises ValueError or TypeError for what JSON cannot hold.
        """
        text = results.text(result)
        self.make_room(path := f"{self.where.results}/result.json")
        files.replace(path, text, sync=True)
        self._result = results.end_fields(result, text)
        return path

    def end(self, said: Announcement, **fields: Any) -> None:
        """The end of the task: outcome and announcement in one synced line, then its face.

        Step files are synced first; a crash anywhere in here leaves an end that the next look completes.
        """
        fields |= self._result if said.result is not None else {}
        self.complete_step_files()
        self.record("end", sync=True, outcome=said.status, announcement=announcement_to_json(said), **fields)
        self.show_all()
        self.write_retro()
        self.close_attempt(said.status)  # last: whoever finds it need not look whether the rest is there

    def write_retro(self) -> None:
        """Write task-retro.md. It is made from the journal and can be made again: its failure fails nothing."""
        name, status = self._face.checklist.title or self.where.task_id, str(self._face.checklist.status or "")
        retrospects.write_at_end(self.where, self.entries(), name=name, status=status)

    def show_end(self) -> None:
        """Make the face say what the journal says of the end. Idempotent."""
        if self.snapshot.end is None:
            return
        self.show_all()
        if not self.snapshot.end_closed and self.snapshot.unclosed is None:  # who ended it was killed before this
            self.write_retro()
            self.close_attempt(str(self.snapshot.end["outcome"]))

    def complete_step_files(self) -> None:
        """Put back the blocks that an agent or a crash took from the step files, and make them durable."""
        for state in self.snapshot.steps.values():
            if state.tries or state.status.finished:
                self.steps.complete(state)
        files.sync_directory(self.where.directory)  # their names
