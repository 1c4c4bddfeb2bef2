"""The skill: six steps, each on the shoulders of the ones before it.

The two quick steps and the report are functions given to `task.step`. The three that read every file again are loops of
no or one pass (`task.todo`), so that they can note how far they are; such a loop hands no result back on a replay, so
what it found is read from its sealed file, new or old alike.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import Damaged, UsageError
from orchestrator.skills.repo_report import functions, inventory, languages, ledger, sealed
from orchestrator.skills.repo_report.render import MISSED, Findings, lines, report, seen
from orchestrator.skills.repo_report.sealed import Ref, Row

INVENTORY = "take the inventory"
LANGUAGES = "count lines by language"
FUNCTIONS = "measure functions"
TODOS = "collect what was left for later"
DUPLICATES = "find duplicate files"
REPORT = "write the report"

#: The steps in order. None may be called like a default `out` without its ending: `report.md` would be its step file.
STEPS = (INVENTORY, LANGUAGES, FUNCTIONS, TODOS, DUPLICATES, REPORT)

#: The sealed file of each step but the last.
FILES = {
    INVENTORY: "inventory.jsonl",
    LANGUAGES: "languages.jsonl",
    FUNCTIONS: "functions.jsonl",
    TODOS: "todos.jsonl",
    DUPLICATES: "duplicates.jsonl",
}

#: Names in the workspace that are the protocol's own (docs/protocol.md, Files).
_PROTOCOL_NAMES = ("task.md", "task-retro.md", "results")

#: A note on progress is written after so many files.
NOTE_EVERY = 500

#: Larger text files are listed and hashed but not looked into: it is data, and it would have to fit into memory.
MAX_TEXT_BYTES = 16 << 20

#: What looks at one file: its path and text to rows, none of which needs to know of another file.
Look = Callable[[str, str], Iterable[Row]]

LOOKS: dict[str, Look] = {LANGUAGES: languages.count, FUNCTIONS: functions.measure, TODOS: ledger.entries}


class StepHandle(Protocol):
    """What a loop over `task.todo` gets."""

    result: Any

    def note(self, text: str) -> object: ...


class TaskHandle(Protocol):
    """The worker's handle. A Protocol, because the skill needs nothing else of it, and a test can fake it honestly."""

    @property
    def workspace(self) -> Path: ...

    async def plan(self, names: list[str]) -> object: ...

    async def step(self, name: str, fn: Callable[..., Any], *args: Any, outputs: tuple[str, ...] = ()) -> Any: ...

    def todo(self, name: str) -> AsyncIterable[StepHandle]: ...


async def repo_report(task: TaskHandle, path: str, out: str = "report.md", top: int = 20) -> dict[str, Any]:
    """Read the tree at `path` and write a report on it to `out` in the task's workspace; lists have `top` entries.

    Returns {"report", "sha256", "files", "lines", "todos", "duplicates"}: the report's name and digest, and counts.

    May be killed at any moment and run again. Files that change, vanish or cannot be read meanwhile are named in the
    report. Raises UsageError before the first step if `out` or `top` cannot be; Damaged, naming the step to redo, if a
    file that a step left was edited since.
    """
    _check(out, top)
    await task.plan(list(STEPS))
    job = _Job(task.workspace, path)
    ref = await task.step(INVENTORY, job.take_inventory, path, outputs=(FILES[INVENTORY],))
    rows = await asyncio.to_thread(job.inventory, ref)
    for name, look in LOOKS.items():
        await _look_at_all(task, job, name, look, rows, of=ref["sha256"])
    await task.step(DUPLICATES, job.find_duplicates, ref, outputs=(FILES[DUPLICATES],))
    refs = await asyncio.to_thread(job.refs, ref)
    result: dict[str, Any] = await task.step(REPORT, job.write_report, ref, refs, out, top, outputs=(out,))
    return result


def _check(out: str, top: int) -> None:
    own = {*_PROTOCOL_NAMES, *FILES.values(), *(f"{name}.md" for name in STEPS)}
    if not out or out != Path(out).name or out.startswith(".") or out.casefold() in own or not out.isprintable():
        raise UsageError(f"out={out!r} cannot be the report's name", "give a plain file name that is nobody else's")
    if top < 1:
        raise UsageError(f"top={top} leaves no list", "give a number from 1 on")


async def _look_at_all(task: TaskHandle, job: _Job, name: str, look: Look, rows: list[Row], *, of: str) -> None:
    """A step that looks at every text file, in a thread, with a note every NOTE_EVERY files."""
    async for step in task.todo(name):
        texts, found = [row for row in rows if row["kind"] == "text"], list[Row]()
        for done, some in _batches(texts):
            found += await asyncio.to_thread(job.look_at, some, look)
            step.note(f"{done:,} of {len(texts):,} text files, {len(found):,} rows so far")
        step.result = await asyncio.to_thread(sealed.write, job.workspace / FILES[name], found, of=of)


def _batches(rows: list[Row]) -> Iterator[tuple[int, list[Row]]]:
    for start in range(0, len(rows), NOTE_EVERY):
        some = rows[start : start + NOTE_EVERY]
        yield start + len(some), some


_Part = tuple[Ref, list[Row]]


@dataclass(frozen=True, slots=True)
class _Job:
    """Where the work is done: the workspace, and the tree by the path as given.

    The workspace is no argument of a step: moving it must not look like other work.
    """

    workspace: Path
    root: str

    def take_inventory(self, path: str) -> Ref:
        rows = inventory.take(path, without=self.workspace)
        return sealed.write(self.workspace / FILES[INVENTORY], rows, of=_seal_of(path))

    def inventory(self, ref: Ref | None) -> list[Row]:
        """The rows of the inventory that `ref` stands for. Raises Damaged if they are gone or others."""
        try:
            part = self._part(INVENTORY, of=_seal_of(self.root))
        except sealed.Changed:
            part = None
        if part is None or part[0] != ref:
            raise self._to_redo([INVENTORY])
        return part[1]

    def look_at(self, rows: Sequence[Row], look: Look) -> list[Row]:
        return [found for row in rows for found in self._look_at_one(row, look)]

    def _look_at_one(self, row: Row, look: Look) -> Iterable[Row]:
        if row["size"] > MAX_TEXT_BYTES:
            return [{"path": row["path"], MISSED: "listed, but too large to look into"}]
        text = inventory.read_as_listed(self.root, row)
        if text is None:
            return [{"path": row["path"], MISSED: "listed, but changed or gone when it was to be read"}]
        return look(row["path"], text)

    def find_duplicates(self, ref: Ref) -> Ref:
        groups = inventory.duplicates(self.inventory(ref))
        return sealed.write(self.workspace / FILES[DUPLICATES], groups, of=ref["sha256"])

    def refs(self, ref: Ref) -> dict[str, Ref | None]:
        """What the report stands on, by step: so a step done again makes the report's arguments others.

        Raises Damaged with the name of every step whose file was edited or is older than the inventory.
        """
        return {name: part and part[0] for name, part in self._parts(ref).items()}

    def write_report(self, ref: Ref, refs: dict[str, Ref | None], out: str, top: int) -> dict[str, Any]:
        found = self._findings(ref, refs)
        data = report(found, top).encode()
        sealed.replace(self.workspace / out, data)
        return {"report": out, "sha256": hashlib.sha256(data).hexdigest(), **_counts(found)}

    def _findings(self, ref: Ref, refs: dict[str, Ref | None]) -> Findings:
        parts = self._parts(ref)
        if others := [name for name, part in parts.items() if (part and part[0]) != refs[name]]:
            raise self._to_redo(others)
        known = {name: part and part[1] for name, part in parts.items()}
        return Findings(
            self.root, self.inventory(ref), known[LANGUAGES], known[FUNCTIONS], known[TODOS], known[DUPLICATES]
        )

    def _parts(self, ref: Ref) -> dict[str, _Part | None]:
        parts, changed = dict[str, _Part | None](), list[str]()
        for name in (*LOOKS, DUPLICATES):
            try:
                parts[name] = self._part(name, of=ref["sha256"])
            except sealed.Changed:
                changed.append(name)
        if changed:
            raise self._to_redo(changed)
        return parts

    def _part(self, name: str, *, of: str) -> _Part | None:
        """What a step left, or None if it left nothing: a person skipped it, or took its file away."""
        try:
            return sealed.read(self.workspace / FILES[name], of=of)
        except FileNotFoundError:
            return None

    def _to_redo(self, names: list[str]) -> Damaged:
        files = ", ".join(FILES[name] for name in names)
        commands = " && ".join(f'orchestrator redo {self.workspace.name} "{name}"' for name in names)
        return Damaged(f"not as written for this run, or gone: {files}", f"have it made again: {commands}")


def _seal_of(path: str) -> str:
    return f"the tree at {path}"


def _counts(found: Findings) -> dict[str, int]:
    return {
        "files": sum(row["kind"] in ("text", "binary") for row in found.inventory),
        "lines": sum(map(lines, seen(found.languages))),
        "todos": len(seen(found.todos)),
        "duplicates": len(found.duplicates or ()),
    }
