"""A whole directory, copied: part of the file layer, beside `files`.

The source is only read. Every regular file has the same bytes, mode and times in the copy, and is on the disk when
`copy_tree` returns; links are copied as links, never followed. Raises OSError as it comes: the caller removes the rest.
"""

from __future__ import annotations

import os
import shutil
import stat

from orchestrator import files


def copy_tree(source: str, target: str) -> list[str]:
    """Copy what lies in one directory into another that is there and empty.

    Returns what was left out, for it is no content: sockets, fifos, devices.
    """
    left_out: list[str] = []
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        path = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
        elif entry.is_dir(follow_symlinks=False):
            os.mkdir(path)
            left_out += copy_tree(entry.path, path)
            shutil.copystat(entry.path, path)
        elif stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
            shutil.copyfile(entry.path, path, follow_symlinks=False)
            files.sync_file(path)
            shutil.copystat(entry.path, path)
        else:
            left_out.append(entry.path)
    files.sync_directory(target)
    return left_out
