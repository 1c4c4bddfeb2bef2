"""The grammar of one line of task.md: tag, bullet, comment, heading, fence, break. Text in, text out, no state.

Reading is tolerant and says what it tolerated (codes, see `TOLERATED`); what it did not recognise is None: prose.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from unicodedata import is_normalized, normalize

from orchestrator.core.model import StepStatus

START = "start done"
END = "end"
REDO = "redo"

#: What a step's tag says. `[redo]` is a person's order; until it is carried out the step waits.
STATUS_OF: dict[str, StepStatus] = {
    "pending": StepStatus.PENDING,
    "working": StepStatus.WORKING,
    "working done": StepStatus.DONE,
    "failed": StepStatus.FAILED,
    "skipped": StepStatus.SKIPPED,
    REDO: StepStatus.PENDING,
}

#: How a status is written. Who waits for a person's word on a `once` step shows as at work: the tags know no more.
TAG_OF: dict[StepStatus, str] = {
    StepStatus.PENDING: "pending",
    StepStatus.WORKING: "working",
    StepStatus.DONE: "working done",
    StepStatus.FAILED: "failed",
    StepStatus.SKIPPED: "skipped",
    StepStatus.UNCERTAIN: "working",
}

TAGS = frozenset({*STATUS_OF, START, END})

#: Codes of what `read_tag` tolerates in a line, each with words for a person.
TOLERATED: dict[str, str] = {
    "indent": "blanks before the tag",
    "bullet": "a list bullet or number before the tag",
    "checkbox": "a checkbox instead of a tag",
    "full-width": "full-width brackets or blanks in or after the tag",
    "tag-case": "the tag is not written in lower case",
    "white-space": "more or fewer blanks than the one between tag and name, or between its words",
    "not-nfc": "the name is not in Unicode normal form C",
    "html-comment": "an HTML comment after the name; it is not part of the name",
    "text-after-tag": "text after a tag that stands alone",
    "no-name": "a tag without a step name; it is no step",
}

#: A canonical step line up to its name, without the "] ", and the lines that are a whole tag.
OPENERS: dict[str, str] = {"[" + tag: tag for tag in STATUS_OF}
ALONE: dict[str, str] = {f"[{tag}]": tag for tag in (START, END)}

UNNAMED = "(no name)"

_LONGEST = 48  # characters looked at for a tag; the longest tag has twelve, the rest is room for blanks
_WIDEST_BOX = 8  # characters looked at for a checkbox that is none
_BOX_MARKS = frozenset({"", "x", "-", "~", "/", "*", "o", "v", "✓", "✔", "✗", "✘", "√", "×"})
_BRACKETS = {ord("【"): "[", ord("［"): "[", ord("】"): "]", ord("］"): "]"}
_BULLET = re.compile(r"(?:[-*+•]|[0-9]{1,9}[.)、．])[ \t\u3000\u00a0]*")
_FENCE = re.compile(r"(`{3,}|~{3,})([^\n]*)")
_CONTROLS: dict[int, str] = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")
_SURROGATES = re.compile("[\ud800-\udfff]")
_HEADINGS = {"task": "title", "status": "status", "taskid": "task_id", "task id": "task_id"}


class Tagged(NamedTuple):
    """A line that carries a tag. `prefix`: indent and bullet as they stand; `comment`: the HTML comments at the end;
    `raw`: the name as it stands; `codes`: what was tolerated."""

    tag: str
    name: str
    prefix: str
    raw: str
    comment: str
    codes: tuple[str, ...]


def fold(text: str) -> str:
    """NFC with white space folded: the form in which names are compared."""
    text = " ".join(text.split())
    return text if text.isascii() else normalize("NFC", text)


def is_folded(text: str) -> bool:
    return " ".join(text.split()) == text and (text.isascii() or is_normalized("NFC", text))


def display(name: str) -> str:
    """The form in which a name is written: one line that reads back as itself, whatever the name was. Idempotent.

    White space and control characters fold to one blank, lone surrogates become U+FFFD, `<!--` becomes `<! --` (a
    comment at the end is no part of a name), and no name at all becomes `(no name)`.
    """
    if not name.isascii():
        name = _SURROGATES.sub("\ufffd", name)
    return fold(name.translate(_CONTROLS)).replace("<!--", "<! --") or UNNAMED


def cut_comment(text: str) -> int:
    """Where the HTML comments at the end of `text` begin; its length without trailing blanks when there are none."""
    end = _rstripped(text, len(text))
    while text.endswith("-->", 0, end):
        start = text.rfind("<!--", 0, end)
        if start < 0 or text.find("-->", start, end) != end - 3:
            break
        end = _rstripped(text, start)
    return end


def read_tag(line: str) -> Tagged | None:
    """The tag at the beginning of a line, after blanks, a bullet or number, and a checkbox."""
    begin = len(line) - len(line.lstrip())
    bullet = _BULLET.match(line, begin)
    at = bullet.end() if bullet else begin
    codes = ["bullet"] if bullet else ["indent"] if begin else []
    box, after = _checkbox(line, at) if bullet else (None, at)
    found = _tag_at(line, after)
    if found is None and box is None:
        return None
    tag, end = found or (box or "", after)
    if box is not None:
        codes.append("checkbox")
    if found is not None:
        codes += _tag_codes(line[after:end], tag)
    return _tagged(line, tag, line[:at], end, codes)


def unknown_tag(line: str) -> str | None:
    """What stands in brackets at the beginning of a line as a tag would, but is none (no link, no footnote)."""
    body = line.lstrip()
    bullet = _BULLET.match(body)
    head = body[bullet.end() if bullet else 0 :][:_LONGEST].translate(_BRACKETS)
    end = head.find("]")
    if head[:1] != "[" or end < 0 or head[end + 1 : end + 2] in ("(", ":", "["):
        return None
    words = head[1:end].strip()
    plain = words.replace(" ", "").replace("-", "").replace("_", "")
    return words if plain.isalpha() and len(plain) > 1 and words.lower() not in TAGS else None


def broken_box(line: str) -> str | None:
    """What stands at the beginning of a line as a checkbox would, but is none: without its blank, mark, or bullet."""
    body = line.lstrip()
    bullet = _BULLET.match(body)
    head = body[bullet.end() if bullet else 0 :][:_WIDEST_BOX].translate(_BRACKETS)
    end = head.find("]")
    if head[:1] != "[" or end < 0 or head[end + 1 : end + 2] in ("(", ":", "["):
        return None
    return head[: end + 1] if head[1:end].strip().lower() in _BOX_MARKS else None


def torn_tag(line: str) -> bool:
    """Whether an unfinished line is the beginning of a tag, its closing bracket still missing."""
    body = line.strip()
    bullet = _BULLET.match(body)
    head = body[bullet.end() if bullet else 0 :].rstrip("\ufffd").translate(_BRACKETS)
    if head[:1] != "[" or len(head) > _LONGEST or "]" in head:
        return False
    words = " ".join(head[1:].split()).lower()
    return any(tag.startswith(words) for tag in TAGS)


def heading(line: str) -> tuple[str, str, bool] | None:
    """(`title` | `status` | `task_id`, its value, whether it is written as we write it) of a heading of the task."""
    hashes = len(line) - len(line.lstrip("#"))
    key, colon, value = line[hashes:].partition(":")
    wide, wide_colon, wide_value = key.partition("：")
    if wide_colon:
        key, value = wide, wide_value + colon + value
    elif not colon:
        return None
    field = _HEADINGS.get(" ".join(key.split()).lower())
    if field is None:
        return None
    raw = value[: cut_comment(value)]
    name = fold(raw)
    canonical = not wide_colon and line == head_line(field, name)
    return field, name, canonical


def head_line(field: str, value: str) -> str:
    """A heading of the task as we write it."""
    return {"title": "# Task: ", "status": "## Status: ", "task_id": "## TaskID: "}[field] + value


def fence_opened(body: str) -> str | None:
    """The marks of the code fence that a line (without its indent) opens."""
    match = _FENCE.match(body)
    if match is None or (body[0] == "`" and "`" in match[2]):
        return None
    return match[1]


def fence_closed(line: str, marks: str) -> bool:
    body = line.strip()
    return len(body) >= len(marks) and body == marks[0] * len(body)


def is_break(body: str) -> bool:
    """Whether a line (without its indent) is a thematic break."""
    if body[:1] not in ("-", "*", "_"):
        return False
    marks = "".join(body.split())
    return len(marks) >= 3 and marks == marks[0] * len(marks)


def step_line(status: StepStatus, name: str) -> str:
    return f"[{TAG_OF[status]}] {name}"


def retagged(line: str, tag: str, comment: str | None = None) -> str:
    """A step's line with another tag, canonical but for what is a person's: indent, bullet, and comment.

    comment: what stands there instead of the line's own.
    """
    read = read_tag(line)
    if read is None:
        return line
    text = f"{read.prefix}[{tag}] {fold(read.raw)}"
    comment = read.comment if comment is None else comment
    return f"{text} {comment}" if comment else text


def _tag_at(line: str, at: int) -> tuple[str, int] | None:
    """A known tag at this place, and where it ends."""
    head = line[at : at + _LONGEST]
    if not head.isascii():
        head = head.translate(_BRACKETS)
    if head[:1] != "[":
        return None
    end = head.find("]")
    tag = " ".join(head[1:end].split()).lower()
    if end < 0 or tag not in TAGS or head[end + 1 : end + 2] == "(":
        return None
    return tag, at + end + 1


def _checkbox(line: str, at: int) -> tuple[str | None, int]:
    """The tag that a checkbox at this place stands for, and where the text after it begins."""
    box = line[at : at + 3].translate(_BRACKETS)
    if len(box) != 3 or box[0] != "[" or box[2] != "]" or not (box[1].isspace() or box[1] in "xX"):
        return None, at
    end = at + 3
    if end < len(line) and not line[end].isspace():
        return None, at
    while end < len(line) and line[end].isspace():
        end += 1
    return ("working done" if box[1] in "xX" else "pending"), end


def _tag_codes(written: str, tag: str) -> list[str]:
    """How a tag differs from the way we write it."""
    codes = []
    if not written.isascii():
        codes.append("full-width")
    words = " ".join(written[1:-1].split())
    if words != tag:
        codes.append("tag-case")
    if words != written[1:-1] and written.isascii():
        codes.append("white-space")
    return codes


def _tagged(line: str, tag: str, prefix: str, end: int, codes: list[str]) -> Tagged:
    rest = line[end:]
    cut = cut_comment(rest)
    raw = rest[:cut]
    comment = rest[cut:].strip()
    name = fold(raw)
    if comment:
        codes.append("html-comment")
    if tag in STATUS_OF:
        codes += _name_codes(rest if not comment else raw, name, joined="checkbox" in codes)
    elif name:
        codes.append("text-after-tag")
    return Tagged(tag, name, prefix, raw, comment, tuple(dict.fromkeys(codes)))


def _name_codes(written: str, name: str, *, joined: bool) -> list[str]:
    """How a name differs from the way we write it; `joined`: the blank before it was taken with the checkbox."""
    if not name:
        return ["no-name"]
    words = " ".join(written.split())
    codes = ["not-nfc"] if words != name else []
    if "\u3000" in written:
        codes.append("full-width")
    elif written not in (" " + words, words if joined else " " + words):
        codes.append("white-space")
    return codes


def _rstripped(text: str, end: int) -> int:
    """`end` without the blanks before it; by index, for a slice per comment would be quadratic in a long line."""
    while end and text[end - 1].isspace():
        end -= 1
    return end
