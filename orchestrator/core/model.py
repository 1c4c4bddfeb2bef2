"""The nouns. Frozen values; the one mutable thing, the fold of a journal, lives in `snapshot.py`.

Read `docs/protocol.md` for what each means on disk.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

#: For the classes that are read from files of people: an unknown key is a typing error.
_STRICT: dict[str, str] = {"extra": "forbid"}

#: What JSON can hold; results and arguments of steps are made of it.
Json = Any

#: Results up to this many bytes (as JSON) lie in the journal; larger ones in a file of `results/` (docs/protocol.md,
#: Files).
INLINE_RESULT_BYTES = 64 * 1024


class StepStatus(enum.StrEnum):
    PENDING = "pending"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNCERTAIN = "uncertain"

    @property
    def finished(self) -> bool:
        """Done or skipped: passed over when work goes on."""
        return self in _FINISHED


_FINISHED = frozenset({StepStatus.DONE, StepStatus.SKIPPED})


class TaskStatus(enum.StrEnum):
    """The word after `## Status:` in task.md."""

    START = "start"
    WORKING = "working"
    END = "end"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Outcome(enum.StrEnum):
    """How an attempt or a task ended (docs/protocol.md, Outcomes)."""

    COMPLETED = "completed"
    FAILED = "failed"
    CONFLICT = "conflict"
    INCOMPLETE = "incomplete"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    UNCERTAIN = "uncertain"
    QUESTION = "question"
    PAUSED = "paused"
    STOPPED = "stopped"
    CANCELLED = "cancelled"


class Effect(enum.StrEnum):
    """What happens outside when a step runs twice."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class ErrorClass(enum.StrEnum):
    VALIDATION = "validation"
    TIMEOUT = "timeout"
    FILE_CONFLICT = "file_conflict"
    RUNTIME = "runtime"
    DEPENDENCY = "dependency"
    QUOTA = "quota"
    CRASH = "crash"


class StepId(NamedTuple):
    """The identity of a step: the n-th (from 1) of a name, or the one of that name with this key."""

    name: str
    n: int = 1
    key: str | None = None


@dataclass(frozen=True, slots=True)
class StepError:
    """Why a try failed. `type` is the exception's class, `fingerprint` the same for the same failure."""

    error_class: str
    type: str
    message: str
    fingerprint: str = ""

    def to_json(self) -> dict[str, Json]:
        return {"class": self.error_class, "type": self.type, "message": self.message, "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> StepError:
        return cls(
            str(data.get("class", "runtime")),
            str(data.get("type", "")),
            str(data.get("message", "")),
            str(data.get("fingerprint", "")),
        )


@dataclass(frozen=True, slots=True)
class Output:
    """A declared file that was there when its step was committed: path within the workspace, bytes, sha256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One fenced block of a step file: what became of one try. `at` is UTC in ISO 8601 with milliseconds.

    A large result lies in `result_file`, a path within the workspace. `by_hand`: a person said so, nothing ran.
    """

    name: str
    status: str
    n: int = 1
    key: str | None = None
    attempt: int = 0
    try_number: int = 0
    at: str = ""
    effect: str = Effect.IDEMPOTENT
    args: str | None = None
    result: Json = None
    error: StepError | None = None
    usage: Mapping[str, Json] | None = None
    outputs: tuple[Output, ...] = ()
    result_file: str | None = None
    why: str = ""
    by_hand: bool = False


class Identity(NamedTuple):
    """A process that is never mistaken for another: pid, start ticks, boot, pid namespace, host."""

    pid: int
    ticks: int
    boot: str
    namespace: str
    host: str


@dataclass(frozen=True, slots=True)
class Containment:
    """How the tree of one worker is found: a cgroup directory where there is one, and a token in its environment."""

    token: str
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost; None means unknown, never 0."""

    input: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one task. Seconds are wall-clock on a monotonic clock; None is no limit."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    deaths: int = 3  #: attempts that may die in a row without a new *done* commit
    attempt_seconds: float | None = 24 * 3600.0  #: one worker's life; finite by default (fault 62)
    output_bytes: int = 2 * 1024 * 1024  #: kept of each of stdout and stderr of one attempt, head and tail
    grace_seconds: float = 5.0  #: from SIGTERM to SIGKILL
    depth: int = 3  #: generations of sub-tasks below a task that nobody spawned
    children: int = 50  #: sub-tasks of one task


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One step of a checklist: exactly one of `run` (argv, no shell) and `shell` (one command line)."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    name: str
    run: tuple[str, ...] = ()
    shell: str | None = None
    timeout: float | None = None
    retries: int = 2
    effect: Effect = Effect.IDEMPOTENT
    outputs: tuple[str, ...] = ()
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    check: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What to run. Written once, to `.task/spec.yaml`.

    kind: `python` (then `worker` is `module:function` or `file.py:function`) or `steps` (then `steps` holds them).
    parent, depth: the id of the task whose step spawned this one, and how many generations there are above.
    import_paths: directories put before `sys.path` in the worker, so that it finds what its spawner found.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    name: str
    kind: str
    worker: str
    args: Mapping[str, Json] = field(default_factory=dict)
    steps: tuple[StepSpec, ...] = ()
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    import_paths: tuple[str, ...] = ()
    source: str | None = None
    parent: str | None = None
    depth: int = 0
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """All an engine needs to start one attempt. `lock_fd` is handed on: the worker holds the task's lock with it."""

    run: str
    workspace: str
    containment: Containment
    env: Mapping[str, str]
    lock_fd: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker process ended, as its engine saw it. `code` is None when nobody was there to see it."""

    run: str
    code: int | None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the main session is told: a few lines, and where the whole result is.

    `id` is `<run id>.<event>` and the same for every repeat; `summary` has at most five lines; `result` is an absolute
    path or None; `steps` counts them by status; `seconds` is from the first attempt's start to the end.
    """

    id: str
    task: str
    name: str
    status: str
    summary: str
    result: str | None = None
    steps: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    usage: Mapping[str, Json] | None = None
    hint: str = ""

    @property
    def ok(self) -> bool:
        return self.status == Outcome.COMPLETED
