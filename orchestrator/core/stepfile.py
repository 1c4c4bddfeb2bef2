"""The text of a step file: a heading with the step's true name, notes, and checkpoints as fenced blocks.

For people and for the next worker; what was committed is in the journal. Contract: docs/protocol.md, Step files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.core import tags
from orchestrator.core.model import Checkpoint, Effect, Json, Output, StepError
from orchestrator.core.scan import Finding

T = TypeVar("T")

INFO = "yaml checkpoint"
_OPENING = f"\n```{INFO}\n"

#: Line breaks that JSON leaves as they are, but a reader of YAML or of lines may take for one.
_BREAKS = {0x7F: "\\u007f", **{code: f"\\u{code:04x}" for code in (*range(0x80, 0xA0), 0x2028, 0x2029)}}

#: Control characters in notes, but tab and newline: they would reach a terminal, or end a line for some readers.
_CONTROLS: dict[int, str] = dict.fromkeys(
    (*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000)), "\ufffd"
)
_FORGED = re.compile(r"([`~]{3}[ \t]*yaml)[ \t]+(?=checkpoint)", re.IGNORECASE)
_KEYS = frozenset(
    {
        *("name", "n", "key", "status", "attempt", "try", "at", "effect", "args", "result", "result_file", "error"),
        *("usage", "outputs", "why", "by_hand"),
    }
)

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ascii = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class StepFile:
    """What a step file says. `lines` has the line (from 1) of each checkpoint's fence; `notes` are (line, text)."""

    heading: str | None
    checkpoints: tuple[Checkpoint, ...]
    notes: tuple[tuple[int, str], ...]
    findings: tuple[Finding, ...] = ()
    lines: tuple[int, ...] = ()


def heading(name: str) -> str:
    """The first line of a step file, with the name in the form `checklist.display` gives it."""
    return f"# {tags.display(name)}\n"


def render_checkpoint(cp: Checkpoint) -> str:
    """A block as it is appended: one `key: value` a line, values in JSON, blank lines around it.

    What is not there is left out; a result of None stands there when the step is done.
    """
    lines = [f"name: {_value(cp.name)}\nn: {cp.n}"]
    if cp.key is not None:
        lines.append(f"key: {_value(cp.key)}")
    lines.append(f"status: {_value(cp.status)}\nattempt: {cp.attempt}\ntry: {cp.try_number}")
    lines.append(f"at: {_value(cp.at)}\neffect: {_value(cp.effect)}")
    if cp.args is not None:
        lines.append(f"args: {_value(cp.args)}")
    if cp.result_file is not None:
        lines.append(f"result_file: {_value(cp.result_file)}")
    elif cp.result is not None or cp.status == "done":
        lines.append(f"result: {_value(cp.result)}")
    if cp.error is not None:
        lines.append(f"error: {_value(cp.error.to_json())}")
    if cp.usage is not None:
        lines.append(f"usage: {_value(dict(cp.usage))}")
    if cp.outputs:
        lines.append(f"outputs: {_value([{'path': o.path, 'size': o.size, 'sha256': o.sha256} for o in cp.outputs])}")
    if cp.why:
        lines.append(f"why: {_value(cp.why)}")
    if cp.by_hand:
        lines.append("by_hand: true")
    return _OPENING + "\n".join(lines) + "\n```\n"


def parse(text: str) -> StepFile:
    """Read a step file. Total: what is no block, or a garbled or unfinished one, is a note, and a finding names it."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    title = tags.fold(lines[0][2:]) if lines[0].startswith("# ") else None
    blocks: list[tuple[int, Checkpoint]] = []
    findings: list[Finding] = []
    notes: list[tuple[int, str]] = []
    at = begin = 0 if title is None else 1
    for opened in _openings(lines):
        if opened < at:
            continue
        end, block, problem = _block(lines, opened)
        if problem:
            findings.append(Finding(opened + 1, "bad-checkpoint", problem))
        if end is None:
            continue
        _take_note(notes, lines, begin, opened)
        if block is not None:
            blocks.append((opened + 1, block))
        at = begin = end + 1
    _take_note(notes, lines, begin, len(lines))
    checkpoints = tuple(block for _, block in blocks)
    return StepFile(title or None, checkpoints, tuple(notes), tuple(findings), tuple(line for line, _ in blocks))


def escape_note(text: str) -> str:
    """Text as it is appended to the file, whatever it is: on lines of its own, and never a block.

    An info string `yaml checkpoint` becomes `yaml\\ checkpoint`, a fence that was left open is closed, control
    characters become U+FFFD. "" for a text without content.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS).strip("\n")
    if not text.strip():
        return ""
    text = _FORGED.sub(r"\1\\ ", text)
    marks = _left_open(text)
    # The blank line before it also ends a block that a crash left unfinished: no note can complete it.
    return f"\n{text}\n{marks}\n" if marks else f"\n{text}\n"


def notes_since_running(text: str) -> str:
    """The notes after the last checkpoint `running`: what the try that was interrupted wrote. "" without one."""
    file = parse(text)
    started = [line for line, cp in zip(file.lines, file.checkpoints, strict=True) if cp.status == "running"]
    if not started:
        return ""
    return "\n\n".join(note for line, note in file.notes if line > started[-1])


def missing(text: str, blocks: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those of the blocks that the file lacks, in their order. What tells blocks apart: step, status, attempt, try."""
    there = {_identity(block) for block in parse(text).checkpoints}
    return [block for block in blocks if _identity(block) not in there]


def _identity(cp: Checkpoint) -> tuple[str, int, str | None, str, int, int]:
    return cp.name, cp.n, cp.key, str(cp.status), cp.attempt, cp.try_number


def _value(value: Json) -> str:
    """JSON on one line, readable in any script, and always something that can be encoded."""
    text = _json(value)
    if text.isascii() and "\x7f" not in text:
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return _ascii(value)
    return text.translate(_BREAKS)


def _openings(lines: Sequence[str]) -> Iterator[int]:
    return (at for at, line in enumerate(lines) if line.endswith(INFO) and _ticks(line.removesuffix(INFO)) >= 3)


def _ticks(line: str) -> int:
    """How many backticks a line consists of; 0 when there is anything else in it."""
    return len(line) if line == "`" * len(line) else 0


def _block(lines: Sequence[str], opened: int) -> tuple[int | None, Checkpoint | None, str]:
    """The block that begins at a line: its last line, its checkpoint, and what is wrong with it.

    No last line: it was never finished, and what stands there is a note.
    """
    ticks = len(lines[opened]) - len(INFO)
    fields: dict[str, Json] = {}
    for at in range(opened + 1, len(lines)):
        line = lines[at]
        if _ticks(line) >= ticks:
            return at, *_checkpoint(fields)
        key, colon, value = line.partition(": ")
        if not colon or not key.replace("-", "_").isidentifier():
            break
        try:
            fields[key] = json.loads(value) if key in _KEYS else None
        except (ValueError, RecursionError):
            return None, None, f"the checkpoint's line {at + 1} is no JSON value"
    return None, None, "the checkpoint is not finished"


def _checkpoint(fields: Mapping[str, Json]) -> tuple[Checkpoint | None, str]:
    try:
        return _built(fields), ""
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return None, f"the checkpoint cannot be understood: {error!r}"


def _built(fields: Mapping[str, Json]) -> Checkpoint:
    error, usage, key, args, large = (fields.get(name) for name in ("error", "usage", "key", "args", "result_file"))
    return Checkpoint(
        name=_typed(fields["name"], str),
        status=_typed(fields["status"], str),
        n=_typed(fields.get("n", 1), int),
        key=None if key is None else _typed(key, str),
        attempt=_typed(fields.get("attempt", 0), int),
        try_number=_typed(fields.get("try", 0), int),
        at=_typed(fields.get("at", ""), str),
        effect=_typed(fields.get("effect", Effect.IDEMPOTENT.value), str),
        args=None if args is None else _typed(args, str),
        result=fields.get("result"),
        error=None if error is None else StepError.from_json(_typed(error, dict)),
        usage=None if usage is None else _typed(usage, dict),
        outputs=tuple(
            Output(_typed(o["path"], str), _typed(o["size"], int), _typed(o["sha256"], str))
            for o in _typed(fields.get("outputs", []), list)
        ),
        result_file=None if large is None else _typed(large, str),
        why=_typed(fields.get("why", ""), str),
        by_hand=_typed(fields.get("by_hand", False), bool),
    )


def _typed(value: Json, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def _take_note(notes: list[tuple[int, str]], lines: Sequence[str], begin: int, end: int) -> None:
    """Keep the lines from `begin` up to `end` as a note, unless they are blank."""
    while begin < end and not lines[begin].strip():
        begin += 1
    text = "\n".join(lines[begin:end]).rstrip()
    if text:
        notes.append((begin + 1, text))


def _left_open(text: str) -> str:
    """The marks of the code fence that is open at the end of a text, "" when none is."""
    marks = ""
    for line in text.split("\n"):
        body = line.lstrip(" ")
        if len(line) - len(body) > 3:
            continue
        if marks:
            marks = "" if tags.fence_closed(line, marks) else marks
        elif body[:1] in ("`", "~"):
            marks = tags.fence_opened(body) or ""
    return marks
