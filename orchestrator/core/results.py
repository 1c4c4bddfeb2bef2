"""The result of a task as text, and what its end says of it. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from orchestrator.core.model import Json

#: A result up to this size, in bytes of JSON, is in the end of its task as well: should its file be lost, it is made
#: again.
IN_END_BYTES = 16 * 1024

dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def text(result: Json) -> bytes:
    """The content of results/result.json. Raises ValueError or TypeError for what JSON cannot hold.

    Half a character, which UTF-8 cannot say, is escaped as JSON does.
    """
    return json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def end_fields(result: Json, data: bytes) -> dict[str, Any]:
    """What the end of a task says of its result, written as `data`."""
    found: dict[str, Any] = {"result_bytes": len(data), "result_sha256": hashlib.sha256(data).hexdigest()}
    return {**found, "result": result} if len(dumps(result)) <= IN_END_BYTES else found
