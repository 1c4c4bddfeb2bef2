"""What a line of the journal has to be like for its meaning to be told. Pure.

A line that is whole by its checksum may still be of somebody who got it wrong: a step without a name, an outcome that
is a list. It is a bad line like any other: left out, told, kept aside. So the folds need not ask of what kind a value
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.model import StepStatus

Check = Callable[[Any], bool]

#: Numbers beyond this were never written: some readers of JSON could not hold them.
_MOST = 2**63
_COMMITS = frozenset({StepStatus.DONE, StepStatus.SKIPPED, StepStatus.FAILED, StepStatus.UNCERTAIN})


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _seconds(value: Any) -> bool:
    return _number(value) or (type(value) is float and -_MOST < value < _MOST)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _record(needed: Mapping[str, Check], others: Mapping[str, Check]) -> Check:
    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not needed.keys() <= value.keys():
            return False
        return all((needed.get(key) or others.get(key) or _any)(inner) for key, inner in value.items())

    return check


def _any(value: Any) -> bool:
    return True


def _identity(value: Any) -> bool:
    kinds = (_number, _number, _text, _text, _text)
    return isinstance(value, list) and len(value) == 5 and all(ok(v) for ok, v in zip(kinds, value, strict=True))


_USAGE = _maybe(lambda value: isinstance(value, dict) and all(map(_maybe(_seconds), value.values())))
_ERROR = _record({}, dict.fromkeys(("class", "type", "message", "fingerprint"), _text))
_STEP = _record({"step": _text}, {"name": _text, "n": _number, "key": _maybe(_text), "file": _text})
_OUTPUT = _record({"path": _text, "size": _number, "sha256": _text}, {})
_ANNOUNCEMENT = _record(
    dict.fromkeys(("id", "task", "name", "status", "summary"), _text),
    {
        "result": _maybe(_text),
        "steps": lambda value: isinstance(value, dict) and all(map(_number, value.values())),
        "seconds": _seconds,
        "usage": _USAGE,
        "hint": _text,
    },
)

#: The fields of lines, whatever their kind. What is not named here may be anything.
FIELDS: Mapping[str, Check] = {
    **dict.fromkeys(
        ("run", "kind", "at", "token", "step", "name", "file", "why", "effect", "outcome", "reason"), _text
    ),
    **dict.fromkeys(("generation", "request", "verb", "refused", "question", "text"), _text),
    **dict.fromkeys(("seq", "deaths", "try", "n", "call", "attempt"), _number),
    **dict.fromkeys(
        ("cgroup", "key", "args", "version", "result_file", "after", "last_sign", "error_class"), _maybe(_text)
    ),
    **dict.fromkeys(("place", "exit", "signal", "result_bytes"), _maybe(_number)),
    **dict.fromkeys(("texts", "requests"), _list(_text)),
    "guard": _identity,
    "usage": _USAGE,
    "error": _maybe(_ERROR),
    "outputs": _list(_OUTPUT),
    "announcement": _maybe(_ANNOUNCEMENT),
}

#: The fields that a line of a kind cannot be told without, beside `run` and `kind`; and those that mean something else
#: in lines of this kind.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "created": (),
    "attempt": (),
    "started": ("worker", "guard"),
    "skill": (),
    "plan": ("steps",),
    "running": ("step", "try"),
    "raised": ("step", "error"),
    "interrupted": ("step",),
    "commit": ("step", "status"),
    "handled": ("request", "verb"),
    "heard": ("call", "requests", "texts"),
    "asked": ("question",),
    "order": ("steps",),
    "redo": ("step",),
    "end": ("outcome",),
    "closed": ("outcome",),
    "rebuilt": ("generation",),
    "deaths": ("deaths",),
}
_OWN: Mapping[str, Mapping[str, Check]] = {
    "started": {"worker": _identity},
    "skill": {"worker": _maybe(_text)},
    "plan": {"steps": _list(_STEP)},
    "order": {"steps": _list(_text)},
    "commit": {"status": lambda value: _text(value) and value in _COMMITS},
    "raised": {"error": _ERROR},
}
_NONE: Mapping[str, Check] = {}

#: What an order is about, as far as it was not refused.
_ORDERED = {"redo": "step", "skip": "step", "resolve": "step", "answer": "question"}


def can_be_told(entry: Mapping[str, Any]) -> bool:
    """Whether every field of the line is what its kind has there. A kind of a later version may have any."""
    kind = entry["kind"]
    needed = NEEDED.get(kind) if isinstance(kind, str) else None
    if needed is None:
        return all(FIELDS[key](entry[key]) for key in ("run", "kind", "seq", "at") if key in entry)
    own = _OWN.get(kind, _NONE)
    for field in needed:
        if field not in entry:
            return False
    for key, value in entry.items():
        check = own.get(key) or FIELDS.get(key)
        if check is not None and not check(value):
            return False
    return kind != "handled" or "refused" in entry or _ORDERED.get(entry["verb"], "request") in entry
