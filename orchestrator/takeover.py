"""How a holder of the lock begins: put in order what a killed one left, then write on."""

from __future__ import annotations

from orchestrator import files, rebuilding, store
from orchestrator.core import checklist, handedit, journal
from orchestrator.core.checklist import Checklist
from orchestrator.core.snapshot import Snapshot
from orchestrator.errors import Damaged
from orchestrator.store import Clock, Paths, read_spec, timestamp
from orchestrator.writer import TaskWriter


def take_over(where: Paths, clock: Clock) -> TaskWriter:
    """Begin to hold a task whose lock the caller has and whose last worker is dead.

    Temporaries are swept (a displaced edit in one is merged), a torn or holed tail of the journal is cut off, what
    cannot be read is set aside and made again from what is left, edits of task.md are taken over. `notices` of the
    writer say what was done. Raises Damaged when neither journal nor face can be read; OSError as it comes.
    """
    store.check_readable(where)
    stamp = timestamp(clock()).replace(":", "")
    for _ in files.sweep(where.inner, where.logs, where.results):
        pass
    lines, snapshot, notices = _sound_journal(where, stamp)
    if not snapshot.lines and (data := rebuilding.rebuild(where, timestamp(clock()), stamp)) is not None:
        lines, snapshot = _fold(data)
        notices.append("the journal was lost: made again from task.md and the step files")
    face, text = _sound_face(where, snapshot, stamp, notices)
    if handedit.edits(snapshot, face):  # somebody may be saving right now
        text = files.read_settled(where.task_md, text)
    writer = TaskWriter(where, clock, lines, snapshot, face, text)
    writer.notices.extend(notices)
    finished = {label for label, state in snapshot.steps.items() if state.status.finished}
    if text is not None:
        writer.take_edits(text)
    else:
        writer.show_status()
    for path, content in files.sweep(where.directory):
        if path.endswith("task.md"):
            writer.merge_displaced(content, finished)
    writer.settle()
    return writer


def continue_attempt(where: Paths, clock: Clock, run: str) -> TaskWriter | None:
    """Go on with the attempt that was just begun for us; None when it is not ours any more (the fence)."""
    data = files.read(where.journal, files.JOURNAL_BYTES)
    lines, snapshot = _fold(data)
    attempt = snapshot.unclosed
    if attempt is None or attempt.run != run or attempt.identity is not None:
        return None
    notices: list[str] = []
    face, text = _sound_face(where, snapshot, timestamp(clock()).replace(":", ""), notices)
    edited = handedit.edits(snapshot, face)  # since our starter has looked: not ours to overwrite, but to take over
    writer = TaskWriter(where, clock, lines, snapshot, face, None if edited else text)
    writer.notices.extend(notices)
    return writer


def _fold(data: bytes) -> tuple[list[bytes], Snapshot]:
    lines: list[bytes] = []
    snapshot = Snapshot()
    for line in data.split(b"\n"):
        entry = journal.decode(line)
        if entry is not None:
            lines.append(line + b"\n")
            snapshot.apply(entry)
    return lines, snapshot


def _sound_journal(where: Paths, stamp: str) -> tuple[list[bytes], Snapshot, list[str]]:
    """The good lines of the journal, which on return are all that the file holds.

    After an attempt that did not close, the prefix is copied to a new file, synced and renamed, even if it looks whole:
    what a page cache shows after a failed sync need not be on the disk.
    """
    try:
        data = files.read(where.journal, files.JOURNAL_BYTES)
    except FileNotFoundError:
        return [], Snapshot(), []
    except Damaged as error:
        aside = files.set_aside(where.journal, stamp)
        return [], Snapshot(), [f"{error.what}: moved to {aside}"]
    reading = journal.read(data)
    lines, snapshot = _fold(data if not reading.damaged else b"".join(map(journal.encode, reading.entries)))
    notices: list[str] = []
    if not lines and b"\n" in data:  # as it is: it is set aside when another is made
        return [], snapshot, notices
    if reading.damaged:
        files.replace(f"{where.journal}.damaged-{stamp}", data, sync=True)
        notices.append(
            f"line {reading.damaged[0]} of the journal is damaged: the good lines were kept, a copy lies beside it"
        )
    if reading.damaged or reading.torn or snapshot.unclosed is not None:
        files.replace(where.journal, b"".join(lines), sync=True)
    return lines, snapshot, notices


def _sound_face(where: Paths, snapshot: Snapshot, stamp: str, notices: list[str]) -> tuple[Checklist, bytes | None]:
    """task.md as it lies; one that is gone or unreadable is made again from the journal, and the old one set aside."""
    try:
        text = files.read(where.task_md)
        face = Checklist.parse(text, snapshot.steps)
        if not face.damaged:
            return face, text
    except FileNotFoundError:
        notices.append("task.md was gone: made again from the journal")
        return checklist.new(_name(where), where.task_id), None
    except Damaged:
        pass
    aside = files.set_aside(where.task_md, stamp)
    notices.append(f"task.md could not be read: moved to {aside}, made again from the journal")
    return checklist.new(_name(where), where.task_id), None


def _name(where: Paths) -> str:
    """What the task is called, when its task.md cannot say it any more."""
    try:
        return read_spec(where).name
    except (Damaged, OSError):
        return where.task_id
