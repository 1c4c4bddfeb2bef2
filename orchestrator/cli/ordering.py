"""The commands by which a person steers a task."""

from __future__ import annotations

import json
from typing import Any

import anyio
import click

from orchestrator import store
from orchestrator.cli.detach import start_supervisor
from orchestrator.compose import Coordinator
from orchestrator.errors import Refused

#: How long the command waits for a living worker to come to its next step border.
PATIENCE_SECONDS = 5.0

_SAID = {
    "retry": "its failed steps get their tries anew",
    "redo": "step {step!r} is done anew",
    "skip": "step {step!r} is passed over",
    "resolve": "step {step!r} is settled",
    "pause": "it waits; to go on: orchestrator continue {task}",
    "continue": "it goes on",
    "send": "the message waits for the worker's next step",
    "answer": "the answer was taken down",
}


def give(root: str, task_id: str, verb: str, as_json: bool, **fields: Any) -> int:
    """Give an order, start the work that it makes possible, and say what came of it."""
    patience = 0.0 if verb == "send" else PATIENCE_SECONDS
    handled, lock = anyio.run(lambda: Coordinator(root).order(task_id, verb, patience=patience, **fields))
    if lock is not None:  # also when ours was refused: another's order, carried out with it, may have made work
        start_supervisor(store.paths(root, task_id), lock)
    if handled is not None and "refused" in handled:
        raise Refused(f"{task_id}: {handled['refused']}", f"see: orchestrator show {task_id}")
    said = _said(task_id, verb, handled is None, lock is not None, fields)
    if as_json:
        state = "requested" if handled is None else "done"
        click.echo(json.dumps({"id": task_id, "verb": verb, "state": state, "started": lock is not None, "said": said}))
    else:
        click.echo(f"{task_id}: {said}")
    return 0


def _said(task_id: str, verb: str, pending: bool, started: bool, fields: dict[str, Any]) -> str:
    said = _SAID[verb].format(task=task_id, **{"step": "", **fields})
    if pending and verb != "send":
        said = f"given to its worker, which takes it up at its next step border: {said}"
    return f"{said}; a worker was started" if started else said
