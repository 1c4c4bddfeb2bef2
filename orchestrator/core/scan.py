"""What stands in the lines of a task.md: its headings, its tags, and which lines belong to which step.

Used by `checklist.py` only. Linear in the size of the text, whatever the text is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from unicodedata import normalize

from orchestrator.core import tags
from orchestrator.core.model import StepStatus

PENDING, WORKING, DONE, FAILED = StepStatus.PENDING, StepStatus.WORKING, StepStatus.DONE, StepStatus.FAILED


class Finding(NamedTuple):
    """A deviation that was tolerated: its line (from 1), a code for programs, a message for people."""

    line: int | None
    code: str
    message: str


class Mark(NamedTuple):
    """A step's tag: the index of its line, the tag, the name."""

    at: int
    tag: str
    name: str


class FaceStep:
    """A step as task.md shows it. `lines`: every line (from 1) that carries a tag of it, in order."""

    __slots__ = ("lines", "name", "redo", "status")

    def __init__(self, name: str, status: StepStatus, lines: list[int], redo: bool = False) -> None:
        self.name = name
        self.status = status
        self.lines = lines
        self.redo = redo

    @property
    def line(self) -> int:
        """The line (from 1) of its last tag."""
        return self.lines[-1]

    def __repr__(self) -> str:
        return f"FaceStep({self.name!r}, {self.status.value!r}, {self.lines}, redo={self.redo})"


class Fence(NamedTuple):
    """A code fence: the index of its opening line, and of the line behind its last."""

    opened: int
    end: int


class Scope:
    """What was found in a range of lines. Every place is an index of a line, None where there is none."""

    __slots__ = (
        *("at", "begin", "broken", "end", "ends", "fences", "findings", "heads", "marks", "start", "top", "torn"),
        "unclosed",
    )

    def __init__(self, begin: int, end: int) -> None:
        self.heads: dict[str, str] = {}
        self.at: dict[str, int] = {}
        self.start: int | None = None
        self.ends: list[int] = []
        self.marks: list[Mark] = []
        self.fences: list[Fence] = []
        self.findings: list[Finding] = []
        self.begin = begin
        self.top = begin  #: where headings may stand; differs for what stands in a fence
        self.end = end  #: the line behind the last one in which a step may stand
        self.broken = False  #: whether a thematic break ended it
        self.torn: str | None = None  #: how a last line that proves nothing is made harmless: "drop" or "quote"
        self.unclosed = False  #: whether a comment was found that is never closed

    @property
    def begun(self) -> bool:
        """Whether a checklist stands here; a lone `[end]` makes none."""
        return bool(self.marks) or self.start is not None

    def note(self, at: int | None, code: str, message: str) -> None:
        self.findings.append(Finding(None if at is None else at + 1, code, message))


def read(lines: Sequence[str], known: Collection[str] = ()) -> Scope:
    """What the lines say, from the checklist that counts: the open one, or the one that stands whole in a fence.

    known: names of steps known from elsewhere, for the judgement of a last line without newline.
    """
    begin, codes = _front_matter(lines)
    top = _scan(lines, begin, len(lines), known)
    for code, message in codes:
        top.note(0, code, message)
    if top.fences and not top.begun:
        return _fenced(lines, top, known)
    if top.broken and not top.begun and any(tags.read_tag(line) for line in lines[top.end :]):
        top.note(top.end, "steps-after-break", "tags stand only after the line ---, where everything is a note")
    return top


def _fenced(lines: Sequence[str], top: Scope, known: Collection[str]) -> Scope:
    """`top`, completed by the one fence that holds a checklist; as it is when there is none or more than one."""
    inner = [(fence, _scan(lines, fence.opened + 1, fence.end, known)) for fence in top.fences]
    holding = [(fence, scope) for fence, scope in inner if scope.begun]
    if len(holding) != 1:
        top.torn = top.torn or next((scope.torn for _, scope in inner if scope.torn), None)
        return top
    fence, scope = holding[0]
    scope.top = top.begin
    scope.torn = scope.torn or top.torn
    scope.heads = {**scope.heads, **top.heads}
    scope.at = {**scope.at, **top.at}
    scope.ends += [at for at in top.ends if at >= fence.end]
    scope.findings = top.findings + scope.findings
    scope.note(fence.opened, "whole-fence", "the checklist stands in a code fence")
    return scope


def _front_matter(lines: Sequence[str]) -> tuple[int, list[tuple[str, str]]]:
    """Where the text begins behind a front matter block, and what to report of it.

    A first line `---` that opens no such block is decoration: read as a break it would turn the whole file into notes.
    """
    if not lines or lines[0].rstrip() != "---":
        return 0, []
    end = next((at for at in range(1, len(lines)) if lines[at].rstrip() in ("---", "...")), None)
    if end is None or any((read := tags.read_tag(line)) and read.tag == tags.START for line in lines[1:end]):
        return 1, [("leading-break", "the first line is ---")]
    return end + 1, [("front-matter", "a front matter block at the top")]


def _scan(lines: Sequence[str], begin: int, end: int, known: Collection[str]) -> Scope:
    scope = Scope(begin, end)
    numbered = iter(enumerate(lines[begin:end], begin))
    for at, line in numbered:
        if not line or (line[0].isalnum() and line.isascii() and "[" not in line):  # prose, perhaps a million lines
            continue
        tag = tags.ALONE.get(line)
        if tag is not None:
            _alone(scope, at, tag)
            continue
        opener, _, name = line.partition("] ")
        tag = tags.OPENERS.get(opener)
        if tag is not None and name and tags.is_folded(name) and not name.endswith("-->"):
            scope.marks.append(Mark(at, tag, name))
        elif _unusual(scope, lines, at, line, numbered):
            scope.end, scope.broken = at, True
            return scope
    if lines[-1] and end == len(lines):
        _judge_last(scope, end - 1, lines[-1], known)
    return scope


def _alone(scope: Scope, at: int, tag: str) -> None:
    if tag == tags.END:
        scope.ends.append(at)
    elif scope.start is None:
        scope.start = at


def _unusual(scope: Scope, lines: Sequence[str], at: int, line: str, numbered: Iterator[tuple[int, str]]) -> bool:
    """Take in a line that is no canonical step line, with the lines it swallows; whether it ends the checklist."""
    body = line.lstrip()
    if not body or body[0] == ">":
        return False
    if body[0] == "#":
        _head(scope, at, body)
    elif body[0] in "`~":
        _fence(scope, at, tags.fence_opened(body), numbered)
    elif body.startswith("<!--"):
        _comment(scope, lines, at, body, numbered)
    elif tags.is_break(body):
        return True
    else:
        _tagged(scope, at, line)
    return False


def _head(scope: Scope, at: int, body: str) -> None:
    found = tags.heading(body)
    if found is None or found[0] in scope.heads:
        return
    field, value, canonical = found
    scope.heads[field] = value
    scope.at[field] = at
    if not canonical:
        scope.note(at, "heading-form", f"the heading is not written `{tags.head_line(field, '…')}`")


def _fence(scope: Scope, at: int, marks: str | None, numbered: Iterator[tuple[int, str]]) -> None:
    """Pass over a fence; one that is never closed runs to the end, as in Markdown."""
    if marks is None:
        return
    last = at
    for last, line in numbered:
        if line.lstrip().startswith(marks) and tags.fence_closed(line, marks):
            scope.fences.append(Fence(at, last))
            return
    scope.fences.append(Fence(at, last + 1))
    scope.note(at, "open-fence", "the code fence is never closed: everything after it belongs to it")


def _comment(scope: Scope, lines: Sequence[str], at: int, body: str, numbered: Iterator[tuple[int, str]]) -> None:
    """Pass over a comment of several lines; one that is never closed is prose, so that no step disappears."""
    if "-->" in body or scope.unclosed:
        return
    if not any("-->" in lines[later] for later in range(at + 1, scope.end)):
        scope.unclosed = True  # nor is any later one: not looking again keeps this linear
        scope.note(at, "open-comment", "the HTML comment is never closed; it hides nothing")
        return
    for _, line in numbered:
        if "-->" in line:
            return


def _tagged(scope: Scope, at: int, line: str) -> None:
    read = tags.read_tag(line)
    if read is None:
        if (words := tags.unknown_tag(line)) is not None:
            scope.note(at, "unknown-tag", f"[{words}] is no tag; the line is read as a note")
        elif (box := tags.broken_box(line)) is not None:
            scope.note(at, "broken-checkbox", f"{box} is no checkbox as `- [ ]` and `- [x]` are; the line is a note")
        return
    for code in read.codes:
        scope.note(at, code, tags.TOLERATED[code])
    if read.tag not in tags.STATUS_OF:
        _alone(scope, at, read.tag)
    elif read.name:
        scope.marks.append(Mark(at, read.tag, read.name))


def _judge_last(scope: Scope, at: int, line: str, known: Collection[str]) -> None:
    """Judge a last line that has no newline, and perhaps was cut off in writing.

    What proves nothing now must not become a proof by a newline put behind it: with the first change a fragment of a
    line of ours is dropped, and anything else becomes a quote (`> `), which no reader takes for a step.
    """
    if not scope.marks or scope.marks[-1].at != at:
        if tags.torn_tag(line) and not any(fence.opened < at < fence.end for fence in scope.fences):
            scope.torn = "drop"
            scope.note(at, "torn-line", "the last line breaks off within a tag")
        return
    mark = scope.marks.pop()
    names = {*known, *(other.name for other in scope.marks)}
    if _proves(mark, names):
        scope.marks.append(mark)
        return
    read = tags.read_tag(line)
    fragment = read is not None and not read.comment and any(_starts(name, mark.name) for name in names)
    scope.torn = "drop" if fragment else "quote"
    scope.note(at, "torn-line", f"no newline, perhaps cut off: [{mark.tag}] {mark.name} does not count")


def _proves(mark: Mark, known: Collection[str]) -> bool:
    """Whether the tag on a line that was perhaps cut off counts, given the other names that are known.

    What settles a step (done, failed, skipped, redo) needs a known name that no other known name continues; what only
    names it is taken when it cannot be the beginning of another name.
    """
    longer = any(_starts(other, mark.name) for other in known if other != mark.name)
    if mark.tag in ("pending", "working"):
        return mark.name in known or not (longer or mark.name.endswith("\ufffd"))
    return mark.name in known and not longer


def _starts(name: str, beginning: str) -> bool:
    """Whether `beginning` may be what is left of `name` after a cut at any byte."""
    return normalize("NFD", name).startswith(normalize("NFD", beginning.rstrip("\ufffd")))


def match(marks: Sequence[Mark], known: Collection[str] = ()) -> list[FaceStep]:
    """The steps, in the order of their first lines. known: labels of steps known from elsewhere."""
    if len({mark.name for mark in marks}) == len(marks):
        status_of = tags.STATUS_OF
        return [FaceStep(name, status_of[tag], [at + 1], tag == tags.REDO) for at, tag, name in marks]
    return _Matching(known).run(marks)


class _Matching:
    """Steps of which some have a name, or a step, in common: the rules of the protocol, line by line."""

    def __init__(self, known: Collection[str]) -> None:
        self.known = known
        self.steps: list[FaceStep] = []
        self.named: dict[str, list[FaceStep]] = defaultdict(list)
        self.pending: dict[str, deque[FaceStep]] = defaultdict(deque)
        self.opened: dict[str, deque[FaceStep]] = defaultdict(deque)
        self.latest: FaceStep | None = None

    def run(self, marks: Sequence[Mark]) -> list[FaceStep]:
        for at, tag, name in marks:
            status = tags.STATUS_OF[tag]
            if tag == "working":
                step = self.latest = self._opens(name, at)
                self.opened[name].append(step)
            elif tag == tags.REDO:
                step = self._ordered(name, at)
            elif status is PENDING:
                step = self._new(name, at)
                self.pending[name].append(step)
            else:
                step = self._closes(name, at)
            step.status, step.redo = status, tag == tags.REDO
        return self.steps

    def _opens(self, name: str, at: int) -> FaceStep:
        """A pending X, else the latest step opened if it is an X and not done, else a new one."""
        step = self._first(self.pending[name])
        if step is None and self.latest is not None and self.latest.name == name:
            if self.latest.status is WORKING:
                step = self.opened[name].pop()  # the latest opened of its name: it goes back in below
            elif self.latest.status is FAILED:
                step = self.latest
        return self._again(step, at) if step is not None else self._new(name, at)

    def _closes(self, name: str, at: int) -> FaceStep:
        """The earliest open X, else a pending one (it went straight to its end), else one that was never opened."""
        step = self._first(self.opened[name]) or self._first(self.pending[name])
        return self._again(step, at) if step is not None else self._new(name, at)

    def _ordered(self, name: str, at: int) -> FaceStep:
        """What `[redo] X` speaks of: the last X when it is finished and no further X is known, else a new one."""
        last = self.named[name][-1] if self.named[name] else None
        further = f"{name} ({len(self.named[name]) + 1})" in self.known
        if last is not None and name in self.known and not further and (last.status.finished or last.status is FAILED):
            step = self._again(last, at)
        else:
            step = self._new(name, at)
        self.pending[name].append(step)
        return step

    def _new(self, name: str, at: int) -> FaceStep:
        step = FaceStep(name, PENDING, [at + 1])
        self.steps.append(step)
        self.named[name].append(step)
        return step

    @staticmethod
    def _first(waiting: deque[FaceStep]) -> FaceStep | None:
        return waiting.popleft() if waiting else None

    @staticmethod
    def _again(step: FaceStep, at: int) -> FaceStep:
        step.lines.append(at + 1)
        return step
