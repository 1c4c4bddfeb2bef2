"""The face of a task while its lock is held: task.md, replaced when a mark changes, and the step files."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import NamedTuple

from orchestrator import files
from orchestrator.core import checklist, stepfile
from orchestrator.core.checklist import Checklist, display
from orchestrator.core.handedit import face_labels
from orchestrator.core.model import Checkpoint, Output, StepStatus, TaskStatus
from orchestrator.core.snapshot import Snapshot, StepState
from orchestrator.errors import Damaged

#: The tick of a file system's clock: two seconds at the most where it knows whole seconds only, else that of a kernel.
COARSE_SECONDS = 2.1
FINE_SECONDS = 0.05


class Displaced(NamedTuple):
    """A text of task.md that is not ours, and the one of ours that was edited to become it (None: not known).

    `temporary` is where it lies until it is merged and that is written, if it does not lie in task.md.
    """

    text: bytes
    before: bytes | None
    temporary: str | None = None


class Face:
    """task.md. Marks are changed in memory; `flush` replaces the file, once for all that changed since.

    `flush` gives back what it displaced when that is not what we wrote last: somebody saved an edit meanwhile.

    A text that has more in it than the journal could restore is written so that a power cut leaves the old or the new
    one. Any other may come up empty, and is made again.
    """

    __slots__ = ("_dirty", "_index", "_proven", "_restorable", "_stamp", "_stamped", "_written", "checklist", "path")

    def __init__(self, path: str, checklist: Checklist, snapshot: Snapshot, written: bytes | None) -> None:
        self.path = path
        self._written = written
        self._dirty = False
        self._stamp: tuple[int, ...] | None = None  # of the file as we wrote it, or looked at it, last
        self._stamped = 0.0  # when that was, on the monotonic clock
        self._proven = False  # whether any edit since would have another stamp
        self.take(checklist, snapshot)

    def take(self, checklist: Checklist, snapshot: Snapshot) -> None:
        """Make this text the face, brought up to what the journal says; every other byte of it is kept."""
        self.checklist = checklist
        self._restorable = _is_ours_alone(checklist)
        labels = face_labels(checklist, snapshot)
        self._index = {label: i for i, label in reversed(list(enumerate(labels)))}
        self._restore_order(labels, snapshot)
        before: str | None = None
        for label in snapshot.order:
            self.show(snapshot.steps[label], before)
            before = label

    def compare(self) -> None:
        """See to it that a text which was taken is written, though no mark of it changed: it may be there only here."""
        self._dirty = self._dirty or self.checklist.render() != self._written

    def _restore_order(self, labels: list[str], snapshot: Snapshot) -> None:
        rank = {label: i for i, label in enumerate(snapshot.order)}
        order = sorted(range(len(labels)), key=lambda i: rank.get(labels[i], len(rank)))
        if order != list(range(len(labels))) and set(labels) == set(rank):
            self.checklist.move(order)
            self._index = {labels[old]: new for new, old in enumerate(order)}
            self._dirty = True

    def show(self, state: StepState, after: str | None) -> None:
        """Give the step's line the mark of its status; a step without a line gets one behind `after`."""
        position = self._index.get(state.label)
        if position is None:
            self._add(state, after)
        elif self.checklist.steps[position].status is not _mark(state.status) or self.checklist.steps[position].redo:
            self.checklist.mark(position, state.status)
            self._dirty = True

    def unmark(self, label: str, *, redo: bool) -> None:
        """Mark a finished step `[redo]`, or as one that nobody knows the end of, until it is shown again."""
        position = self._index.get(label)
        if position is not None:
            self.checklist.mark_redo(position) if redo else self.checklist.mark(position, StepStatus.UNCERTAIN)
            self._dirty = True

    def _add(self, state: StepState, after: str | None) -> None:
        behind = self._index.get(after) if after is not None else None
        position = self.checklist.insert(behind, state.label, state.status)
        if position < len(self._index):  # in the middle: those behind it move on
            self._index = {k: v + 1 if v >= position else v for k, v in self._index.items()}
        self._index[state.label] = position
        self._dirty = True

    def status(self, status: TaskStatus) -> None:
        if self.checklist.status is not status:
            self.checklist.set_status(status)
            self._dirty = True
        if self.checklist.has_end != (status is TaskStatus.END):
            self.checklist.set_end(status is TaskStatus.END)
            self._dirty = True

    def flush(self, *, sync: bool = False) -> Displaced | None:
        if not self._dirty and (not sync or self._made_durable()):
            return None
        data = self.checklist.render()
        before = self._written
        whole = not self._restorable
        displaced, temporary = files.swap_in(self.path, data, expected=before, sync=sync, whole=whole)
        self._written, self._dirty = data, False
        self._remember(_stamp(self.path))
        if displaced is None or displaced == before:
            return None
        if displaced == data and temporary is not None:
            files.drop(temporary)
            return None
        return Displaced(displaced, before, temporary)

    def touched(self) -> bool:
        """Whether somebody has saved the file since. Costs a look at its time, and after each write one at its text."""
        stamp = _stamp(self.path)
        return stamp != self._stamp or not (stamp is None or self._proven or self._is_as_written(stamp))

    def _remember(self, stamp: tuple[int, ...] | None) -> None:
        self._stamp, self._stamped, self._proven = stamp, time.monotonic(), False

    def _is_as_written(self, stamp: tuple[int, ...]) -> bool:
        """An edit of the same length within one tick of the file system's clock shows in nothing but the text."""
        tick = COARSE_SECONDS if stamp[1] % 1_000_000_000 == 0 else FINE_SECONDS
        passed = time.monotonic() - self._stamped > tick
        try:
            same = files.read(self.path) == self._written
        except (OSError, Damaged):
            return False
        self._proven = same and passed
        return same

    def edited(self) -> Displaced | None:
        """The text of task.md when it is not what we wrote last. A file that cannot be read is none.

        Costs no more than `touched` when nobody has touched it.
        """
        if not self.touched():
            return None
        self._remember(_stamp(self.path))
        try:
            text = files.read(self.path)
            if text == self._written:
                return None
            before, self._written = self._written, files.read_settled(self.path, text)
        except (OSError, Damaged):
            return None
        return Displaced(self._written, before)

    def reject(self) -> None:
        """What was last seen in task.md is no text: the next `flush` writes ours again, and gives that back."""
        self._written, self._dirty = None, True

    def _made_durable(self) -> bool:
        """Sync the file as it lies, which a replacement would only repeat. False when it is not there."""
        try:
            files.sync_file(self.path)
        except FileNotFoundError:
            return False
        files.sync_directory(os.path.dirname(self.path))
        return True


def _is_ours_alone(face: Checklist) -> bool:
    """Whether nothing stands in the text but what would stand in a new one."""
    new = checklist.new(face.title or "", face.task_id or "", [step.name for step in face.steps])
    for index, step in enumerate(face.steps):
        new.mark(index, step.status)
    if face.status is not None:
        new.set_status(face.status)
    new.set_end(face.has_end)
    return new.render() == face.render()


def _mark(status: StepStatus) -> StepStatus:
    """An uncertain step is shown as `[working]`: who knows only the original tags finds the same resume point."""
    return StepStatus.WORKING if status is StepStatus.UNCERTAIN else status


def _stamp(path: str) -> tuple[int, ...] | None:
    """What changes when a file is replaced or written; None when it is not there."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class StepFiles:
    """The step files: appended to, never rewritten. A lost one is made again as far as the journal knows it."""

    __slots__ = ("_directory", "_seen")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: set[str] = set()

    def path(self, state: StepState) -> str:
        return f"{self._directory}/{state.file}"

    def append(self, state: StepState, text: str) -> None:
        path = self.path(state)
        if state.file not in self._seen:
            self._seen.add(state.file)
            if _is_ruined(path):
                files.set_aside(path, "replaced")
            text = self._heading(path, state) + text
        data = text.encode("utf-8", "replace")
        try:
            files.append(path, data)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES):
                raise
            files.set_aside(path, "replaced")  # an agent put a link or a directory there, or closed it to us
            files.append(path, stepfile.heading(state.id.name).encode("utf-8", "replace") + data)

    def _heading(self, path: str, state: StepState) -> str:
        """What of its heading the file lacks: all when it is not there, the rest when a kill or power cut tore it."""
        heading = stepfile.heading(state.id.name).encode("utf-8", "replace")
        try:
            there = files.read_head(path, len(heading))
        except FileNotFoundError:
            there = b""
        except Damaged:
            return ""
        except PermissionError:
            if not os.path.lexists(path) or os.access(path, os.R_OK):
                raise  # it passed already: that says nothing of the file
            return ""  # it is closed to us: what is appended takes its place
        return heading[len(there) :].decode("utf-8", "replace") if heading.startswith(there) else ""

    def read(self, state: StepState) -> str:
        try:
            return files.read(self.path(state)).decode("utf-8", "replace")
        except (FileNotFoundError, PermissionError, Damaged):
            return ""

    def belongs(self, file: str, name: str) -> bool:
        """Whether a file of this name may be the step's: none yet, a torn empty one, or its heading names the step."""
        path = f"{self._directory}/{file}"
        if not os.path.lexists(path):
            return True
        try:
            text = files.read(path).decode("utf-8", "replace")
        except (Damaged, OSError) as error:
            files.check_answer(error)
            return False
        return not text.strip("\0") or stepfile.parse(text).heading == display(name)

    def tell(self, state: StepState) -> None:
        """Append how the step stands."""
        self.append(state, stepfile.render_checkpoint(_last_block(state)))

    def complete(self, state: StepState) -> None:
        """Append the last block when an agent or a crash took it; make the file durable."""
        text = self.read(state)
        if not text.startswith("#"):  # torn: what is appended mends it
            self._seen.discard(state.file)
            text = "" if text[:1] == "\0" else text
        for missing in stepfile.missing(text, [_last_block(state)]):
            self.append(state, stepfile.render_checkpoint(missing))
        with contextlib.suppress(FileNotFoundError):
            files.sync_file(self.path(state))


def _is_ruined(path: str) -> bool:
    """Whether what lies there is no text: what is appended to that, nobody would find."""
    try:
        return b"\0" in files.read(path, files.TEXT_BYTES)
    except Damaged:
        return True
    except OSError:
        return False


#: What the last checkpoint of a step says when its status is no commit. Pending with tries behind it: an order came.
_OPEN = {StepStatus.WORKING: "running", StepStatus.PENDING: "reopened"}


def block_text(state: StepState, status: str) -> str:
    """The checkpoint of a step as its file has it."""
    return stepfile.render_checkpoint(_block(state, status))


def _last_block(state: StepState) -> Checkpoint:
    return _block(state, _OPEN.get(state.status, state.status.value))


def _block(state: StepState, status: str) -> Checkpoint:
    return Checkpoint(
        state.id.name,
        status,
        state.id.n,
        state.id.key,
        state.attempt,
        state.tries,
        state.at,
        state.effect,
        state.args,
        state.result,
        state.error,
        None,
        tuple(Output(o["path"], o["size"], o["sha256"]) for o in state.outputs),
        state.result_file,
        state.why,
        state.by_hand,
    )
