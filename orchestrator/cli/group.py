"""The command group, and what its commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import click

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


def value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
