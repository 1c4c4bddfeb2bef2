"""What a person reads of tasks at the command line, and the JSON of the same."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator import family, files, store
from orchestrator.core.model import StepStatus
from orchestrator.errors import Damaged, OrchestratorError, TaskNotFound
from orchestrator.store import Look, Row

if TYPE_CHECKING:
    from orchestrator.core.checklist import Checklist

MARKS = {
    StepStatus.DONE: ("✔", "green"),
    StepStatus.WORKING: ("▶", "cyan"),
    StepStatus.PENDING: ("·", "bright_black"),
    StepStatus.FAILED: ("✘", "red"),
    StepStatus.SKIPPED: ("–", "bright_black"),
    StepStatus.UNCERTAIN: ("?", "yellow"),
}

_COLOURS = {
    "completed": "green", "working": "cyan", "queued": "bright_black", "interrupted": "yellow", "failed": "red",
    "conflict": "red", "cancelled": "bright_black", "uncertain": "yellow", "damaged": "red",
}  # fmt: skip


def row_json(row: Row) -> dict[str, Any]:
    return {"id": row.id, "name": row.name, "state": row.state, "done": row.done, "total": row.total, "at": row.at}


def table(rows: Sequence[Row], root: str) -> None:
    """The list of tasks, in columns; a name is cut at the width of the terminal."""
    if not rows:
        click.echo(f"no tasks in {root}\n  start one: orchestrator run WORKER")
        return
    ids = max(len(r.id) for r in rows)
    width = _width()
    lines = [click.style(f"{'TASK':<{ids}}  {'STATE':<11}  {'STEPS':>7}  NAME", bold=True)]
    for r in rows:
        state = click.style(f"{r.state:<11}", fg=_COLOURS.get(r.state))
        name = cut(r.name, max(10, width - ids - 25))
        lines.append(f"{r.id:<{ids}}  {state}  {f'{r.done}/{r.total}':>7}  {name}")
    click.echo("\n".join(lines))


def _width() -> int:
    return os.get_terminal_size().columns if sys.stdout.isatty() else 120


def cut(text: str, width: int = 200) -> str:
    """At most so many characters, and none that a terminal would obey."""
    text = "".join(map(_shown, text))
    return text if len(text) <= width else text[: width - 1] + "…"


def _shown(char: str) -> str:
    if char.isspace():
        return " "
    # the joiners are part of words, and of emoji
    return char if char.isprintable() or char in "\u200c\u200d" else "\ufffd"


def look_json(seen: Look) -> dict[str, Any]:
    """The stable form of one task, schema 1 (docs/protocol.md)."""
    snapshot = seen.snapshot
    said = seen.announcement()
    attempt = snapshot.attempt
    return {
        "schema": 1,
        "id": seen.task_id,
        "name": seen.title,
        "state": seen.state,
        "path": seen.where.directory,
        "steps": [
            {
                "name": s.label,
                "status": s.status.value,
                "tries": s.tries,
                "file": s.file,
                "error": s.error.to_json() if s.error else None,
                "why": s.why or None,
            }
            for s in (snapshot.steps[label] for label in snapshot.order)
        ],
        "attempts": len(snapshot.attempts),
        "deaths": snapshot.deaths,
        "worker": attempt.identity.pid if attempt and attempt.identity and seen.alive else None,
        "resume": step.label if (step := snapshot.resume_point()) else None,
        "announcement": store.announcement_to_json(said) if said else None,
        "damage": seen.damage,
        "children": [{"id": row.id, "name": row.name, "state": row.state} for row in _children(seen)],
    }


def _children(seen: Look) -> list[Row]:
    return [store.row(child) for child in family.children(seen.where)]


def look_text(seen: Look) -> str:
    snapshot = seen.snapshot
    state = click.style(seen.state, fg=_COLOURS.get(seen.state), bold=True)
    lines = [f"{click.style(cut(seen.title), bold=True)}", f"{seen.task_id}  {state}", ""]
    lines += [_step_line(snapshot.steps[label]) for label in snapshot.order]
    if not snapshot.order and seen.face is not None:
        lines += [f"  {MARKS[s.status][0]} {cut(s.name)}" for s in seen.face.steps]
    children = _children(seen)
    if children:
        lines += ["", "sub-tasks:"]
        lines += [f"  {r.id}  {click.style(r.state, fg=_COLOURS.get(r.state))}  {cut(r.name, 60)}" for r in children]
    said = seen.announcement()
    lines += ["", *_life(seen)]
    if said is not None:
        lines += [
            *said.summary.splitlines(),
            *([said.hint] if said.hint and "orchestrator show" not in said.hint else []),
        ]
        lines += [f"result: {said.result}"] if said.result else []
    lines += [click.style(f"damaged: {d}", fg="red") for d in seen.damage]
    lines.append(click.style(seen.where.directory, fg="bright_black"))
    return "\n".join(lines)


def _life(seen: Look) -> list[str]:
    snapshot = seen.snapshot
    attempt = snapshot.attempt
    if attempt is None and not snapshot.generation:
        return ["no worker has been started yet"]
    said = f"attempt {attempt.number}, begun {attempt.at}" if attempt else "told by its checklist: its journal was lost"
    if attempt and seen.alive and attempt.identity:
        said += f", worker {attempt.identity.pid}"
    if snapshot.end is None and not seen.alive and not snapshot.attention:  # else the hint says how it goes on
        step = snapshot.resume_point()
        where = f"at step {step.label!r}" if step else "to its end"
        return [said, f"nobody works on it; it goes on {where}: orchestrator recover {seen.task_id}"]
    return [said]


def _step_line(step: Any) -> str:
    mark, colour = MARKS[step.status]
    more = ""
    if step.tries > 1:
        more += f"  ({step.tries} tries)"
    if step.error and step.status is StepStatus.FAILED:
        more += f"  {cut(' '.join(step.error.message.split()), 100)}"
    if step.why:
        more += f"  {cut(' '.join(step.why.split()))}"
    return f"  {click.style(mark, fg=colour)} {cut(step.label)}{click.style(more, fg='bright_black')}"


_MADE_AGAIN = "make it again from the journal: orchestrator doctor --fix"


def result_path(root: str, task_id: str) -> str:
    """Where the full result of a task lies.

    Raises TaskNotFound when it has none, Damaged when what lies there is not what it gave.
    """
    from orchestrator import damage  # not for a list

    seen = store.look(store.paths(root, task_id))
    said = seen.announcement()
    if said is None:
        raise TaskNotFound(f"{task_id} has not ended: it is {seen.state}", f"wait for it: orchestrator wait {task_id}")
    if said.result is None:
        raise TaskNotFound(
            f"{task_id} has no result: {said.summary.splitlines()[0]}", f"see: orchestrator show {task_id}"
        )
    for wrong in damage.result_wrongs(seen.where, seen.snapshot):
        raise Damaged(f"{task_id}: {wrong.what}", wrong.hint or _MADE_AGAIN)
    return f"{seen.where.results}/result.json"  # not the path in the announcement: the root may have been moved


def lint_path(root: str, path: str, as_json: bool) -> int:
    """The `lint` command, on a file, a task's directory, or a task's id."""
    from orchestrator.core.checklist import Checklist

    if os.path.isdir(path):
        path = os.path.join(path, "task.md")
    elif not os.path.lexists(path):
        path = store.paths(root, path).task_md
    try:
        face = Checklist.parse(files.read(path))
    except FileNotFoundError:
        raise TaskNotFound(f"{path}: there is no such file", "name a task.md, a task's directory or its id") from None
    except Damaged as error:
        return _unreadable(error, as_json)
    if as_json:
        click.echo(json.dumps(face.lint_json(), ensure_ascii=False))
    else:
        _print_lint(path, face)
    return 65 if face.damaged else 0


def _unreadable(error: OrchestratorError, as_json: bool) -> int:
    if not as_json:
        raise error
    finding = {"line": None, "code": "unreadable", "message": error.what}
    click.echo(json.dumps({"damaged": True, "ended": False, "resume": None, "steps": [], "findings": [finding]}))
    return 65


def _print_lint(path: str, face: Checklist) -> None:
    from orchestrator.core.canonical import MENDED

    for found in face.findings:
        click.echo(f"{path}:{found.line or 1}: {found.code}: {found.message}")
    if any(found.code in MENDED for found in face.findings) and not face.damaged:
        click.echo(f"to have it written as we write it: orchestrator repair {path}")
    for step in face.steps:
        mark, colour = MARKS[step.status]
        click.echo(f"  {click.style(mark, fg=colour)} {cut(step.name)}")
    if face.damaged:
        click.echo("damaged: it cannot be read as a checklist")
    elif face.ended:
        click.echo("ended")
    elif face.resume is not None:
        click.echo(f"goes on at: {cut(face.steps[face.resume].name)}")
    else:
        click.echo("no step is open, and it has not ended")
