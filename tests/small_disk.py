"""A disk that can be filled, freed, or made read-only under a task."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from pathlib import Path

#: Enough for a task and some of its steps.
SMALL, LARGE = 256, 4096  # KiB


class Disk:
    """A small file system of its own; where none may be mounted, a limit on the size of files stands in for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mounted = self._mount(f"size={SMALL}k")
        self._largest = SMALL * 512  # of a file, when the disk is only pretended

    def _mount(self, options: str) -> bool:
        argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        return shutil.which("mount") is not None and subprocess.run(argv, capture_output=True).returncode == 0

    def fill(self) -> None:
        self._largest = 0
        if self.mounted:
            with (self.path / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 1024)

    def free(self) -> None:
        self._largest = LARGE * 512
        if self.mounted:
            self._mount(f"remount,size={LARGE}k,rw")
            (self.path / "ballast").unlink(missing_ok=True)

    def limits(self) -> None:
        """What a process does before it begins, when the disk is only pretended: its files cannot grow beyond it."""
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._largest, resource.RLIM_INFINITY))

    def read_only(self, root: Path) -> Path:
        """The root, which takes nothing from here on; another one that never does where that cannot be had."""
        if self.mounted and self._mount("remount,ro"):
            return root
        root.chmod(0o555)
        return root if not os.access(root, os.W_OK) else Path("/proc/self/no root")

    def close(self) -> None:
        self.path.chmod(0o755) if not self.mounted else subprocess.run(["umount", "-l", str(self.path)], check=True)
