"""Commands that start tasks, look at them, and go on with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from orchestrator import errors
from orchestrator.cli.group import command, json_option, root, task_argument, task_ids, value_of, workers


def _worker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--deaths", type=click.IntRange(1), help="Attempts that may die in a row without a finished step [3]."
        ),
        click.option(
            "--env", "env", multiple=True, metavar="KEY=VALUE", help="Set in the worker's environment. Repeatable."
        ),
        click.option(
            "--arg", "args", multiple=True, metavar="KEY=VALUE", help="An argument; VALUE is JSON, or else text."
        ),
        click.option("--name", help="The task's name, for people [default: the worker's]."),
        click.argument("worker", shell_complete=workers),
    ):
        function = option(function)
    return function


def _spec(worker: str, name: str | None, args: tuple[str, ...], env: tuple[str, ...], deaths: int | None) -> Any:
    import dataclasses

    from orchestrator.resolving import resolve

    spec = resolve(worker, name=name, args={k: value_of(v) for k, v in map(_pair, args)}, env=dict(map(_pair, env)))
    limits = spec.limits if deaths is None else dataclasses.replace(spec.limits, deaths=deaths)
    return dataclasses.replace(spec, limits=limits)


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise errors.UsageError(f"{text!r} is no KEY=VALUE", "write it like --arg path=/some/dir")
    return key, value


@command()
@_worker_options
@json_option
def run(worker: str, name: str | None, args: Any, env: Any, deaths: int | None, as_json: bool) -> int:
    """Start a task and wait for its end, showing what happens.

    WORKER is `module:function` or `file.py:function` (an async function), the name of an installed skill, or a steps
    file (.yaml).
    """
    from orchestrator.cli.progress import run_task

    return run_task(root(), _spec(worker, name, args, env, deaths), as_json)


@command()
@_worker_options
@json_option
def spawn(worker: str, name: str | None, args: Any, env: Any, deaths: int | None, as_json: bool) -> None:
    """Start a task and return at once; a small supervisor process looks after it.

    WORKER is as for `run`. Prints the task's id.
    """
    from orchestrator.cli.detach import spawn_detached

    task_id = spawn_detached(root(), _spec(worker, name, args, env, deaths))
    click.echo(json.dumps({"id": task_id}) if as_json else task_id)


def _without_collector() -> None:
    """A command that reads thousands of tasks and is gone in a tenth of a second leaves no garbage worth a search."""
    import gc

    gc.disable()


@command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the tasks of the root, oldest first."""
    _without_collector()
    from orchestrator import store
    from orchestrator.cli import show

    rows = list(store.rows(root()))
    if as_json:
        click.echo(json.dumps([show.row_json(row) for row in rows]))
    else:
        show.table(rows, root())


@command()
@task_argument
@json_option
def show(task: str, as_json: bool) -> None:
    """Show one task: its steps, attempts, files, and what was announced."""
    from orchestrator import store
    from orchestrator.cli import show as shown

    seen = store.look(store.paths(root(), task))
    click.echo(json.dumps(shown.look_json(seen)) if as_json else shown.look_text(seen))


@command()
@task_argument
@click.option("--timeout", type=float, metavar="S", help="Give up after S seconds; the task goes on.")
@json_option
def wait(task: str, timeout: float | None, as_json: bool) -> int:
    """Wait for the end of a task and print what it announces.

    Exit code 0 when it completed, 1 when it did not, 75 when it waits for a decision or the time is over.
    """
    from orchestrator.cli.progress import wait_for

    return wait_for(root(), task, timeout, as_json)


@command()
@task_argument
def watch(task: str) -> int:
    """Follow a task as it goes: its steps, and how long each takes. Ends with the task."""
    from orchestrator.cli.progress import watch_task

    return watch_task(root(), task)


@command()
@task_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the task ends.")
@click.option("--attempt", type=int, metavar="N", help="Which of the worker's lives [default: the last].")
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", show_default=True)
def logs(task: str, follow: bool, attempt: int | None, stream: str) -> None:
    """Print what a task's worker wrote to its output."""
    from orchestrator.cli.logs import print_logs

    print_logs(root(), task, follow, attempt, stream)


@command()
@task_argument
@click.option("--path", "as_path", is_flag=True, help="Print where it lies instead.")
def result(task: str, as_path: bool) -> None:
    """Print the full result of a task."""
    from orchestrator import files
    from orchestrator.cli.show import result_path

    path = result_path(root(), task)
    if as_path:
        click.echo(path)
        return
    click.echo(files.read(path, files.JOURNAL_BYTES), nl=False)


@command()
@click.argument("tasks", nargs=-1, metavar="[TASK ...]", shell_complete=task_ids)
@click.option("--dry-run", is_flag=True, help="Only say what would be done; touch nothing.")
@click.option("--wait", "and_wait", is_flag=True, help="Wait until the tasks have ended.")
@click.option("--presume-dead", is_flag=True, help="TASK's machine is gone. If it is not, two work at once.")
@json_option
def recover(tasks: tuple[str, ...], dry_run: bool, and_wait: bool, presume_dead: bool, as_json: bool) -> int:
    """Go on with every task (or those named) that has no worker, at its first unfinished step.

    Prints a line for each: alive (left alone), resumed, ended, waits (for a decision), failed, or damaged. What is
    resumed runs detached, as with `spawn`.
    """
    if dry_run:
        _without_collector()
    if presume_dead and not tasks:
        raise errors.UsageError("which task's machine is gone?", "name it: orchestrator recover TASK --presume-dead")
    from orchestrator.cli.detach import recover_all

    return recover_all(root(), tasks, dry_run=dry_run, and_wait=and_wait, presume_dead=presume_dead, as_json=as_json)


@command()
@task_argument
@json_option
def cancel(task: str, as_json: bool) -> int:
    """End a task for good. Its worker is stopped with everything it started; its files stay."""
    from orchestrator.cli.progress import cancel_task

    return cancel_task(root(), task, as_json)


@command()
@click.option("--path", metavar="DIR", help="The source tree to report on [default: Python's standard library].")
@click.option("--keep", is_flag=True, help="Keep the demo's tasks under --root instead of a temporary directory.")
def demo(path: str | None, keep: bool) -> int:
    """Show it: a real task is killed in the middle of a step, recovered, and loses nothing."""
    from orchestrator.cli.demo import run_demo

    return run_demo(root() if keep else None, path)
