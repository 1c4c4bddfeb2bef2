"""Where everything of a task lies, and how a moment is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

#: Seconds since the epoch; the one source of wall-clock time, handed in by the doors.
Clock = Callable[[], float]

#: Names of the notes about sub-tasks begin so.
CHILD = "child-"


class Paths(NamedTuple):
    """Every path of one task. The only place that knows them."""

    directory: str

    @property
    def task_id(self) -> str:
        return os.path.basename(self.directory)

    @property
    def task_md(self) -> str:
        return self.directory + "/task.md"

    @property
    def retro(self) -> str:
        return self.directory + "/task-retro.md"

    @property
    def results(self) -> str:
        return self.directory + "/results"

    @property
    def inner(self) -> str:
        return self.directory + "/.task"

    @property
    def spec(self) -> str:
        return self.directory + "/.task/spec.yaml"

    @property
    def journal(self) -> str:
        return self.directory + "/.task/journal.jsonl"

    @property
    def requests(self) -> str:
        return self.directory + "/.task/requests.jsonl"

    @property
    def logs(self) -> str:
        return self.directory + "/.task/logs"

    def log(self, attempt: int, stream: str) -> str:
        return f"{self.directory}/.task/logs/{attempt}.{stream}"

    @property
    def supervisor_log(self) -> str:
        return self.directory + "/.task/logs/supervisor.err"

    def child(self, key: str) -> str:
        """The note of a sub-task, by the idempotency key of the step that spawned it."""
        return f"{self.directory}/.task/{CHILD}{key}"

    def step(self, file: str) -> str:
        return f"{self.directory}/{file}"


def timestamp(seconds: float) -> str:
    """UTC in ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def seconds_of(stamp: str) -> float:
    """The inverse of `timestamp`. A moment without a zone, which another tool may have written, is one of UTC."""
    moment = datetime.fromisoformat(stamp)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
