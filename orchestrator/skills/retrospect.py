"""The retrospect over many tasks, as a task of its own: three steps, so that a killed worker goes on where it was.

It computes, and asks no model. What the step before found is an argument of the next: a step that is done anew takes
those after it along.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestrator import Task, current_step
from orchestrator.core import verdict, verdict_text
from orchestrator.errors import UsageError
from orchestrator.report import retrospects

READ, JUDGE, WRITE = "read the tasks", "judge the skills", "write the retrospect"


async def retrospect(
    task: Task, root: str | None = None, skill: str | None = None, all: bool = True, out: str = "retrospect.md"
) -> dict[str, Any]:
    """Judge the skill `skill`, or all of them, over the tasks of `root`, and write it to `out` in the workspace.

    `root` is absolute, and by default the one that this task is in; the task itself is left out. Returns {"report",
    "tasks", "skills", "damaged"}: the report's name, the numbers of tasks and of damaged ones, and of each skill its
    name, the verdict and the sentence.

    Raises UsageError before the first step when `root` or `out` cannot be, or neither `skill` nor `all` is given.
    """
    where = root or os.environ.get("ORCHESTRATOR_ROOT") or str(task.workspace.parent)
    _check(where, skill, all, out)
    await task.plan([READ, JUDGE, WRITE])
    found = await task.step(READ, read, where, skill, task.id)
    verdicts = await task.step(JUDGE, judge, found)
    await task.step(WRITE, write, str(task.workspace / out), verdicts["text"], outputs=[out])
    return {"report": out, **verdicts["summary"]}


def _check(root: str, skill: str | None, all_: bool, out: str) -> None:
    if not os.path.isabs(root) or not os.path.isdir(root):
        raise UsageError(f"root={root!r} is no directory that a worker can find", "give its absolute path")
    if skill is None and not all_:
        raise UsageError("which tasks?", "name a skill, or leave `all` as it is")
    own = {"task.md", "task-retro.md", "results", *(f"{name}.md" for name in (READ, JUDGE, WRITE))}
    if not out or out != Path(out).name or out.startswith(".") or out.casefold() in own or not out.isprintable():
        raise UsageError(f"out={out!r} cannot be the report's name", "give a plain file name that is nobody else's")


def read(root: str, skill: str | None, besides: str) -> dict[str, Any]:
    records, damaged = retrospects.gather(root, skill, besides)
    current_step().note(f"{len(records)} tasks of {root}, {len(damaged)} of them damaged")
    return {"records": [verdict.record_to_json(found) for found in records], "damaged": damaged}


def judge(found: dict[str, Any]) -> dict[str, Any]:
    verdicts = verdict.judge_all(map(verdict.record_from_json, found["records"]))
    for one in verdicts:
        current_step().note(f"{one.skill}: {verdict_text.sentence(one)}")
    summary = {
        "tasks": len(found["records"]),
        "skills": [{"skill": v.skill, "verdict": v.word, "said": verdict_text.sentence(v)} for v in verdicts],
        "damaged": len(found["damaged"]),
    }
    return {"summary": summary, "text": verdict_text.render(verdicts, found["damaged"])}


def write(path: str, text: str) -> None:
    temporary = Path(path + ".part")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
