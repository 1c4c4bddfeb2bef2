"""What a task's worker wrote to its output, printed."""

from __future__ import annotations

import os
import sys

from orchestrator import files, store


def print_logs(root: str, task_id: str, follow_on: bool, attempt: int | None, stream: str) -> None:
    where = store.paths(root, task_id)
    streams = ("out", "err") if stream == "both" else (stream,)
    shown: dict[str, int] = {}
    while True:
        seen = store.look(where)
        number = attempt or seen.snapshot.attempt_number
        for name in streams:
            _print_new(where.log(number, name), shown)
        if not follow_on or (seen.snapshot.unclosed is None and seen.announcement() is not None):
            return
        import anyio

        anyio.run(_one_change, where.logs)


async def _one_change(directory: str) -> None:
    from orchestrator.watching import Watch

    async with Watch(directory) as changes:
        await changes.next()


def _print_new(path: str, shown: dict[str, int]) -> None:
    if files.regular_size(path) is None:  # not there, or a fifo that nobody writes to
        return
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = shown.get(path, 0)
            file.seek(start if start <= size else 0)  # it was cut in the middle: show it anew
            data = file.read()
            shown[path] = file.tell()  # it may have grown since
    except FileNotFoundError:
        return
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
