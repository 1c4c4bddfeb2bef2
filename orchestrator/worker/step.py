"""One try of a step, as the skill sees it, and what may come of it."""

from __future__ import annotations

import contextvars
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import Any

from orchestrator import files
from orchestrator.core import stepfile
from orchestrator.core.model import ErrorClass, Json, Output, StepError
from orchestrator.core.names import error_fingerprint
from orchestrator.core.results import dumps
from orchestrator.core.snapshot import StepState
from orchestrator.writer import TaskWriter


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """What a `check` returns when the effect did take place: with the result that the try would have given."""

    result: Json = None


class NotStorable(Exception):  # noqa: N818 - the field's word for a result that JSON cannot hold
    """A step's result is nothing that JSON can hold."""


class OutputMissing(Exception):  # noqa: N818 - says what is wrong, as FileNotFoundError does
    """A declared output is not there though the step ended well."""


class CommandFailed(Exception):  # noqa: N818 - its name is shown to people
    """A command ended with another exit code than 0."""


class CommandNotFound(Exception):  # noqa: N818 - its name is shown to people
    """There is no such program."""


_CLASSES: tuple[tuple[type[BaseException], ErrorClass], ...] = (
    (TimeoutError, ErrorClass.TIMEOUT),
    (NotStorable, ErrorClass.VALIDATION),
    (CommandNotFound, ErrorClass.DEPENDENCY),
    (ImportError, ErrorClass.DEPENDENCY),
    (FileExistsError, ErrorClass.FILE_CONFLICT),
)

#: Errors that another try cannot mend.
HOPELESS = frozenset({ErrorClass.VALIDATION, ErrorClass.DEPENDENCY})


def text_of(error: BaseException) -> str:
    """What an error says of itself; one of the skill's own may not even be able to."""
    try:
        return str(error)
    except Exception as broken:  # it runs the skill's own code
        return f"(it cannot be told: its text raised {type(broken).__name__})"


def describe(error: BaseException) -> StepError:
    """The error as it is written down: class, type, message (at most 2,000 characters), fingerprint."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    kind = next((c for t, c in _CLASSES if isinstance(error, t)), ErrorClass.RUNTIME)
    message = text_of(error)[:2000] or type(error).__name__
    return StepError(kind, type(error).__name__, message, error_fingerprint(kind, type(error).__name__, message))


class Step:
    """The handle of one try: what a step function may know of itself (`orchestrator.current_step()`), and `note`.

    `attempt` counts the worker's lives, `try_number` the tries of this step, both from 1; `idempotency_key` is the same
    for every try of this step of this task; `result` is what `task.todo` commits.
    """

    def __init__(self, writer: TaskWriter, state: StepState, previous: str) -> None:
        self._writer = writer
        self.name = state.id.name
        self.label = state.label
        self.attempt = state.attempt
        self.try_number = state.tries
        self.idempotency_key = idempotency_key(writer.where.task_id, state)
        self.previous = previous
        self.result: Json = None
        self.file = writer.steps.path(state)

    def note(self, text: str) -> None:
        """Write to the step's file, at once: what was thought and done, for people and for the next try."""
        self._writer.note(self.label, text)


current: contextvars.ContextVar[Step | None] = contextvars.ContextVar("orchestrator_step", default=None)


def current_step() -> Step:
    """The try that is running here. Raises LookupError outside of a step."""
    step = current.get()
    if step is None:
        raise LookupError("no step is running here")
    return step


def idempotency_key(task_id: str, state: StepState) -> str:
    """32 hex digits: the same over all tries of one step of one task, and for no other."""
    return hashlib.sha256(dumps([task_id, *state.id]).encode()).hexdigest()[:32]


def previous_notes(writer: TaskWriter, state: StepState | None) -> str:
    """What the last, interrupted try wrote to the step's file."""
    if state is None or state.tries == 0:
        return ""
    return stepfile.notes_since_running(writer.steps.read(state))


def storable(result: Any) -> Json:
    """The result as JSON hands it back: the same on the first run and on every replay. Raises NotStorable."""
    if result is None or type(result) is bool or (type(result) is str and result.isascii()):  # no enum, which is a str
        return result
    try:
        if _depth(result) > DEPTH:
            raise ValueError(f"it is nested more than {DEPTH} deep")
        return json.loads(dumps(result))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorable(
            f"the result cannot be stored as JSON ({error}): return dicts, lists, text, numbers, true, false or None"
        ) from None


#: How deep a result may be nested: every reader of a journal has to come to its bottom.
DEPTH = 200


def _depth(value: Any) -> int:
    """How deep lists and dicts are nested, as far as it matters."""
    layer, depth = [value], 0
    while layer and depth <= DEPTH:
        inner = [v for v in layer if isinstance(v, dict | list | tuple)]
        layer = [x for v in inner for x in (v.values() if isinstance(v, dict) else v)]
        depth += bool(inner)
    return depth


def hash_args(args: Sequence[Any]) -> str:
    """A short hash by which a replay tells that a step is asked for with other arguments."""
    if not args:
        return ""
    return hashlib.sha256(_stable(list(args)).encode()).hexdigest()[:16]


def _stable(value: Any) -> str:
    """The value as text that is the same in every process: keys of any kind and members of sets in one order."""
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{_stable(k)}:{_stable(v)}" for k, v in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_stable, value)) + "]"
    if isinstance(value, AbstractSet):
        return "<" + ",".join(sorted(map(_stable, value))) + ">"
    if value is None or isinstance(value, str | int | float):
        return json.dumps(value)
    return _stable(_plain(value))


def _plain(value: Any) -> Any:
    """What JSON cannot hold, told by its content where it has one that lasts, else by its type alone."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return hashlib.sha256(value).hexdigest()
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def verify(workspace: str, outputs: Sequence[str]) -> tuple[Output, ...]:
    """Size and hash of each declared output. Raises OutputMissing; files are relative to the workspace."""
    found = []
    for path in outputs:
        try:
            size, digest = files.sha256(f"{workspace}/{path}")
        except OSError as error:
            raise OutputMissing(f"declared output {path!r} is not there: {error.strerror or error}") from None
        found.append(Output(path, size, digest))
    return tuple(found)
