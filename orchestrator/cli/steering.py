"""Commands by which a person steers a task."""

from __future__ import annotations

from typing import Any

import click

from orchestrator import errors
from orchestrator.cli.group import command, json_option, root, step_argument, task_argument, value_of


def _ordered(task: str, verb: str, as_json: bool, **fields: Any) -> int:
    from orchestrator.cli.ordering import give

    return give(root(), task, verb, as_json, **fields)


@command()
@task_argument
@json_option
def retry(task: str, as_json: bool) -> int:
    """Go on with a task that failed: its failed steps get their tries anew."""
    return _ordered(task, "retry", as_json)


@command()
@task_argument
@step_argument
@json_option
def redo(task: str, step: str, as_json: bool) -> int:
    """Have a finished step done anew, also in a task that has ended; steps that get other arguments by it follow."""
    return _ordered(task, "redo", as_json, step=step)


@command()
@task_argument
@step_argument
@click.option("--why", help="The reason, for whoever reads it later.")
@json_option
def skip(task: str, step: str, why: str | None, as_json: bool) -> int:
    """Pass over a step that is not finished."""
    return _ordered(task, "skip", as_json, step=step, why=why or "skipped by a person")


@command()
@task_argument
@step_argument
@click.option("--done", "done", flag_value=True, type=bool, default=None, help="Its effect took place.")
@click.option("--redo", "done", flag_value=False, type=bool, help="It did not: run the step again.")
@click.option("--result", metavar="JSON", help="With --done: the result that the step would have given.")
@json_option
def resolve(task: str, step: str, done: bool | None, result: str | None, as_json: bool) -> int:
    """Say whether a step took effect when nobody else can know."""
    if done is None:
        raise errors.UsageError("say which it was", "--done: its effect took place   --redo: it did not")
    if result is not None and not done:
        raise errors.UsageError("--result goes with --done", "leave it out")
    value = None if result is None else value_of(result)
    return _ordered(task, "resolve", as_json, step=step, done=done, result=value)


@command()
@task_argument
@json_option
def pause(task: str, as_json: bool) -> int:
    """Stop a task at its next step border; it spends none of its tries, and waits for `continue`."""
    return _ordered(task, "pause", as_json)


@command("continue")
@task_argument
@json_option
def continue_(task: str, as_json: bool) -> int:
    """Go on with a task that was paused."""
    return _ordered(task, "continue", as_json)


@command()
@task_argument
@click.argument("text")
@json_option
def send(task: str, text: str, as_json: bool) -> int:
    """Send a message to a task's worker, which reads it between its steps."""
    return _ordered(task, "send", as_json, text=text)


@command()
@task_argument
@click.argument("text")
@click.option("--question", help="Which question, when several are open.")
@json_option
def answer(task: str, text: str, question: str | None, as_json: bool) -> int:
    """Answer the question that a task waits for; work goes on."""
    return _ordered(task, "answer", as_json, text=text, question=question)
