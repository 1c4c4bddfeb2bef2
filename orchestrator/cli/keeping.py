"""Commands that keep tasks in order: read, mend, judge, clear away."""

from __future__ import annotations

import click

from orchestrator.cli.group import command, json_option, root, task_ids


@command()
@click.argument("path", shell_complete=task_ids)
@json_option
def lint(path: str, as_json: bool) -> int:
    """Read a task.md (or a task, by id) and say what is unusual in it, line by line.

    Exit code 65 when it cannot be read as a checklist, else 0.
    """
    from orchestrator.cli.show import lint_path

    return lint_path(root(), path, as_json)
