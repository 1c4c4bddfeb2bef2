"""What a root and the machine around it can do: found out by trying, not by asking for names."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator import containment, files, means, mounts, watching, workspace
from orchestrator.findings import Finding

#: A distribution that is installed, for `pip`.
PACKAGE = "delegate-orchestrator"

#: What is done without when a means is not there.
COSTS: Mapping[str, str] = {
    "cgroup": "a process that cleared its environment and left its group is not found when its worker dies",
    "subreaper": "the guard finds processes that lost their parent only by their environment",
    "pidfd": "the end of an adopted worker is looked for every 50 ms instead of being told by the kernel",
    "exchange": "an edit of task.md that is saved in the very moment of a write is lost",
    "proc": "processes are looked for with psutil: slower, and who holds a lock cannot be seen",
    "inotify": "changes are looked for every 100 ms instead of being told by the kernel",
}

#: File systems whose locks or syncs are not to be trusted, and why. `fuse.` stands for all that begin so.
ODD: Mapping[str, str] = {
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "ncpfs", "beegfs", "gpfs"),
        "a network file system: neither its locks nor its syncs are trusted",
    ),
    **dict.fromkeys(
        ("9p", "drvfs", "virtiofs", "vboxsf", "prl_fs", "fakeowner"),
        "files of another system seen from here: neither its locks nor its syncs are trusted",
    ),
    **dict.fromkeys(("fuse", "fuseblk", "fuse."), "a file system in user space: what its syncs promise is not known"),
    **dict.fromkeys(("tmpfs", "ramfs"), "in memory: a restart of the machine loses every task"),
    **dict.fromkeys(("vfat", "exfat", "msdos"), "it forbids characters in names, and a power cut may damage it"),
}

LOW_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Means:
    """One means of the operating system. state: `in use`, `off` (switched off by a person), or `missing`."""

    name: str
    state: str
    cost: str


def all_means(root: str | None) -> list[Means]:
    return [_one(name, root) for name in means.NAMES]


def _one(name: str, root: str | None) -> Means:
    if name in os.environ.get(means.VARIABLE, "").replace(" ", "").split(","):
        return Means(name, "off", COSTS[name])
    there = means.has(name) and _works(name, root)
    return Means(name, "in use" if there else "missing", "" if there else COSTS[name])


def _works(name: str, root: str | None) -> bool:
    """Those that a kernel may have and a container not give are tried."""
    if name == "cgroup":
        return containment.name_one("probe").cgroup is not None
    if name == "inotify":
        return watching.works(root if root and os.path.isdir(root) else "/")
    return True


def versions() -> dict[str, str]:
    """Of Python, of this package, and of what it needs at run time; `missing` for what is not installed."""
    found = {"python": platform.python_version(), PACKAGE: _version(PACKAGE)}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires(PACKAGE) or []:
            name = re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0]
            if "extra ==" not in line:
                found[name] = _version(name)
    return found


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


# -- what there is to say of it ---------------------------------------------------------------------------------------


def examine(root: str) -> Iterator[Finding]:
    """Python, the means, and whether the root can hold tasks safely."""
    yield from _of_python()
    for one in all_means(root):
        what = f"{one.name}: {one.state}"
        yield _finding("note" if one.cost else "ok", f"means-{one.name}", f"{what}: {one.cost}" if one.cost else what)
    if not os.path.isdir(root):
        yield from _absent(root)
        return
    yield _mount(root)
    yield _room_left(root)
    for name, wrong in trials(root):
        yield _trial(root, name, wrong)


def _finding(level: str, code: str, what: str, hint: str = "") -> Finding:
    return Finding("environment", level, code, what, hint)


def _of_python() -> Iterator[Finding]:
    known = versions()
    said = ", ".join(f"{name} {version}" for name, version in known.items())
    missing = [name for name, version in known.items() if version == "missing"]
    if missing:
        yield _finding("person", "versions", f"not installed: {', '.join(missing)}", f"pip install {PACKAGE}")
    else:
        yield _finding("ok", "versions", said)


def _absent(root: str) -> Iterator[Finding]:
    if os.path.lexists(root):
        yield _finding("person", "root", f"the root {root} is not a directory", "name another: --root DIR")
    else:
        yield _finding("ok", "root", f"the root {root} is not there yet: the first task makes it")


def _mount(root: str) -> Finding:
    mount = mounts.of(root)
    if mount is None:
        return _finding("note", "file-system", "which file system the root is on cannot be known")
    wrong = odd(mount)
    if wrong is None:
        return _finding("ok", "file-system", f"the root {root} is on {mount.kind} (mounted at {mount.point})")
    what = f"the root {root} is on {mount.kind} (mounted at {mount.point}): {wrong}"
    return _finding("person", "file-system", what, "keep it on a local disk: --root DIR, or set ORCHESTRATOR_ROOT")


def _room_left(root: str) -> Finding:
    try:
        free_bytes, inodes = free(root)
    except OSError as error:
        return _finding("person", "space", f"free space of {root}: {error.strerror}", "look at the disk")
    said = f"{free_bytes / 1e9:.1f} GB free, {inodes:.0%} of the inodes"
    if free_bytes < LOW_BYTES or inodes < 0.01:
        hint = "see what can go: orchestrator gc --dry-run"
        return _finding("person", "space", f"little space is left: {said}", hint)
    return _finding("ok", "space", said)


_PROMISES = {
    "write": ("the root can be written", "look at its permissions, or name another: --root DIR"),
    "lock": ("locks exclude", "keep the root on a local disk: two workers may run at once here"),
    "sync": ("syncs succeed", "look at the disk: what is committed may be lost in a power cut"),
    "exchange": ("two names can be exchanged", COSTS["exchange"]),
}


def _trial(root: str, name: str, wrong: str | None) -> Finding:
    good, hint = _PROMISES[name]
    if wrong is None:
        return _finding("ok", name, good)
    if name == "exchange":
        return _finding("note", name, f"{wrong}: {hint}")
    return _finding("person", name, f"{root}: {name}: {wrong}", hint)


# -- the root --------------------------------------------------------------------------------------------------------


def odd(mount: mounts.Mount) -> str | None:
    """Why tasks are not safe here; None when they are. Overlay is fine: its upper layer takes the writes."""
    return ODD.get(mount.kind) or (ODD["fuse."] if mount.kind.startswith("fuse.") else None)


def free(path: str) -> tuple[int, float]:
    """Bytes that we may still write there, and the share of inodes that are free. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_favail / found.f_files if found.f_files else 1.0


def trials(root: str) -> Iterator[tuple[str, str | None]]:
    """Try what a root must be able to do, in a directory that is swept should we be killed: (what, what went wrong)."""
    probe = workspace.staging_name(root)
    try:
        files.make_directory(probe)
    except OSError as error:
        yield "write", error.strerror or str(error)
        return
    try:
        yield "write", None
        yield "lock", _tried(_lock_excludes, probe)
        yield "sync", _tried(_sync_works, probe)
        yield "exchange", _tried(_exchange_works, probe)
    finally:
        with contextlib.suppress(OSError):
            files.remove_tree(probe)


def _tried(trial: object, probe: str) -> str | None:
    assert callable(trial)
    try:
        said = trial(probe)
    except OSError as error:
        return error.strerror or str(error)
    return str(said) if said else None


def _lock_excludes(probe: str) -> str | None:
    first = files.lock_directory(probe)
    second = files.lock_directory(probe)
    for fd in (first, second):
        if fd is not None:
            os.close(fd)
    return None if first is not None and second is None else "two holders get one lock at the same time"


def _sync_works(probe: str) -> str | None:
    files.replace(f"{probe}/one", b"one", sync=True)
    files.append(f"{probe}/one", b"more", sync=True)
    return None if files.read(f"{probe}/one") == b"onemore" else "what was written is not what is read"


def _exchange_works(probe: str) -> str | None:
    if not means.has("exchange"):
        return None
    displaced = files.exchange(f"{probe}/one", b"two", expected=b"onemore", sync=False)
    return None if displaced == b"onemore" else "two names cannot be exchanged here: a plain rename is used"
