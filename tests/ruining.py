"""What can become of a file, as a table: by a crash, a bad disk, an agent, an editor, or a person."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def _full(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("precious")


def _socket(path: Path) -> None:
    """Bound by a name relative to its directory: a socket's whole path may have no more than some hundred bytes."""
    with socket.socket(socket.AF_UNIX) as made:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """The same file, with other bytes in it."""

    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def _holed(data: bytes) -> bytes:
    third = len(data) // 3
    return data[:third] + b"\0" * third + data[2 * third :]


def _flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _mixed(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join(line + b"\r" if n % 2 and n + 1 < len(lines) else line for n, line in enumerate(lines))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeroed": _rewritten(lambda data: b"\0" * len(data)),
    "empty": lambda path: os.truncate(path, 0),
    "holed": _rewritten(_holed),
    "one NUL": _rewritten(lambda data: data[: len(data) // 2] + b"\0" + data[len(data) // 2 :]),
    "one bit": _rewritten(_flipped),
    "bad UTF-8": _rewritten(lambda data: data[: len(data) // 2] + b"\xff\xc3\x28" + data[len(data) // 2 :]),
    "UTF-16": _rewritten(lambda data: data.decode().encode("utf-16")),
    "CRLF here and there": _rewritten(_mixed),
    "a million lines more": _rewritten(lambda data: data + b"more of it\n" * 10**6),
    "1 GB": lambda path: os.truncate(path, 1 << 30),
    "a directory": _instead(Path.mkdir),
    "a full directory": _instead(_full),
    "a dangling link": _instead(lambda path: path.symlink_to("/nowhere/x")),
    "a link to another file": _instead(lambda path: path.symlink_to("/etc/passwd")),
    "a fifo": _instead(os.mkfifo),
    "a socket": _instead(_socket),
    "unreadable": lambda path: path.chmod(0),
}

#: What looking at a file of 1 GB may cost, in KiB.
PEAK = 200 * 1024
