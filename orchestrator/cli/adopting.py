"""Commands for what others made, or damaged: rewrite a task.md as we write it, take over a whole workspace."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from orchestrator import store
from orchestrator.cli.group import command, json_option, root, task_ids

if TYPE_CHECKING:
    from orchestrator.adoption import Adopted
    from orchestrator.repairing import Plan


@command()
@click.argument("path", metavar="TASK|PATH", shell_complete=task_ids)
@click.option("--yes", is_flag=True, help="Write it without asking.")
@json_option
def repair(path: str, yes: bool, as_json: bool) -> int:
    """Rewrite a task.md as we write it. Shows first what would be changed; no step and no note is lost.

    Without --yes it asks, and where nobody can answer it writes nothing and leaves with exit code 1. A task whose
    worker lives is refused: that keeps its task.md in order itself.
    """
    from orchestrator import repairing

    shown = repairing.plan(_task_md(path))
    if not as_json:
        _show(shown)
    write = shown.changes and (yes or _agreed(as_json))
    if write:
        repairing.carry_out(shown)
    if as_json:
        click.echo(json.dumps(_plan_json(shown, write), ensure_ascii=False))
    elif write:
        click.echo(f"{shown.path}: written")
    return 0 if write or not shown.changes else 1


def _task_md(path: str) -> str:
    if os.path.isdir(path):
        return os.path.join(path, "task.md")
    return path if os.path.lexists(path) else store.paths(root(), path).task_md


def _agreed(as_json: bool) -> bool:
    if as_json:
        return False
    if sys.stdin.isatty():
        return click.confirm("Write it?", default=False)
    click.echo("nothing was written; to write it: --yes", err=True)
    return False


def _show(shown: Plan) -> None:
    for line in shown.diff().splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        click.echo(click.style(line, fg=colour))
    if not shown.changes:
        click.echo(f"{shown.path}: nothing to repair")
    for finding in shown.left:
        click.echo(f"left as it is: {shown.path}:{finding.line or 1}: {finding.code}: {finding.message}")


def _plan_json(shown: Plan, written: bool) -> dict[str, Any]:
    return {
        "path": shown.path,
        "changes": shown.changes,
        "written": written,
        "diff": shown.diff(),
        "findings": [finding._asdict() for finding in shown.findings],
        "left": [finding._asdict() for finding in shown.left],
    }


@command()
@click.argument("directory", metavar="DIR", type=str)
@click.option("--worker", metavar="WORKER", help="What runs its steps; as for `run`.")
@click.option("--name", help="The task's name [default: what its task.md says].")
@click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="An argument; VALUE is JSON, or else text.")
@click.option("--env", "env", multiple=True, metavar="KEY=VALUE", help="Set in the worker's environment. Repeatable.")
@click.option("--start/--no-start", default=True, help="Go on with it now [default], or only take it in.")
@json_option
def adopt(
    directory: str,
    worker: str | None,
    name: str | None,
    args: tuple[str, ...],
    env: tuple[str, ...],
    start: bool,
    as_json: bool,
) -> None:
    """Take over a workspace that another tool made, or a task that lost what it is to run (DIR may be its id).

    Steps that its task.md shows as done stay done; WORKER goes on at the first that is not. A directory of the root
    that has a task's id is adopted where it lies, any other is copied and left as it is. Prints the task's id.
    """
    from orchestrator import adoption
    from orchestrator.cli.detach import start_supervisor

    spec = _spec(worker, name, args, env)
    found = adoption.adopt(root(), directory, spec, time.time, name=name, start=start)
    if found.lock is not None:
        start_supervisor(found.where, found.lock)
    if as_json:
        said = {"id": found.where.task_id, "action": found.action, "step": found.step, "reason": found.reason}
        click.echo(json.dumps({**said, "notices": found.notices}))
        return
    click.echo(found.where.task_id)
    for line in (*_said(found), *found.notices):
        click.echo(f"  {line}", err=True)


def _spec(worker: str | None, name: str | None, args: tuple[str, ...], env: tuple[str, ...]) -> Any:
    if worker is None:
        return None
    from orchestrator.cli import tasks

    return tasks._spec(worker, name, args, env, None)


def _said(found: Adopted) -> list[str]:
    at = f"at step {found.step!r}" if found.step else "from the top, or to its end"
    task = found.where.task_id
    if found.action == "resumed":
        return [f"it goes on {at}"]
    if found.action == "ended":
        return [f"it had ended already ({found.reason}); it was not started"]
    if found.action == "waits":
        return [found.reason]
    way = f"orchestrator recover {task}" if found.runnable else f"orchestrator adopt {task} --worker WORKER"
    return [f"it was not started; to go on {at}: {way}"]
