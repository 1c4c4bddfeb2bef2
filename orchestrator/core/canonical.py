"""A task.md rewritten as we write it: the same steps, status and end, and every note. Pure.

What the reader tolerates has a code (`scan.Finding`); `_FIXES` says line by line what becomes of it. A text that this
gives another meaning (names that repeat, fences within fences) is regrouped: the checklist first, all else below a line
`---`, where nothing is read as a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from orchestrator.core import names, tags
from orchestrator.core.checklist import Checklist, FaceStep, Finding
from orchestrator.core.model import StepId, StepStatus, TaskStatus

#: What only a person can put right, or what is kept as it is. All else that the reader reports is mended.
LEFT: Mapping[str, str] = {
    "empty": "there is nothing to rewrite",
    "nul": "what it said is not known",
    "unknown-tag": "a typing error, or a note: nobody but its writer knows",
    "broken-checkbox": "a typing error, or a note: nobody but its writer knows",
    "end-with-open-steps": "either the step is done or the task is not",
    "steps-after-break": "notes, or steps that were moved there",
    "bad-bytes": "the bytes are kept",
    "front-matter": "it belongs to another tool",
    "no-title": "what the task is called is not known here",
    "no-task-id": "which task it is is not known here",
}

#: Codes that whole-file changes of `Checklist` take care of.
_BY_CHECKLIST = frozenset(
    {"append-style", "status-contradiction", "end-in-template", "end-twice", "no-status", "unknown-status", "torn-line"}
)
_LANGUAGES = frozenset({"", "text", "txt", "plain", "plaintext", "md", "markdown"})
_ROUNDS = 8  # one fence within another at most so often


def canonical(data: bytes, *, task_id: str | None = None, title: str | None = None, known: Iterable[str] = ()) -> bytes:
    """The text as we write it; the same bytes when nothing is to be mended. `known` as for `Checklist.parse`.

    task_id, title: what the headings say when they are missing, where that is known.
    """
    known = set(known)
    found = Checklist.parse(data, known)
    given = _given(found, task_id, title)
    if found.damaged or not is_checklist(found) or not _mendable(data, found, given):
        return data
    mended = _mended(data, given, known)
    return mended if _says_the_same(found, mended) else _regrouped(data, found, given)


def is_checklist(found: Checklist) -> bool:
    """Whether anything in a text says that it is a task.md at all."""
    return bool(found.steps or found.has_end or found.status) or not any(f.code == "no-start" for f in found.findings)


def left(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.code in LEFT]


def _given(found: Checklist, task_id: str | None, title: str | None) -> dict[str, str]:
    wanted = {"task_id": task_id if not found.task_id else None, "title": title if not found.title else None}
    return {field: value for field, value in wanted.items() if value}


def _mendable(data: bytes, found: Checklist, given: Mapping[str, str]) -> bool:
    if any(f.code == "steps-after-break" for f in found.findings):
        return False  # with a list begun before the break, nobody would be told any more
    return bool(given) or not data.endswith(b"\n") or any(f.code not in LEFT for f in found.findings)


def _status(found: Checklist) -> TaskStatus:
    """What the heading is to say, without a contradiction to what the text as a whole means."""
    if found.ended:
        return TaskStatus.END
    if found.status in (None, TaskStatus.END):
        return TaskStatus.WORKING if found.steps else TaskStatus.START
    return found.status


# -- line by line --------------------------------------------------------------------------------------------------


def _mended(data: bytes, given: Mapping[str, str], known: set[str]) -> bytes:
    for _ in range(_ROUNDS):
        before, found = data, Checklist.parse(data, known)
        if not found.findings and before.endswith(b"\n"):
            break
        data = _as_a_whole(found, given).render()
        data = _line_by_line(Checklist.parse(data, known), data)
        if data == before:
            break
    return data


def _as_a_whole(found: Checklist, given: Mapping[str, str]) -> Checklist:
    """One line for each step, one end, headings that agree with it."""
    odd = next((f for f in found.findings if f.code == "unknown-status"), None)
    ended, status = found.ended, _status(found)
    if {f.code for f in found.findings} & _BY_CHECKLIST:
        found.move(range(len(found.steps)))
        found.set_end(ended)
        if odd is None:
            found.set_status(status)
    if "title" in given:
        found.set_title(given["title"])
    if "task_id" in given:
        found.set_task_id(given["task_id"])
    return found


def _line_by_line(found: Checklist, data: bytes) -> bytes:
    lines = _lines(data)
    changed: dict[int, list[str]] = {}
    behind: list[str] = []
    for finding in found.findings:
        if finding.line is not None and (fix := _FIXES.get(finding.code)) is not None:
            at = finding.line - 1
            changed[at] = fix(_Line(lines, at, found))
        if finding.code == "open-fence" and finding.line is not None and not _is_whole(found, finding.line):
            behind = [tags.fence_opened(lines[finding.line - 1].lstrip()) or "```"]
    for at in _closing_fences(found, lines):
        changed[at] = []
    if any(f.code == "no-start" for f in found.findings):
        at = found.place()
        changed[at] = ["[start done]", *changed.get(at, lines[at : at + 1])]
    new = [line for at in range(max(len(lines), *changed, 0) + 1) for line in changed.get(at, lines[at : at + 1])]
    return _joined([*_without_blank_end(new), *behind])


def _without_blank_end(lines: list[str]) -> list[str]:
    return lines[:-1] if lines and not lines[-1] else lines


def _joined(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


class _Line:
    """A line to be mended, with what stands around it."""

    def __init__(self, lines: Sequence[str], at: int, found: Checklist) -> None:
        self.text = lines[at]
        self.found = found


def _tag_line(line: _Line) -> list[str]:
    """A tag as we write it; a comment or a text behind it gets a line of its own."""
    read = tags.read_tag(line.text)
    if read is None:
        return [line.text]
    name = tags.fold(read.raw)
    if read.tag in tags.STATUS_OF:
        return [f"[{read.tag}] {name}", *_notes(read.comment)] if name else [f"> {line.text.strip()}"]
    return [f"[{read.tag}]", *_notes(name), *_notes(read.comment)]


def _head_line(line: _Line) -> list[str]:
    read = tags.heading(line.text.lstrip())
    if read is None:
        return [line.text]
    field, value, _ = read
    comment = line.text[tags.cut_comment(line.text) :].strip()
    return [tags.head_line(field, value), *_notes(comment)]


def _unknown_status(line: _Line) -> list[str]:
    """The status that the text as a whole means; the word that none is stays as a comment."""
    read = tags.heading(line.text.lstrip())
    word = (read[1] if read else line.text).replace("--", "- -")
    return [tags.head_line("status", _status(line.found).value), f"<!-- Status: {word} -->"]


def _notes(text: str) -> list[str]:
    """A text on a line of its own, quoted when it would be read as anything but a note."""
    if not text:
        return []
    if text.startswith("<!--") and "-->" in text:
        return [text]
    plain = tags.read_tag(text) is None and text[:1] not in "#>`~-*_<" and not tags.unknown_tag(text)
    return [text if plain else f"> {text}"]


def _closed_comment(line: _Line) -> list[str]:
    return [f"{line.text.rstrip()} -->"]


def _fence_line(line: _Line) -> list[str]:
    """Nothing is left of a fence around it all, but words behind its marks that name no language."""
    words = line.text.strip().lstrip("`~").strip()
    return [] if words.lower() in _LANGUAGES else _notes(words)


def _nothing(_line: _Line) -> list[str]:
    return []


_FIXES: Mapping[str, Callable[[_Line], list[str]]] = {
    **dict.fromkeys(tags.TOLERATED, _tag_line),
    "heading-form": _head_line,
    "unknown-status": _unknown_status,
    "open-comment": _closed_comment,
    "whole-fence": _fence_line,
    "leading-break": _nothing,
}

#: Every code that is mended; a reader that reports another is to say here or in LEFT what becomes of it.
MENDED = frozenset({*_FIXES, *_BY_CHECKLIST, "bom", "crlf", "no-start", "open-fence"})


def _is_whole(found: Checklist, line: int) -> bool:
    return any(f.code == "whole-fence" and f.line == line for f in found.findings)


def _closing_fences(found: Checklist, lines: Sequence[str]) -> Iterator[int]:
    """The last line of the fence around the whole checklist; there is none when it is never closed."""
    for finding in found.findings:
        if finding.code == "whole-fence" and finding.line is not None:
            marks = tags.fence_opened(lines[finding.line - 1].lstrip()) or "```"
            ends = [at for at in range(finding.line, len(lines)) if tags.fence_closed(lines[at], marks)]
            yield from ends[:1]


# -- or as a whole -------------------------------------------------------------------------------------------------


def _says_the_same(found: Checklist, mended: bytes) -> bool:
    back = Checklist.parse(mended)
    if any(finding.code not in LEFT for finding in back.findings):
        return False
    return (_essence(back), back.status) == (_essence(found), _status(found))


def _essence(found: Checklist) -> tuple[list[tuple[str, StepStatus, bool]], bool, int | None]:
    return [(step.name, step.status, step.redo) for step in found.steps], found.ended, found.resume


def _regrouped(data: bytes, found: Checklist, given: Mapping[str, str]) -> bytes:
    """The checklist, and below a line `---` all that is no part of it."""
    lines = _lines(data)
    title, task_id = found.title or given.get("title"), found.task_id or given.get("task_id")
    new = lines[: found.front()] if any(f.code == "front-matter" for f in found.findings) else []
    for field, value in (("title", title), ("status", _status(found).value), ("task_id", task_id)):
        new += [tags.head_line(field, value)] if value else []
    new += ["", "[start done]", *_step_lines(found.steps), *(["[end]"] if found.ended else [])]
    own = found.own_lines()
    notes = [note for at, line in enumerate(lines) for note in _note_in(line, own=at in own)]
    if any(f.code == "torn-line" for f in found.findings) and notes and tags.torn_tag(notes[-1]):
        notes.pop()
    return _joined([*new, *(["", "---", *_without_blank_end(notes)] if any(map(str.strip, notes)) else [])])


def _lines(data: bytes) -> list[str]:
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    return (text.replace("\r\n", "\n") if "\r\n" in text else text).split("\n")


def _step_lines(steps: Sequence[FaceStep]) -> Iterator[str]:
    """One line for each; a name that repeats gets the label that we give its n-th step."""
    taken = {step.name for step in steps}
    counted: dict[str, int] = {}
    for step in steps:
        n = counted[step.name] = counted.get(step.name, 0) + 1
        label = step.name if n == 1 else names.label(StepId(step.name, n), taken)
        taken.add(label)
        yield f"[{tags.REDO if step.redo else tags.TAG_OF[step.status]}] {label}"


def _note_in(line: str, *, own: bool) -> list[str]:
    """What of a line is a note: all of it, or what stands behind a tag or a heading."""
    if not own:
        return [line]
    read = tags.read_tag(line)
    if read is None:
        comment = line[tags.cut_comment(line) :].strip()
        return [comment] if comment else []
    said = [read.comment, read.raw.strip() if read.tag not in tags.STATUS_OF else ""]
    garbled = [line] if "\ufffd" in line.encode("utf-8", "surrogateescape").decode("utf-8", "replace") else []
    return [part for part in said if part] + garbled
