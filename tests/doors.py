"""The same stage with the real engine: its workers are programs of their own, with guard, exec and containment.

They are told what to do through a socket that has a name, for they inherit none.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from stage import DOORS, Stage

from orchestrator import Coordinator


class Door:
    """Of a task: our end of the connection to each of its workers. Looks like a socket that does not block."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listening.bind(str(path))
        self._listening.listen()
        self._workers: list[socket.socket] = []

    def recv(self, size: int) -> bytes:
        """What a worker says, the older one first. BlockingIOError when none says anything."""
        with contextlib.suppress(BlockingIOError):
            worker, _ = self._listening.accept()
            worker.setblocking(False)
            self._workers.append(worker)
        for worker in list(self._workers):
            with contextlib.suppress(BlockingIOError):
                if data := worker.recv(size):
                    return data
                self._workers.remove(worker)
                worker.close()
        raise BlockingIOError

    def send(self, data: bytes) -> int:
        return self._workers[-1].send(data)

    def close(self) -> None:
        for end in (self._listening, *self._workers):
            end.close()


class RealStage(Stage):
    recorded = False

    def __init__(self) -> None:
        super().__init__()
        self._doors: dict[str, Door] = {}
        self._at = self.base / "doors"
        self._at.mkdir()
        os.environ[DOORS] = str(self._at)

    def close(self) -> None:
        del os.environ[DOORS]
        for door in self._doors.values():
            door.close()
        super().close()

    def coordinator(self) -> Any:
        return Coordinator(self.root)

    def channel(self, directory: str) -> Any:
        if directory not in self._doors:
            self._doors[directory] = Door(self._at / os.path.basename(directory))
        return self._doors[directory]
