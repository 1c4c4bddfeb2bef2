"""How a holder of the lock begins: put in order what a killed one left, then write on."""

from __future__ import annotations

from orchestrator import damage, files, rebuilding, remains, store
from orchestrator.core import checklist, handedit, journal, reconcile
from orchestrator.core.checklist import Checklist
from orchestrator.core.model import TaskStatus
from orchestrator.core.snapshot import Snapshot
from orchestrator.errors import Damaged
from orchestrator.store import Clock, Paths, read_spec, timestamp
from orchestrator.writer import TaskWriter


def take_over(where: Paths, clock: Clock, *, thorough: bool = False) -> TaskWriter:
    """Begin to hold a task whose lock the caller has and whose last worker is dead.

    Temporaries are swept (a displaced edit in one is merged), a torn or holed tail of the journal is cut off, what
    cannot be read is set aside and made again from what is left, edits of task.md are taken over. `thorough` looks into
    every step file as well. `notices` of the writer say what was done. Raises Damaged when neither journal nor face can
    be read; OSError as it comes.
    """
    stamp = timestamp(clock()).replace(":", "")
    notices = list(damage.open_up(where, stamp))
    store.check_readable(where)
    for _ in files.sweep(where.inner, where.logs, where.results):
        pass
    lines, snapshot, said, whole = _sound_journal(where, stamp)
    notices += said
    if not snapshot.lines and (data := rebuilding.rebuild(where, timestamp(clock()), stamp)) is not None:
        lines, snapshot = _fold(data)
        notices.append("the journal was lost: made again from task.md and the step files")
    face, text = _sound_face(where, snapshot, stamp, notices)
    edited = bool(handedit.edits(snapshot, face))
    if edited:  # somebody may be saving right now
        text = files.read_settled(where.task_md, text)
    writer = TaskWriter(where, clock, lines, snapshot, face, text)
    writer.notices.extend(notices)
    if thorough or edited or text is None or not whole:
        _take_back(writer)
    finished = {label for label, state in snapshot.steps.items() if state.status.finished}
    if text is not None:
        writer.take_edits(text)
    else:
        writer.show_all()
    for path, content in files.sweep(where.directory):
        if path.endswith("task.md") and not writer.merge_displaced(content, finished):
            writer.set_face_aside(path)
    writer.settle()
    mended = damage.put_right(writer, stamp) if thorough else damage.restore_result(writer, stamp)
    writer.notices.extend(mended)
    return writer


def _take_back(writer: TaskWriter) -> None:
    """Add to the journal what it has lost and the step files prove: each commit with its result (`core.reconcile`)."""
    where, snapshot = writer.where, writer.snapshot
    found = reconcile.ahead(snapshot, remains.texts(where.directory)[0], remains.attempts_logged(where))
    if not found.lines:
        return
    writer.take_back(found)
    labels = dict.fromkeys(str(fields["step"]) for kind, fields in found.lines if kind == "commit")
    writer.notices.append(
        f"the journal had lost lines: taken back from the step files"
        f"{': ' + ', '.join(map(repr, labels)) if labels else ''}"
    )


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


def _sound_journal(where: Paths, stamp: str) -> tuple[list[bytes], Snapshot, list[str], bool]:
    """The good lines of the journal, which on return are all that the file holds, and whether it had none but them.

    After an attempt that did not close, the prefix is copied to a new file, synced and renamed, even if it looks whole:
    what a page cache shows after a failed sync need not be on the disk.
    """
    try:
        data = files.read(where.journal, files.JOURNAL_BYTES)
    except FileNotFoundError:
        return [], Snapshot(), [], True
    except Damaged as error:
        aside = files.set_aside(where.journal, stamp)
        return [], Snapshot(), [f"{error.what}: moved to {aside}"], False
    reading = journal.read(data)
    lines, snapshot = _fold(data if not reading.damaged else b"".join(map(journal.encode, reading.entries)))
    notices: list[str] = []
    if not lines and b"\n" in data:  # as it is: it is set aside when another is made
        return [], snapshot, notices, False
    if reading.damaged:
        files.replace(f"{where.journal}.damaged-{stamp}", data, sync=True)
        notices.append(
            f"line {reading.damaged[0]} of the journal is damaged: the good lines were kept, a copy lies beside it"
        )
    if reading.damaged or reading.torn or snapshot.unclosed is not None:
        files.replace(where.journal, b"".join(lines), sync=True)
    return lines, snapshot, notices, not (reading.damaged or reading.torn)


def _sound_face(where: Paths, snapshot: Snapshot, stamp: str, notices: list[str]) -> tuple[Checklist, bytes | None]:
    """task.md as it lies; one that is gone or unreadable is made again from the journal, and the old one set aside."""
    try:
        text = files.read(where.task_md, files.TEXT_BYTES)
        face = Checklist.parse(text, snapshot.steps)
        torn = (face.task_id != where.task_id or b"[start done]" not in text) and _is_torn_head(text, where)
        if not torn and not face.damaged:
            return face, text
    except FileNotFoundError:
        notices.append("task.md was gone: made again from the journal")
        return checklist.new(_name(where), where.task_id), None
    except (Damaged, PermissionError):
        pass
    aside = files.set_aside(where.task_md, stamp)
    notices.append(f"task.md could not be read: moved to {aside}, made again from the journal")
    return checklist.new(_name(where), where.task_id), None


def _is_torn_head(text: bytes, where: Paths) -> bool:
    """Whether it is the beginning of what we write, with nobody's words in it: a power cut tore an unsynced mark."""
    head = checklist.new(_name(where), where.task_id)
    return any(_with_status(head, status).startswith(text) for status in TaskStatus)


def _with_status(face: Checklist, status: TaskStatus) -> bytes:
    face.set_status(status)
    return face.render()


def _name(where: Paths) -> str:
    """What the task is called, when its task.md cannot say it any more."""
    try:
        return read_spec(where).name
    except (Damaged, OSError):
        return where.task_id
