"""Commands that look after a root: explain a state, examine and mend, clear away, serve, show what is configured."""

from __future__ import annotations

import sys

import click

from orchestrator.cli.group import cli, command, json_option, root, root_of, root_option, task_argument


@command()
@task_argument
@json_option
def explain(task: str, as_json: bool) -> None:
    """Say why a task is in its state, on what evidence, and what happens next.

    The evidence is lines of its journal with their numbers and times, processes, and who holds its lock; then what is
    spent of its budget, and which orders and edits nobody has taken up yet.
    """
    from orchestrator.cli.explaining import explain_task

    explain_task(root(), task, as_json)


@command()
@click.option("--fix", is_flag=True, help="Mend what can be mended, and say what was done.")
@json_option
def doctor(fix: bool, as_json: bool) -> int:
    """Examine the machine, the root, its tasks, and what crashes left behind.

    With --fix it sweeps what was left, ends processes whose task has ended, removes empty cgroups, and makes damaged
    tasks again from what is left; originals are kept aside. Processes that do not name this root are never touched.

    Exit code 0 when nothing needs a person, else 1.
    """
    from orchestrator.cli.examining import examine

    return examine(root(), fix, as_json)


@command()
@click.option("--older", type=click.FloatRange(0), default=30, show_default=True, metavar="DAYS", help="Since its end.")
@click.option("--failed", is_flag=True, help="Also tasks that failed; a person may still retry them.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@click.option("--yes", is_flag=True, help="Remove them. Without it nothing is removed.")
@json_option
def gc(older: float, failed: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove tasks that completed or were cancelled long ago.

    Lists them first, with their sizes. Removes a directory only when it is a real one, directly under the root, marked
    with its own id, without a mount in it, and without a living process; each is removed whole or not at all.
    """
    from orchestrator.cli.examining import clear

    return clear(root(), older, failed, yes and not dry_run, dry_run, as_json)


@command()
@click.option(
    "--interval", type=click.FloatRange(0.1), default=5, show_default=True, metavar="S", help="Between two looks."
)
def serve(interval: float) -> None:
    """Stay and look after the root: nothing in it is left lying.

    Adopts live workers, goes on with what was interrupted, starts what is queued, carries out orders given while nobody
    held the task. New tasks are seen at once; everything else at the next look. One line of log for each event, JSON
    unless at a terminal. SIGTERM and Ctrl-C end it and leave the workers alive. Several may serve one root.
    """
    import anyio

    from orchestrator.compose import Coordinator
    from orchestrator.serving import serve as serve_root

    anyio.run(serve_root, Coordinator(root()), interval, sys.stdout)


@cli.group()
@root_option
def config() -> None:
    """Show what is configured."""


@config.command("show")
@root_option
@json_option
@click.pass_context
def config_show(context: click.Context, as_json: bool) -> None:
    """Show every value that is in effect, and where it comes from."""
    from orchestrator.cli.examining import show_config

    show_config(*root_of(context), as_json)


@command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and task ids.

    \b
    bash:  eval "$(orchestrator completion bash)"   in ~/.bashrc
    zsh:   eval "$(orchestrator completion zsh)"    in ~/.zshrc
    fish:  orchestrator completion fish | source    in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "orchestrator", "_ORCHESTRATOR_COMPLETE").source())
