"""The text of task.md: parse it, change one mark, render it. Every byte of a line that was not changed is kept.

The rules of reading are in `scan.py` and `tags.py`; the contract is docs/protocol.md, task.md. Repeated names can be
told apart only by their order: whoever writes steps gives each a label of its own (`names.label`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from orchestrator.core import tags
from orchestrator.core.model import Json, StepStatus, TaskStatus
from orchestrator.core.scan import FaceStep, Finding, Scope, match, read
from orchestrator.core.tags import display

__all__ = ["TEMPLATE", "Checklist", "FaceStep", "Finding", "display", "new"]

#: The same text as templates/task.md.
TEMPLATE = "# Task: {name}\n## Status: start\n## TaskID: {task_id}\n\n[start done]\n{steps}"

#: What a heading that is missing is reported as.
_MISSING = {
    "title": ("no-title", "the heading `# Task: …` is missing"),
    "status": ("no-status", "the heading `## Status: …` is missing"),
    "task_id": ("no-task-id", "the heading `## TaskID: …` is missing"),
}

_BOM = b"\xef\xbb\xbf"
_PLACES = re.compile(r"\{(name|task_id|steps)\}")
_STATUSES = {status.value: status for status in TaskStatus}


class Checklist:
    """One task.md. Made by `parse` or `new`; changed by its methods, one line at a time; `render` gives the bytes.

    `damaged`: the text is empty, blank, or has NUL bytes in it: it must never be taken for a task without steps.
    After a change `steps` and the properties are what `parse(render())` would give, unless a name repeats.
    """

    __slots__ = (
        *("_append", "_at", "_begin", "_bom", "_data", "_ends", "_eol", "_lines", "_start", "_stop", "_top", "_torn"),
        *("damaged", "findings", "status", "steps", "task_id", "title"),
    )

    _append: bool  #: whether some step has more than one line
    _at: dict[str, int]  #: index of the line of each heading
    _begin: int  #: the first line where a step may stand: behind front matter, or in the fence of the checklist
    _bom: bytes
    _data: bytes
    _ends: list[int]  #: indices of the lines `[end]`
    _eol: bytes  #: b"\r" where lines end with CR LF
    _lines: list[bytes] | None  #: without their LF; None until something is changed
    _start: int | None
    _stop: int  #: the line behind the last one where a step may stand
    _top: int  #: the first line behind a front matter block
    _torn: str | None  #: how a last line that proves nothing is made harmless: "drop" or "quote"
    damaged: bool
    findings: list[Finding]
    status: TaskStatus | None
    steps: list[FaceStep]
    task_id: str | None
    title: str | None

    @classmethod
    def parse(cls, data: bytes, known: Iterable[str] = ()) -> Checklist:
        """Read a task.md. Total: any bytes give a checklist, and `findings` names what was tolerated.

        known: labels of steps known from elsewhere; they decide, beside the names in the file, whether a last line
        without newline counts, and whether a `[redo] X` behind a finished X is an order for that one or a further X.
        """
        self = cls()
        self._data, self._lines = data, None
        self._bom = _BOM if data.startswith(_BOM) else b""
        text, findings = _decoded(data[3:] if self._bom else data)
        self._eol = b"\r" if "\r\n" in text else b""
        lines = (text.replace("\r\n", "\n") if self._eol else text).split("\n")
        known = set(known)
        scope = read(lines, known)
        self.findings = findings + scope.findings
        self.steps = match(scope.marks, known)
        self._append = len(self.steps) < len(scope.marks)
        self._at, self._start, self._ends = scope.at, scope.start, scope.ends
        self._top, self._begin, self._stop, self._torn = scope.top, scope.begin, scope.end, scope.torn
        self.title, self.task_id = scope.heads.get("title") or None, scope.heads.get("task_id") or None
        self.status = _STATUSES.get(scope.heads.get("status", "").lower())
        self.damaged = "\0" in text or not text.strip()
        self._find(scope)
        return self

    @property
    def has_end(self) -> bool:
        return bool(self._ends)

    @property
    def resume(self) -> int | None:
        """The index of the first step that is neither done nor skipped."""
        for index, step in enumerate(self.steps):
            if not step.status.finished:
                return index
        return None

    @property
    def ended(self) -> bool:
        return self.has_end and (self.status is TaskStatus.END or self.resume is None)

    def mark(self, index: int, status: StepStatus) -> None:
        """Change the mark of one step; an order to do it again is thereby carried out.

        Its line keeps indent, bullet and comment. In a file in append style the first change leaves one line of each
        step, its first: a mark that changes in place would give later lines of other steps another meaning.
        """
        self._mark(index, tags.TAG_OF[status])
        self.steps[index].status, self.steps[index].redo = _shown(status), False

    def mark_redo(self, index: int) -> None:
        """Order one step to be done again."""
        self._mark(index, tags.REDO)
        self.steps[index].status, self.steps[index].redo = StepStatus.PENDING, True

    def insert(self, after: int | None, name: str, status: StepStatus) -> int:
        """Add a step behind the step `after` (None: as the first) and return its index; its name is `display(name)`."""
        self._changing()
        self._collapse()
        index = 0 if after is None else after + 1
        at = self.place() if after is None else self.steps[after].lines[0]
        name = display(name)
        self._add(at, tags.step_line(status, name))
        self.steps.insert(index, FaceStep(name, _shown(status), [at + 1]))
        if self._ends and self._ends[-1] < self.steps[-1].line - 1:
            self.set_end(True)
        return index

    def set_status(self, status: TaskStatus) -> None:
        self._head("status", status.value)
        self.status = status

    def set_task_id(self, task_id: str) -> None:
        self._head("task_id", task_id)
        self.task_id = task_id

    def set_title(self, title: str) -> None:
        self.title = display(title)
        self._head("title", self.title)

    def _head(self, field: str, value: str) -> None:
        """Write a heading where it stands, else behind those before it and before those after it."""
        self._changing()
        text = tags.head_line(field, value)
        if field in self._at:
            at = self._at[field]
            line = self._text(at)
            comment = line[tags.cut_comment(line) :].strip()
            self._write(at, f"{text} {comment}" if comment else text)
        else:
            order = list(_MISSING)
            before = [self._at[f] + 1 for f in order[: order.index(field)] if f in self._at]
            behind = [self._at[f] for f in order if f in self._at]
            at = before[-1] if before else min(behind, default=self._top)
            self._add(at, text)
            self._at[field] = at

    def set_end(self, present: bool) -> None:
        """Put `[end]` behind the last step, or take it away; text that stood behind the tag stays."""
        self._changing()
        last = max((step.line for step in self.steps), default=0)
        if present and len(self._ends) == 1 and self._ends[0] >= last:
            return
        gone = [at for at in self._ends if not self._strip_end(at)]
        self._ends = []
        self._remove(gone)
        if present:
            at = max((step.line for step in self.steps), default=0) or self.place()
            self._add(at, "[end]")
            self._ends = [at]

    def move(self, order: Sequence[int]) -> None:
        """Put the steps into another order, `order` naming the present index of each; notes stay where they are.

        Raises ValueError when `order` is no permutation of the steps.
        """
        if sorted(order) != list(range(len(self.steps))):
            raise ValueError(f"no permutation of {len(self.steps)} steps: {list(order)}")
        lines = self._changing()
        self._collapse()
        slots = [step.lines for step in self.steps]
        texts = [lines[at[0] - 1].removesuffix(b"\r") for at in slots]
        self.steps = [self.steps[index] for index in order]
        for step, slot, index in zip(self.steps, slots, order, strict=True):
            step.lines = slot
            self._put(slot[0] - 1, texts[index])

    def render(self) -> bytes:
        """The bytes of the file. Without a change they are those that were parsed."""
        if self._lines is None:
            return self._data
        return self._bom + b"\n".join(self._lines)

    def own_lines(self) -> set[int]:
        """The indices of the lines that are the checklist's own, as they were parsed; all others are notes."""
        steps = {line - 1 for step in self.steps for line in step.lines}
        start = set() if self._start is None else {self._start}
        return steps | start | {*self._ends, *self._at.values(), *range(self._top)}

    def front(self) -> int:
        """How many lines a front matter block at the very top has."""
        return self._top

    def lint_json(self) -> dict[str, Json]:
        return {
            "damaged": self.damaged,
            "ended": self.ended,
            "resume": self.resume,
            "steps": [[step.name, step.status.value] for step in self.steps],
            "findings": [found._asdict() for found in self.findings],
        }

    def _mark(self, index: int, tag: str) -> None:
        lines = self._changing()
        self._collapse()
        at = self.steps[index].lines[0] - 1
        self._write(at, tags.retagged(lines[at].decode("utf-8", "surrogateescape"), tag))

    def _find(self, scope: Scope) -> None:
        """Report what the file as a whole lacks or contradicts."""
        note = self.findings.append
        if self.damaged:
            nul = b"\0" in self._data
            code, what = ("nul", "has NUL bytes in it") if nul else ("empty", "is empty")
            note(Finding(None, code, f"the file {what}: it is damaged"))
            return
        for field, (code, message) in _MISSING.items():
            if not scope.heads.get(field):
                note(Finding(None, code, message))
        if scope.start is None:
            note(Finding(None, "no-start", "the line [start done] is missing"))
        if self._bom:
            note(Finding(1, "bom", "the file begins with a byte order mark"))
        if self._eol:
            note(Finding(None, "crlf", "lines end with CR LF"))
        for step in self.steps:
            if len(step.lines) > 1:
                note(Finding(step.line, "append-style", f"another line about the step {step.name!r}"))
        self._find_contradictions(scope)

    def _find_contradictions(self, scope: Scope) -> None:
        note, status, ended, resume = self.findings.append, self.status, self.has_end, self.resume
        line = self._ends[0] + 1 if ended else None
        if status is None and scope.heads.get("status"):
            word = scope.heads["status"]
            note(Finding(scope.at["status"] + 1, "unknown-status", f"{word!r} is no status of a task"))
        if ended and resume is not None:
            name = self.steps[resume].name
            if status is TaskStatus.END:
                note(Finding(line, "end-with-open-steps", f"the task has ended, but the step {name!r} is open"))
            else:
                note(Finding(line, "end-in-template", f"[end] does not count: the step {name!r} is open"))
        elif ended and status is not TaskStatus.END:
            note(Finding(line, "status-contradiction", "[end] is there, but the status is not end"))
        elif not ended and status is TaskStatus.END:
            note(Finding(scope.at["status"] + 1, "status-contradiction", "the status is end, but [end] is missing"))
        if len(self._ends) > 1:
            note(Finding(self._ends[-1] + 1, "end-twice", "[end] is there more than once"))

    def _changing(self) -> list[bytes]:
        """The lines, to be changed; with the first change a torn last line is made harmless."""
        if self._lines is None:
            self._lines = self._data[len(self._bom) :].split(b"\n")
            if self._torn == "drop":
                self._lines[-1] = b""
            elif self._torn == "quote":
                self._lines[-1] = b"> " + self._lines[-1]
        return self._lines

    def _text(self, at: int) -> str:
        return self._changing()[at].decode("utf-8", "surrogateescape").removesuffix("\r")

    def _write(self, at: int, text: str) -> None:
        self._put(at, text.encode("utf-8", "surrogateescape"))

    def _put(self, at: int, line: bytes) -> None:
        """Write a line of ours. It always has its newline: without one it might be taken for torn."""
        lines = self._changing()
        last = at == len(lines) - 1
        ending = self._eol if last or lines[at].endswith(b"\r") else b""
        lines[at] = line + ending
        if last:
            lines.append(b"")

    def _add(self, at: int, text: str) -> None:
        """A new line before the line `at`; what was unfinished before it gets its newline first."""
        lines = self._changing()
        if at == len(lines) and self._eol and not lines[-1].endswith(b"\r"):
            lines[-1] += self._eol
        lines.insert(at, text.encode("utf-8", "surrogateescape") + self._eol)
        if at == len(lines) - 1:
            lines.append(b"")
        self._renumber(at, lambda old: old + 1)

    def _remove(self, gone: list[int]) -> None:
        """Take lines away. The first and the last are only emptied: a line before the last must keep its newline, or
        it might be taken for torn, and a line `---` behind the first must not become the beginning of front matter."""
        lines = self._changing()
        for at in {0, len(lines) - 1}.intersection(gone):
            lines[at] = b""
        going = sorted(set(gone) - {0, len(lines) - 1})
        left = set(going)
        lines[:] = [line for at, line in enumerate(lines) if at not in left]
        self._renumber(min(going, default=len(lines)), lambda at: at - bisect_right(going, at))

    def _renumber(self, first: int, moved: Callable[[int], int]) -> None:
        """Correct every place that is kept, after lines from `first` on have moved."""
        for step in self.steps:
            if step.lines[-1] > first:
                step.lines = [moved(line - 1) + 1 if line > first else line for line in step.lines]
        self._ends = [moved(end) if end >= first else end for end in self._ends]
        self._at = {field: moved(at) if at >= first else at for field, at in self._at.items()}
        self._start = moved(self._start) if self._start is not None and self._start >= first else self._start
        self._begin = moved(self._begin) if self._begin > first else self._begin
        self._stop = moved(self._stop) if self._stop >= first else self._stop

    def _collapse(self) -> None:
        """One line for each step; only then may lines change in place, come between, or change places."""
        if not self._append:
            return
        self._append = False
        gone: list[int] = []
        for step in self.steps:
            if len(step.lines) > 1:
                reads = [tags.read_tag(self._text(line - 1)) for line in step.lines]
                comments = dict.fromkeys(found.comment for found in reads if found is not None)
                at, tag = step.lines[0] - 1, tags.REDO if step.redo else tags.TAG_OF[step.status]
                self._write(at, tags.retagged(self._text(at), tag, " ".join(filter(None, comments))))
                gone += (line - 1 for line in step.lines[1:])
                del step.lines[1:]
        self._remove(gone)

    def _strip_end(self, at: int) -> bool:
        """Whether something is left of a line `[end]` without its tag; then it is written."""
        found = tags.read_tag(self._text(at))
        rest = " ".join(part for part in (found.raw.strip(), found.comment) if part) if found is not None else ""
        if found is not None and rest:
            self._write(at, found.prefix + rest)
        return bool(rest)

    def place(self) -> int:
        """Where a first step goes: before the first one, behind `[start done]`, else behind the headings."""
        first = self.steps[0].lines[0] - 1 if self.steps else None
        if self._start is not None and (first is None or self._start < first):
            return self._start + 1
        if first is not None:
            return first
        at = min(max([self._begin, *(head + 1 for head in self._at.values())]), self._stop)
        blank = at < self._stop - 1 and not self._text(at).strip()
        return at + 1 if blank else at


def new(title: str, task_id: str, steps: Sequence[str] = (), template: str | None = None) -> Checklist:
    """A fresh checklist from a template with the places {name}, {task_id}, {steps}; names as `display` gives them."""
    lines = "".join(tags.step_line(StepStatus.PENDING, display(step)) + "\n" for step in steps)
    texts = {"name": display(title), "task_id": display(task_id), "steps": lines}
    text = _PLACES.sub(lambda place: texts[place[1]], TEMPLATE if template is None else template)
    return Checklist.parse(text.encode("utf-8", "replace"))


def _shown(status: StepStatus) -> StepStatus:
    """The status that is read back: the tags know no uncertain step."""
    return StepStatus.WORKING if status is StepStatus.UNCERTAIN else status


def _decoded(data: bytes) -> tuple[str, list[Finding]]:
    try:
        return data.decode(), []
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    findings = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            line.decode()
        except UnicodeDecodeError:
            findings.append(Finding(number, "bad-bytes", "bytes that are no UTF-8; they are kept"))
    return text, findings
