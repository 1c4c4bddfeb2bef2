"""What is mounted where, by /proc: which file system a path lies on, and whether another one lies below it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class Mount(NamedTuple):
    point: str
    kind: str


def mounts(table: str | None = None) -> list[Mount]:
    """Every mount that this process sees, in their order; `table` in the form of /proc/mounts. Empty without /proc."""
    if table is None:
        try:
            with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
                table = file.read()
        except OSError:
            return []
    rows = (line.split(" ") for line in table.splitlines())
    return [Mount(_unescaped(fields[1]), fields[2]) for fields in rows if len(fields) > 2]


def _unescaped(text: str) -> str:
    """Blanks and the like are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def of(path: str, table: str | None = None) -> Mount | None:
    """The mount that a path lies on; None where that cannot be known."""
    real, best = os.path.realpath(path), None
    for mount in mounts(table):
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):  # a later one covers an earlier one
            best = mount
    return best


def at_or_below(path: str) -> list[str]:
    """The mount points that would be reached by removing a directory: none of that is ours to remove."""
    real = os.path.realpath(path)
    found = [m.point for m in mounts() if m.point == real or m.point.startswith(real + "/")]
    return found or ([real] if os.path.ismount(real) else [])
