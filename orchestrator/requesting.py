"""The requests of a task: written by anybody, read by whoever holds its lock."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Mapping
from typing import Any

from orchestrator import files
from orchestrator.errors import Damaged
from orchestrator.places import Paths


def read_requests(where: Paths) -> list[dict[str, Any]]:
    """All requests ever made of this task; a torn or foreign line is none."""
    if not files.size(where.requests):
        return []
    try:
        data = files.read(where.requests, files.TEXT_BYTES)
    except (OSError, Damaged):
        return []
    return [r for r in map(_request, data.splitlines()) if r is not None]


def _request(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line) if line.lstrip()[:1] == b"{" else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "id" not in found or "verb" not in found:
        return None
    return found if all(isinstance(found.get(key, ""), str) for key in _TEXTS) else None


#: What of a request is text: anybody may write one, and a line that is wrong must not stop the rest.
_TEXTS = ("id", "verb", "step", "question", "text", "why")


def make_request(where: Paths, request: Mapping[str, Any]) -> None:
    """Append a request durably. It begins with a newline, so that a torn line before it cannot swallow it."""
    files.make_directories(where.inner)  # an agent may have removed it
    if not files.size(where.journal):  # given to no journal: the one that is made again has not heard of it
        request = {**request, "journal": "lost"}
    line = b"\n" + json.dumps(dict(request)).encode() + b"\n"
    if files.size(where.requests) > files.TEXT_BYTES:  # nobody would read it
        _requests_aside(where)
    for again in (True, False):
        try:
            files.append(where.requests, line, sync=True)
            return
        except OSError as error:
            if not again or error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES):
                raise
            _requests_aside(where)


def _requests_aside(where: Paths) -> None:
    """Move aside what is no file of requests: anybody writes them, so anybody mends that."""
    if not files.make_readable(where.requests):
        with contextlib.suppress(FileNotFoundError):  # somebody else was faster
            files.set_aside(where.requests, "replaced")
