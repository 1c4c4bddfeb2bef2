"""Names: of tasks, of runs, of steps as a person sees them, and of the files that tell of them.

All are made here and read back here; nobody else cuts a name apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import TYPE_CHECKING
from unicodedata import normalize

from orchestrator.core.model import StepId
from orchestrator.core.tags import display

if TYPE_CHECKING:
    from datetime import datetime

#: Bytes of UTF-8 that a file system takes as a name, and what every step file's name ends with.
FILE_NAME_BYTES = 255
SUFFIX = ".md"

#: Characters that some system forbids in a file name; they are removed.
FORBIDDEN = '/\\:*?"<>|'

#: Names (casefolded) that are taken by the task itself.
OWN_NAMES = frozenset({"task", "task-retro", "results"})

#: Names (casefolded) that mean a device on Windows, also with anything behind a dot.
DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "123456789¹²³"}
)

_REMOVED: dict[int, None] = dict.fromkeys((*map(ord, FORBIDDEN), *range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029))
_SURROGATES = re.compile("[\ud800-\udfff]")
_TASK_ID = re.compile(r"task-[0-9]{8}-[0-9]{6}-(?:[0-9]{3}|[1-9][0-9]{3,8})")
_GENERATION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ATTEMPT = re.compile(r"0|[1-9][0-9]{0,8}")

#: What changes from one occurrence of a failure to the next, in the order in which it is blotted out.
_VARYING: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I), "<uuid>"),
    (re.compile(r"(?<![\w.])(?:/private)?(?:/var)?/(?:tmp|folders|dev/shm)/[^\s'\"`,;:)\]}]*/"), "<tmp>/"),
    (re.compile(r"(?<![\w.])(?:/private)?(?:/var)?/(?:tmp|dev/shm)/[^\s'\"`,;:)\]}]+"), "<tmp>"),
    (re.compile(r"\btmp[a-z0-9_]{6,10}\b"), "<tmp>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.I), "<address>"),
    (re.compile(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{7,64}\b", re.I), "<hex>"),
    (re.compile(r"[0-9]+(?:[.,:][0-9]+)*"), "<n>"),
)
_MESSAGE = 2000  # characters of a message that tell one failure from another


def task_id(at: datetime, number: int) -> str:
    """The id of the `number`-th task (from 1) of a second; `at` is aware and in UTC."""
    return f"task-{at:%Y%m%d-%H%M%S}-{number:03d}"


def is_task_id(text: str) -> bool:
    return _TASK_ID.fullmatch(text) is not None


def run_id(task_id: str, attempt: int, generation: str = "") -> str:
    """The name of one attempt. `generation` is that of a journal that was rebuilt, "" for an original one."""
    return f"{task_id}.{generation}.{attempt}" if generation else f"{task_id}.{attempt}"


def parse_run(run: str) -> tuple[str, str, int] | None:
    """(task id, generation, attempt) of a run id; None for anything that `run_id` does not give."""
    task, _, rest = run.partition(".")
    generation, dot, attempt = rest.rpartition(".")
    if dot and _GENERATION.fullmatch(generation) is None:
        return None
    if _ATTEMPT.fullmatch(attempt) is None or not is_task_id(task):
        return None
    return task, generation, int(attempt)


def label(step: StepId, taken: Container[str]) -> str:
    """The name of a step as it is written: one line, and none of those that are `taken`.

    `X`; `X (key)` where there is a key; `X (2)` for the second X; with ` #2`, ` #3` … when another step is called so.
    """
    base = display(step.name)
    if step.key is not None:
        base = f"{base} ({display(step.key)})"
    elif step.n > 1:
        base = f"{base} ({step.n})"
    if base not in taken:
        return base
    return f"{base} #{_free(lambda number: f'{base} #{number}' in taken)}"


#: Up to here the lowest free number is looked for one by one, so that it does not depend on the order of the others.
_NEAR = 32


def _free(taken: Callable[[int], bool]) -> int:
    """A number from 2 on that is free while the one before it is taken: the lowest, or one above _NEAR.

    There by halves: a thousand steps whose names look alike need not each ask for all those before it.
    """
    for number in range(2, _NEAR):
        if not taken(number):
            return number
    low, high = _NEAR - 1, 2 * _NEAR
    while taken(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(middle) else (low, middle)
    return high


def unsaid(step: StepId, label: str) -> dict[str, object]:
    """What of a step's identity its label does not say, as the journal names it."""
    said = {"name": (step.name, label), "n": (step.n, 1), "key": (step.key, None)}
    return {field: value for field, (value, usual) in said.items() if value != usual}


def file_name(label: str, taken: Container[str]) -> str:
    """The name of a step's file: at most 255 bytes, valid on every system, and none of `taken` (casefolded names).

    The label is kept as far as it can be. Where it had to be changed, a hash of it keeps apart what would look alike;
    two that differ only in case are kept apart by ` (2)`. Never a path: no separator, no leading dot.
    """
    whole = normalize("NFC", _SURROGATES.sub("", label))
    stem = whole.translate(_REMOVED).strip(" .")
    ending = ""
    if stem != label and stem != normalize("NFC", label):
        ending = _hash(label)
    if len(stem.encode()) > FILE_NAME_BYTES - len(SUFFIX) or stem.casefold() in OWN_NAMES:
        ending = _hash(label)
    if stem.partition(".")[0].rstrip().casefold() in DEVICES:
        stem, ending = f"_{stem}", _hash(label)
    found = _fitted(stem or "step", ending)
    if found.casefold() not in taken:
        return found
    number = _free(lambda number: _fitted(stem or "step", f"{ending} ({number})").casefold() in taken)
    return _fitted(stem or "step", f"{ending} ({number})")


def error_fingerprint(error_class: str, type: str, message: str) -> str:
    """Sixteen hex digits, the same for the same failure: numbers, addresses, ids and temporary paths do not count."""
    text = message[:_MESSAGE]
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return _sha256(f"{error_class}\n{type}\n{' '.join(text.split())}")[:16]


def _fitted(stem: str, ending: str) -> str:
    """The stem, cut between two characters so that all fits, with its ending."""
    room = FILE_NAME_BYTES - len((ending + SUFFIX).encode())
    data = stem.encode()
    if len(data) > room:
        stem = data[:room].decode("utf-8", "ignore").rstrip(" .")
    return f"{stem}{ending}{SUFFIX}"


def _hash(label: str) -> str:
    return "-" + _sha256(label)[:8]


def _sha256(text: str) -> str:
    from hashlib import sha256  # loads OpenSSL: not for every command

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
