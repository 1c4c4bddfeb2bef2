"""The command group, and what its commands share."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Which commands there are, by the module they lie in. A module is imported when one of its commands is asked for.
ROOMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tasks": (
        "Start and follow tasks",
        ("run", "spawn", "list", "show", "wait", "watch", "logs", "result", "recover", "cancel", "demo"),
    ),
    "steering": (
        "Steer a task",
        ("retry", "redo", "skip", "resolve", "pause", "continue", "send", "answer"),
    ),
    "inspecting": ("Understand and keep", ("explain", "doctor", "gc", "config", "serve", "completion")),
    "retrospects": ("", ("retro",)),
    "keeping": ("", ("lint",)),
    "adopting": ("", ("repair", "adopt")),
    "skilling": ("Skills", ("skill", "delegate")),
}

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
    return root_of(click.get_current_context())[0]


def root_of(context: click.Context) -> tuple[str, str]:
    """The root of a call, absolute, and where its name comes from."""
    given = context.find_root().obj
    for value, source in ((given, "--root"), (os.environ.get("ORCHESTRATOR_ROOT"), "ORCHESTRATOR_ROOT")):
        if value:
            return os.path.abspath(value), source
    return os.path.abspath("workspaces"), "default"


def task_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """What a shell completes: the ids of the root's tasks, the newest first."""
    from orchestrator import store
    from orchestrator.errors import OrchestratorError

    try:
        return [i for i in reversed(store.task_ids(root_of(context)[0])) if i.startswith(incomplete)]
    except (OSError, OrchestratorError):
        return []


def task_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """TASK, the whole id of a task; completed by the shell."""
    return click.argument("task", shell_complete=task_ids)(function)


def step_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """STEP, a step of TASK as `show` names it; completed by the shell."""
    return click.argument("step", shell_complete=_steps)(function)


def _steps(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from orchestrator import store
    from orchestrator.errors import OrchestratorError

    try:
        seen = store.look(store.paths(root_of(context)[0], context.params["task"]))
    except (KeyError, OSError, OrchestratorError):
        return []
    return [label for label in seen.snapshot.order if label.startswith(incomplete)]


def workers(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell completes for WORKER: the skills by name, and files."""
    from click.shell_completion import CompletionItem

    from orchestrator import resolving, skillfiles

    named = {found.name for found in skillfiles.everything(skillfiles.places(os.environ))}
    names = sorted(name for name in named | resolving.installed_skills().keys() if name.startswith(incomplete))
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def _first_sentence(command: click.Command) -> str:
    """What a command does, whole: a line that is cut says less than two."""
    text = " ".join((command.short_help or command.help or "").split("\n\n")[0].split())
    return text.split(". ")[0].removesuffix(".") + "."


class Rooms(click.Group):
    """A group whose commands are found by the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for _, names in ROOMS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            room = next((room for room, (_, names) in ROOMS.items() if cmd_name in names), None)
            if room is not None:
                importlib.import_module(f"orchestrator.cli.{room}")
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands under the titles of their rooms; a room without one goes on with the one before it."""
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for title, names in ROOMS.values():
            if title:
                sections.append((title, []))
            for name in names:
                command = self.get_command(ctx, name)
                if command is not None:
                    sections[-1][1].append((name, _first_sentence(command)))
        for title, rows in sections:
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(
    cls=Rooms, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
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
    except RecursionError:
        raise UsageError(
            f"the value {text[:20]}… is nested too deep", "give it in a file whose path is the argument"
        ) from None
