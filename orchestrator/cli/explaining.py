"""What a person reads of an explanation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

import click

from orchestrator import inspection, store
from orchestrator.cli.show import cut
from orchestrator.core.evidence import Evidence
from orchestrator.core.explain import Budget, Explanation, explain


def explain_task(root: str, task_id: str, as_json: bool) -> None:
    found = explain(inspection.facts_of(store.paths(root, task_id), time.time))
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        click.echo("\n".join(text(found, time.time())))


def text(found: Explanation, now: float) -> Iterator[str]:
    yield f"{found.task}  {click.style(found.state, bold=True)}"
    yield f"  {cut(found.why, 1000)}"
    yield ""
    yield from _part("evidence", [_evidence(one, now) for one in found.evidence])
    yield from _part("budget", [_budget(one) for one in found.budget])
    yield from _part("orders not carried out yet", found.orders)
    yield from _part("edits of task.md not taken over yet", found.edits)
    yield from _part("next", [_next(found)])


def _part(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield click.style(title, bold=True)
        yield from (f"  {cut(line, 1000)}" for line in lines)


def _evidence(one: Evidence, now: float) -> str:
    where = f"journal line {one.line}" if one.line else ""
    when = f"{one.at}, {_age(one.at, now)} ago" if one.at else ""
    told = ", ".join(filter(None, (where, when)))
    return f"{one.what}  ({told})" if told else one.what


def _age(at: str, now: float) -> str:
    try:
        seconds = max(0, int(now - store.seconds_of(at)))
    except ValueError:
        return "?"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


def _budget(one: Budget) -> str:
    limit = "; its limit is not written down" if one.limit is None else f" of {one.limit:g}"
    return f"{one.name}: {one.spent:g}{limit}"


_WHEN = {"now": "now", "soon": "at its next look", "on command": "when you give the command", "never": ""}
_BY = {"worker": "by its worker", "supervisor": "by whoever looks after it", "person": "by you", "nobody": ""}


def _next(found: Explanation) -> str:
    step = found.next
    told = ", ".join(filter(None, (_BY[step.by], _WHEN[step.when])))
    said = f"{step.what} ({told})" if told else step.what
    return f"{said}: {step.command}" if step.command else said
