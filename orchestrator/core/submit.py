"""What of a spec no worker could ever run: told before a task is made of it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.model import Json, Limits, StepSpec, TaskSpec
from orchestrator.errors import BadSpec

#: An argument may be nested so deep: it is written, read and handed on by recursion in several places.
DEPTH = 100

_TEXT = "write it as UTF-8 text; bytes that are none belong in a file whose path is the argument"


def check(spec: TaskSpec) -> None:
    """Raises BadSpec, with one line what and one line what to do, for a spec that is valid and cannot be run."""
    try:
        for place, text in _texts(spec):
            _check_text(place, text)
        for place, value in spec.args.items():
            _check_value(f"argument {place!r}", value)
    except RecursionError:  # before our own limit was met
        raise _too_deep("an argument") from None
    for place, env in (("", spec.env), *((f"step {step.name!r}: ", step.env) for step in spec.steps)):
        _check_environment(place, env)
    for step in spec.steps:
        _check_step(step)
    _check_limits(spec.limits)


def _texts(spec: TaskSpec) -> Iterator[tuple[str, str]]:
    yield "the name", spec.name
    yield "the worker", spec.worker
    for step in spec.steps:
        yield f"the name of step {step.name!r}", step.name
    for path in spec.import_paths:
        yield "an import path", path


def _check_text(place: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadSpec(f"{place} {text!a} has characters that are no text (lone surrogates)", _TEXT) from None


def _check_value(place: str, value: Json, depth: int = 0) -> None:
    if depth > DEPTH:
        raise _too_deep(place)
    if isinstance(value, str):
        _check_text(place, value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadSpec(f"{place} is {value}, which JSON cannot hold", "give it as text, or leave it out")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check_text(place, str(key))
            _check_value(place, inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_value(place, inner, depth + 1)


def _too_deep(place: str) -> BadSpec:
    return BadSpec(f"{place} is nested deeper than {DEPTH} levels", "give it in a file whose path is the argument")


def _check_environment(place: str, env: Mapping[str, str]) -> None:
    for key, value in env.items():
        _check_text(f"{place}the variable", key)
        _check_text(f"{place}the variable {key!r} with the value", value)
        if not key or "=" in key or "\0" in key + value:
            raise BadSpec(
                f"{place}no process can be given the variable {key!r}: {_wrong_with(key)}",
                "a variable is KEY=VALUE, KEY without `=`, and neither with a NUL character",
            )


def _wrong_with(key: str) -> str:
    return "it has no name" if not key else "its name has a `=` in it" if "=" in key else "it has a NUL character in it"


def _check_step(step: StepSpec) -> None:
    words = [*step.run, *step.check, *step.outputs, *filter(None, (step.shell, step.cwd))]
    for word in words:
        _check_text(f"step {step.name!r}: the word", word)
        if "\0" in word:
            what = f"step {step.name!r}: no command can be given {json.dumps(word)}: it has a NUL character in it"
            raise BadSpec(what, "take it out; data with NUL characters belong in a file")
    if step.timeout is not None and not (math.isfinite(step.timeout) and step.timeout > 0):
        raise BadSpec(f"step {step.name!r}: timeout is {step.timeout}", "a time-out is a number of seconds above 0")


def _check_limits(limits: Limits) -> None:
    """A limit that is none, or that ends every worker before it has begun."""
    least: dict[str, Any] = {"deaths": 1, "output_bytes": 0, "grace_seconds": 0, "depth": 0, "children": 0}
    for name, bound in least.items():
        value = getattr(limits, name)
        if not math.isfinite(value) or value < bound:
            raise BadSpec(f"limits: {name} is {value}", f"{name} is a finite number, {bound} or more")
    seconds = limits.attempt_seconds
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise BadSpec(
            f"limits: attempt_seconds is {seconds}", "it is a number of seconds above 0; null means that there is none"
        )
