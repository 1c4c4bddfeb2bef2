"""The command that looks back: what a task cost, and what many tasks say of their skill."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from orchestrator import errors
from orchestrator.cli.group import command, json_option, root, task_ids

if TYPE_CHECKING:
    from orchestrator.report.retrospects import Found
    from orchestrator.store import Paths


@command()
@click.argument("task", required=False, shell_complete=task_ids)
@click.option("--all", "every", is_flag=True, help="Over all tasks of the root, by skill.")
@click.option("--skill", metavar="S", help="Over the tasks of this skill: module:function, or the function's name.")
@json_option
def retro(task: str | None, every: bool, skill: str | None, as_json: bool) -> None:
    """Say what a task cost: times, tries, errors, crashes. Writes its task-retro.md.

    Over many tasks: whether the same step keeps failing for the same reason, so that the skill needs a change; tasks
    that have ended and lack their task-retro.md get it.
    """
    if task is not None and (every or skill):
        raise errors.UsageError("name a task, or ask for many: not both", "orchestrator retro TASK | --all | --skill S")
    if task is None and not every and skill is None:
        raise errors.UsageError("which task?", "orchestrator retro TASK   or, over all: orchestrator retro --all")
    if task is not None:
        _one(task, as_json)
    else:
        _many(skill, as_json)


def _one(task: str, as_json: bool) -> None:
    from orchestrator import store
    from orchestrator.report import retrospects

    where = store.paths(root(), task)
    found, failure = _write(where)
    held = found is None and failure is None
    found = found or retrospects.find(where)
    if as_json:
        click.echo(json.dumps(found.json))
    else:
        show_markdown(found.text)
        for said in found.seen.damage:
            click.echo(f"damaged: {said}", err=True)
    if failure is not None:
        raise failure
    if held:
        click.echo("task-retro.md was not written: the task is being worked on, and its end writes it", err=True)


def _write(where: Paths) -> tuple[Found | None, OSError | None]:
    """A disk that takes nothing keeps nobody from reading."""
    from orchestrator.report import retrospects

    try:
        return retrospects.write(where), None
    except OSError as error:
        return None, error


def _many(skill: str | None, as_json: bool) -> None:
    from orchestrator.core import verdict, verdict_text
    from orchestrator.report import retrospects

    records, damaged = retrospects.gather(root(), skill)
    if skill is not None and not records:
        known = sorted({found.skill for found in retrospects.gather(root())[0]})
        shown = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
        raise errors.TaskNotFound(f"no task of skill {skill!r} in {root()}", f"there are tasks of: {shown or 'none'}")
    verdicts = verdict.judge_all(records)
    retrospects.write_missing(root(), records)
    if as_json:
        click.echo(json.dumps(verdict_text.to_json(verdicts, damaged)))
    else:
        show_markdown(verdict_text.render(verdicts, damaged))


def show_markdown(text: str) -> None:
    """Markdown, set for a terminal; as it is for anything else."""
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))
