"""The commit log: its lines as text. `snapshot.py` folds them.

A line is one JSON object, closed by a CRC-32 of all that stands before it. Lines are only ever appended. What a reader
makes of a file is total: every sequence of bytes gives a snapshot, a length up to which it is sound, and what is
damaged.

Kinds and what they carry beside `run`, `seq`, `at` and `kind` (a step is named by its label; `name`, `n`, `key` and
`file` are written only where they differ from what the label says):

    created      (nothing more)                          the task was made
    attempt      token, cgroup, deaths, place            a worker is about to be started
    started      worker, guard                           its first act: the identities of its two processes
    skill        worker, version                         what the worker loaded
    plan         steps, after                            steps are expected
    running      step, try, effect, args, after          a try begins
    raised       step, try, error                        the try failed and spends budget; the step is not given up
    interrupted  step, try, why                          the try was stopped on purpose and is refunded
    commit       step, try, status, result, …            done, skipped, failed for good, or uncertain
    handled      request, verb, step?, …                 a person's order took effect, or was refused (`refused`)
    heard        call, requests, texts                   the skill was given messages, by its call of that number
    asked        question, text                          the skill asks a person
    order        steps                                   a person gave the steps a new order
    redo         step, why                               a person reopened a step (and with it an ended task)
    end          outcome, announcement                   the task has ended
    closed       outcome, announcement?, exit?, …        the attempt has ended; an attempt without it died
    rebuilt      generation, attempt, after?             the log was lost, or its lines after run `after`; made again
    deaths       deaths                                  of a rebuilt log: attempts that had died in a row
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.shape import can_be_told

Entry = Mapping[str, Any]

_MARK = b',"crc":"'
_TAIL = len(_MARK) + 8 + 2  # eight hex digits, quote, brace
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode = json.JSONDecoder().raw_decode  # a line is one object, whole by its checksum: nothing may follow


def encode(entry: Entry) -> bytes:
    """The entry as one line with its checksum and newline. Raises ValueError or TypeError for what JSON cannot hold."""
    body = _encode(entry).encode("ascii")[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def decode(line: bytes) -> dict[str, Any] | None:
    """The entry of one line without its newline; None when it is not whole, or is none that we could have written."""
    cut = len(line) - _TAIL
    if cut <= 0 or line[cut : cut + len(_MARK)] != _MARK or line[-2:] != b'"}':
        return None
    body = line[:cut]
    if b"%08x" % zlib.crc32(body) != line[-10:-2]:
        return None
    try:
        entry = _decode(body.decode("ascii") + "}")[0]
    except (ValueError, RecursionError):
        return None
    whole = isinstance(entry, dict) and "kind" in entry and "run" in entry and can_be_told(entry)
    return entry if whole else None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a journal file says. `sound` is the length of the prefix of whole lines; `torn` are bytes behind it.

    `damaged` are the numbers (from 1) of bad lines that have good ones after them: no crash makes those.
    """

    entries: tuple[dict[str, Any], ...]
    sound: int
    torn: int
    damaged: tuple[int, ...] = ()


def read(data: bytes) -> Reading:
    """Read a journal. Total; a bad end is torn, a bad line in the middle is damage and is left out.

    Where the line that began an attempt may be among the bad ones, the attempt is begun all the same: what it committed
    counts.
    """
    entries: list[dict[str, Any]] = []
    bad: list[int] = []
    begun: set[str] = set()
    sound = offset = number = last_good = 0
    size = len(data)
    while offset < size:
        end = data.find(b"\n", offset)
        number += 1
        entry = decode(data[offset:end]) if end >= 0 else None
        offset = end + 1 if end >= 0 else size
        if entry is None:
            bad.append(number)
            continue
        if bad and entry["kind"] not in _BEGINNINGS and entry["run"] not in begun:
            entries += _beginning(entry)
        begun.add(str(entry["run"]))
        entries.append(entry)
        sound, last_good = offset, number
    return Reading(tuple(entries), sound, size - sound, tuple(n for n in bad if n < last_good))


#: Lines that stand at the beginning of a journal, or of an attempt.
_BEGINNINGS = frozenset({"created", "attempt", "rebuilt"})


def _beginning(entry: Entry) -> list[dict[str, Any]]:
    """The `attempt` line that a line of its run must have had before it; none for what was said before any attempt."""
    if str(entry["run"]).endswith(".0") or not int(entry.get("seq", 0)) > 1:
        return []
    return [{"run": entry["run"], "seq": 1, "at": entry.get("at", ""), "kind": "attempt", "made_up": True}]
