"""The command line. Commands import what they need when they run: `list` must not pay for `spawn`."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from orchestrator import errors
from orchestrator.errors import OrchestratorError

_EPILOG = "A task's files lie under ROOT/TASK: task.md is the checklist. docs/protocol.md explains all of them."


def root_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--root on every command, before or after its name; ORCHESTRATOR_ROOT, else `workspaces`."""

    def remember(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.find_root().obj = value

    option = click.option(
        "--root",
        metavar="DIR",
        callback=remember,
        expose_value=False,
        help="Where the tasks are [default: workspaces].",
    )
    return option(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def root() -> str:
    """The root of this call, absolute."""
    given = click.get_current_context().find_root().obj
    return os.path.abspath(given or os.environ.get("ORCHESTRATOR_ROOT") or "workspaces")


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@root_option
@click.version_option(package_name="delegate-orchestrator", prog_name="orchestrator")
def cli() -> None:
    """Delegate heavy work to worker processes that can be killed at any moment and lose nothing.

    Every step of a task is done once: kill the worker, the coordinator, the machine; `recover` goes on at the first
    step that is not done.
    """


def command(name: str | None = None, **more: Any) -> Callable[[Callable[..., Any]], click.Command]:
    def wrap(function: Callable[..., Any]) -> click.Command:
        return cli.command(name, **more)(root_option(function))

    return wrap


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
        click.argument("worker"),
    ):
        function = option(function)
    return function


def _spec(worker: str, name: str | None, args: tuple[str, ...], env: tuple[str, ...], deaths: int | None) -> Any:
    import dataclasses

    from orchestrator.compose import resolve

    spec = resolve(worker, name=name, args={k: _value(v) for k, v in map(_pair, args)}, env=dict(map(_pair, env)))
    limits = spec.limits if deaths is None else dataclasses.replace(spec.limits, deaths=deaths)
    return dataclasses.replace(spec, limits=limits)


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise errors.UsageError(f"{text!r} is no KEY=VALUE", "write it like --arg path=/some/dir")
    return key, value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


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


@command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the tasks of the root, oldest first."""
    from orchestrator import store
    from orchestrator.cli import show

    rows = list(store.rows(root()))
    if as_json:
        click.echo(json.dumps([show.row_json(row) for row in rows]))
    else:
        show.table(rows, root())


@command()
@click.argument("task")
@json_option
def show(task: str, as_json: bool) -> None:
    """Show one task: its steps, attempts, files, and what was announced."""
    from orchestrator import store
    from orchestrator.cli import show as shown

    seen = store.look(store.paths(root(), task))
    click.echo(json.dumps(shown.look_json(seen)) if as_json else shown.look_text(seen))


@command()
@click.argument("task")
@click.option("--timeout", type=float, metavar="S", help="Give up after S seconds; the task goes on.")
@json_option
def wait(task: str, timeout: float | None, as_json: bool) -> int:
    """Wait for the end of a task and print what it announces.

    Exit code 0 when it completed, 1 when it did not, 75 when it waits for a decision or the time is over.
    """
    from orchestrator.cli.progress import wait_for

    return wait_for(root(), task, timeout, as_json)


@command()
@click.argument("task")
def watch(task: str) -> int:
    """Follow a task as it goes: its steps, and how long each takes. Ends with the task."""
    from orchestrator.cli.progress import watch_task

    return watch_task(root(), task)


@command()
@click.argument("task")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task ends.")
@click.option("--attempt", type=int, metavar="N", help="Which of the worker's lives [default: the last].")
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", show_default=True)
def logs(task: str, follow: bool, attempt: int | None, stream: str) -> None:
    """Print what a task's worker wrote to its output."""
    from orchestrator.cli.progress import print_logs

    print_logs(root(), task, follow, attempt, stream)


@command()
@click.argument("task")
@click.option("--path", "as_path", is_flag=True, help="Print where it lies instead.")
def result(task: str, as_path: bool) -> None:
    """Print the full result of a task."""
    from orchestrator.cli.show import result_path

    path = result_path(root(), task)
    if as_path:
        click.echo(path)
        return
    with open(path, encoding="utf-8") as file:
        click.echo(file.read(), nl=False)


@command()
@click.argument("tasks", nargs=-1, metavar="[TASK ...]")
@click.option("--dry-run", is_flag=True, help="Only say what would be done; touch nothing.")
@click.option("--wait", "and_wait", is_flag=True, help="Wait until the tasks have ended.")
@json_option
def recover(tasks: tuple[str, ...], dry_run: bool, and_wait: bool, as_json: bool) -> int:
    """Go on with every task (or those named) that has no worker, at its first unfinished step.

    Prints a line for each: alive (left alone), resumed, ended, waits (for a decision), failed, or damaged. What is
    resumed runs detached, as with `spawn`.
    """
    from orchestrator.cli.detach import recover_all

    return recover_all(root(), tasks, dry_run=dry_run, and_wait=and_wait, as_json=as_json)


@command()
@click.argument("task")
@json_option
def cancel(task: str, as_json: bool) -> int:
    """End a task for good. Its worker is stopped with everything it started; its files stay."""
    from orchestrator.cli.progress import cancel_task

    return cancel_task(root(), task, as_json)


@command()
@click.argument("path")
@json_option
def lint(path: str, as_json: bool) -> int:
    """Read a task.md (or a task, by id) and say what is unusual in it, line by line.

    Exit code 65 when it cannot be read as a checklist, else 0.
    """
    from orchestrator.cli.show import lint_path

    return lint_path(root(), path, as_json)


@command()
@click.option("--path", metavar="DIR", help="The source tree to report on [default: Python's standard library].")
@click.option("--keep", is_flag=True, help="Keep the demo's tasks under --root instead of a temporary directory.")
def demo(path: str | None, keep: bool) -> int:
    """Show it: a real task is killed in the middle of a step, recovered, and loses nothing."""
    from orchestrator.cli.demo import run_demo

    return run_demo(root() if keep else None, path)


def main() -> NoReturn:
    """The console script. Every error is one line that says what and one that says what to do, with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a worker's words may hold what the terminal's encoding has not
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _call()
    except OrchestratorError as error:
        code = _fail(error.what, error.hint, error.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "orchestrator"
        code = _fail(error.format_message(), f"see: {where} --help", errors.UsageError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        from orchestrator import files

        os.dup2(files.open_log(os.devnull), 1)  # nobody reads any more: no complaint at exit either
        code = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _fail(
            f"{where}{error.strerror or error}", _HINTS.get(error.errno or 0, "nothing was lost; try again"), 74
        )
    sys.exit(code if isinstance(code, int) else 0)


def _call() -> Any:
    """Run the command. Of errors that came at once, the first that says what to do is the one to tell."""
    try:
        return cli.main(standalone_mode=False)
    except BaseExceptionGroup as group:
        first: BaseException = group.subgroup((OrchestratorError, OSError)) or group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


_HINTS = {
    28: "the disk is full: free some space, then: orchestrator recover",
    122: "your quota is used up: free some space, then: orchestrator recover",
    27: "files may not grow so large: raise the limit (ulimit -f) or free some space, then: orchestrator recover",
    30: "the file system is read-only: name another place with --root",
    13: "look at the permissions, or name another place with --root",
}


def _fail(what: str, hint: str, code: int) -> int:
    click.echo(f"orchestrator: {what}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)
    return code


if __name__ == "__main__":
    main()
