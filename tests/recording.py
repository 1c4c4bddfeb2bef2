"""What reaches the disk, in its order: a layer around `files.os` that takes each call down; what can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator import directories, files, reading

CALLS = "write,fsync,fdatasync,rename,renameat2,mkdir,execve"


@dataclass
class Call:
    """One system call: when it began and when it had returned, on what, and what was written."""

    name: str
    path: str
    text: str
    began: int
    ended: int


class Trace:
    def __init__(self, calls: list[Call]) -> None:
        self.calls = [call for call in calls if call.ended]

    def find(self, name: str, path: str, text: str = "", after: int = -1) -> Call:
        """The first call of this name on a path that ends so, which began after a moment."""
        for call in self.calls:
            named = call.name in name.split("|") and call.path.endswith(path)
            if named and text in call.text and call.began > after:
                return call
        raise AssertionError(f"no {name} of {path!r} {text!r} after {after} in:\n{self}")

    def entry(self, kind: str, text: str = "") -> Call:
        """The write of a journal line."""
        for call in self.calls:
            named = call.name == "write" and call.path.endswith("journal.jsonl")
            if named and f'"kind":"{kind}"' in call.text and text in call.text:
                return call
        raise AssertionError(f"no journal line {kind} {text} in:\n{self}")

    def synced(self, write: Call) -> Call:
        """The first sync after a write to the same file."""
        return self.find("fsync|fdatasync", write.path, after=write.ended)

    def shown(self, line: str) -> Call:
        """The moment from which task.md has this line."""
        written = self.find("write", files.TEMPORARY + "task.md", line + "\n")
        return self.find("rename|renameat2", "/task.md", after=written.ended)

    def __str__(self) -> str:
        return "\n".join(f"{c.began}-{c.ended} {c.name} {c.path} {c.text[:120]}" for c in self.calls)


class RecordingOs:
    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self.wrapped(name, real) if name in CALLS.split(",") else real

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else str(args[-1])
            path = str(args[0]) if name == "mkdir" else path
            text = bytes(args[1]).decode() if name == "write" else " ".join(map(str, args))
            result = real(*args)
            self.add(name, path, text)
            return result

        return call

    def add(self, name: str, path: str, text: str = "") -> None:
        self.calls.append(Call(name, path, text, len(self.calls) + 1, len(self.calls) + 1))


def _recording_swap(layer: RecordingOs, swap: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    def recorded(one: str, other: str) -> bool:
        done = swap(one, other)
        if done:
            layer.add("renameat2", other, f"{one} {other}")
        return done

    return recorded


def install(patch: pytest.MonkeyPatch) -> RecordingOs:
    """Put a layer in place, in this process."""
    layer = RecordingOs()
    patch.setattr(files, "_datasync", layer.wrapped("fdatasync", os.fdatasync))
    patch.setattr(files, "_swap", _recording_swap(layer, files._swap))
    for module in (files, directories, reading):
        patch.setattr(module, "os", layer)
    return layer
