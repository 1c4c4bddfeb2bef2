"""The files that one step leaves for the next: rows of JSON under a header that says what they are.

The first line of a sealed file holds the sha256 of all lines after it, and `of`, the seal of what it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: One row: a JSON object. Paths in it may hold surrogates, which JSON escapes: never put a row in a step's result.
Row = dict[str, Any]

#: What a step hands on about its file: {"file", "of", "rows", "sha256"}. Small, whatever the tree's size.
Ref = dict[str, Any]


class Changed(Exception):  # noqa: N818 - it tells of a file, the skill makes an error of it
    """A sealed file is not what was written."""


def replace(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole or not at all; when this returns it survives a power cut.

    The temporary file has a fixed name, so a killed writer leaves at most one, and the next writer takes it away. The
    task's lock makes sure that there is one writer.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb") as file:  # x: never through a link that somebody put there
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, rows: Iterable[Row], *, of: str) -> Ref:
    """Write the rows to `path`, sealed, and return the reference to them."""
    lines = [_line(row) for row in rows]
    body = b"".join(lines)
    header = {"of": of, "rows": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
    replace(path, _line(header) + body)
    return {"file": path.name, **header}


def _line(row: Row) -> bytes:
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def read(path: Path, *, of: str) -> tuple[Ref, list[Row]]:
    """Return the reference and the rows of a sealed file.

    Raises FileNotFoundError if there is none, and Changed if it is not what was written about `of`: it was edited, or
    it is older than what it stands on.
    """
    header, _, body = path.read_bytes().partition(b"\n")
    ref: Ref = {}
    with contextlib.suppress(ValueError, TypeError):
        ref = {"file": path.name, **json.loads(header)}
    if ref.get("of") != of or ref.get("sha256") != hashlib.sha256(body).hexdigest():
        raise Changed(path.name)
    return ref, [json.loads(line) for line in body.splitlines()]
