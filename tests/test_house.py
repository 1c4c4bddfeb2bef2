"""The house rules, held by a walk over the syntax trees: who imports whom, what stays pure, who writes, sizes.

The rules are the tables at the top. Each check is tried on planted violations too: one that cannot fail is worthless.
"""

from __future__ import annotations

import ast
import functools
import io
import os
import re
import subprocess
import sys
import tokenize
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "orchestrator"

#: Room -> the rooms it may import. A module belongs to the row with its longest matching name. In a room that does not
#: name itself (agents, engines, skills) plug-ins know nothing of each other; one that is a package may import its own.
#: A row marked "to come" is a seam: what may be built there is settled, and nothing is yet.
ROOMS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "core": ("errors", "core"),
    "ports": ("errors", "core"),
    "config": ("errors",),
    "means": ("errors",),
    "watching": ("errors", "means"),
    "mounts": ("errors",),
    "findings": ("errors",),
    "holders": ("errors", "core", "means", "identity", "containment"),
    "surroundings": (
        *("errors", "core", "files", "means", "mounts", "watching", "containment", "workspace", "findings"),
    ),
    "inspection": ("errors", "core", "files", "store", "orders", "identity", "holders"),
    "strays": ("errors", "core", "files", "store", "identity", "containment", "holders"),
    "doctor": (
        *("errors", "core", "files", "store", "takeover", "recovery", "workspace", "identity", "containment"),
        *("holders", "inspection", "findings", "strays", "damage"),
    ),
    "clearing": ("strays", "errors", "core", "store", "recovery", "workspace", "containment", "inspection"),
    "serving": ("strays", "errors", "core", "store", "recovery", "workspace", "watching", "supervision"),
    "directories": (),
    "reading": ("errors",),
    "locking": ("reading",),
    "files": ("errors", "means", "directories", "locking", "reading"),
    "identity": ("errors", "core", "means"),
    "containment": ("errors", "core", "means", "identity"),
    "process": ("errors", "core", "files", "means", "containment"),
    "sandbox": ("errors", "core", "files"),  # to come
    "templates": ("errors",),
    "skillfiles": ("errors", "core", "templates"),
    "resolving": ("errors", "core", "skillfiles"),
    "skillinstall": ("errors", "core", "files", "skillfiles"),
    "places": (),
    "remains": ("errors", "core", "files", "places"),
    "requesting": ("errors", "files", "places"),
    "store": ("errors", "core", "files", "identity", "places", "remains", "requesting"),
    "rebuilding": ("errors", "core", "files", "store", "remains"),
    "face": ("errors", "core", "files"),
    "ledger": ("errors", "core", "files", "store"),
    "stepwriter": ("errors", "core", "files", "store", "face", "ledger", "report"),
    "writer": ("errors", "core", "files", "store", "stepwriter", "report"),
    "orders": ("errors", "core", "files", "store", "writer"),
    "damage": ("errors", "core", "files", "store", "writer"),
    "takeover": ("errors", "core", "files", "store", "writer", "rebuilding", "remains", "damage"),
    "recovery": (
        *("strays", "errors", "core", "files", "store", "writer", "takeover", "identity", "containment", "holders"),
        "orders",
    ),
    "workspace": ("errors", "core", "files", "store", "mounts"),
    "repairing": ("errors", "core", "files", "store"),
    "copying": ("files",),
    "adoption": ("errors", "core", "files", "store", "rebuilding", "remains", "copying", "workspace", "takeover"),
    "agents": ("errors", "core", "ports"),  # to come
    "engines": ("errors", "core", "ports", "process", "means", "files", "identity", "containment"),
    "notify": ("errors", "core", "ports", "process"),  # to come
    "worker": (
        *("errors", "core", "ports", "config", "files", "store", "writer", "takeover", "identity"),
        *("family", "watching", "workspace", "orders", "process", "sandbox", "worker"),
    ),
    "worker.capped": (),  # a part of the guard
    "worker.guard": ("worker.capped",),  # a process of its own: starts at once, imports nothing else of ours
    "family": ("errors", "files", "store"),
    "supervision": (
        *("family", "watching"),
        *("errors", "core", "ports", "config", "files", "store", "writer", "takeover", "recovery", "orders"),
    ),
    "coordinator": (
        *("supervision", "family", "strays"),
        *("errors", "core", "ports", "config", "files", "store", "writer", "takeover", "recovery"),
        *("orders", "workspace", "watching"),
    ),
    "announce": ("errors", "core", "ports", "config", "store", "workspace"),  # to come
    "sessions": ("errors", "core", "ports", "files", "coordinator", "sessions"),  # to come
    "report": ("errors", "core", "files", "store", "remains", "templates", "report"),
    "skills": ("__init__", "errors"),  # written as a user would write them: `from orchestrator import ...`
    "skills.retrospect": ("__init__", "errors", "core", "report"),  # it works on what is ours: our tasks
}
DOORS: dict[str, tuple[str, ...]] = {
    "worker.__main__": (
        *("errors", "core", "ports", "config", "store", "process", "sandbox", "means", "files"),
        *("worker", "worker.guard", "resolving"),
    ),
    "mcp_server": ("compose", "config", "errors", "core", "store", "report"),  # to come
    "cli": (
        *("compose", "config", "errors", "core", "store", "report", "means", "watching", "cli"),
        *("inspection", "doctor", "surroundings", "findings", "clearing", "serving", "strays", "family"),
        *("files", "identity", "containment", "recovery", "workspace", "templates", "skillfiles", "skillinstall"),
        *("adoption", "repairing", "resolving", "damage"),
    ),
    "__init__": ("compose", "config", "coordinator", "core", "errors", "ports", "worker"),
}
ROOMS["compose"] = tuple(
    room for room in ROOMS if room.split(".")[0] != "skills"
)  # everything but the doors and what goes through them
ROOMS |= DOORS

#: What `core` may not import: it decides, and everything it decides on is handed to it.
IMPURE_MODULES = frozenset(
    "anyio asyncio concurrent logging multiprocessing os psutil random secrets select shutil signal socket structlog"
    " subprocess tempfile threading time uuid".split()
)
IMPURE_BUILTINS = frozenset({"open", "print", "input"})
IMPURE_CALLS = frozenset(
    f"datetime.{name}" for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")
)
#: Slow to import: in `core` only there, and only inside a function.
LAZY_IN_CORE = {"pydantic": "core.spec"}

#: Who may write files beside files.py, and with which calls ("*" is any). Each with its reason.
WRITERS: dict[str, tuple[str, str]] = {
    "files": ("*", "it is the file layer"),
    "directories": ("*", "it is the file layer"),
    "reading": ("os.open", "it is the file layer; its flags have a name"),
    "locking": ("*", "it is the file layer"),
    "worker.capped": ("*", "the capped logs, written by the guard"),
    "worker.guard": ("*", "writes how the worker ended, and cgroup files, from a process that has no imports"),
    "copying": ("*", "it is the file layer for whole directories"),
    "containment": ("open os.mkdir os.rmdir", "cgroup control files, not on a disk"),
    "worker.checklist_runner": ("os.write", "a command's output, to the worker's own stdout"),
    "worker.__main__": ("open", "stdout and stderr, which have become pipes"),
    "skills": ("*", "a skill's own files in its workspace"),
}
OS_WRITES = frozenset(
    f"os.{name}"
    for name in (
        "chmod copy_file_range fdatasync fsync ftruncate link makedirs mkdir mkfifo mknod posix_fallocate pwrite"
        " pwritev remove removedirs rename renames replace rmdir sendfile symlink truncate unlink utime write writev"
    ).split()
)
#: Methods of paths; and `replace` when it has one argument (a text's has two).
PATH_WRITES = frozenset("chmod hardlink_to mkdir rename rmdir symlink_to touch unlink write_bytes write_text".split())
OPENERS = frozenset({"open", "io.open", "os.fdopen", "codecs.open", "anyio.open_file"})
READING_FLAGS = frozenset(
    f"os.O_{name}" for name in "RDONLY CLOEXEC DIRECTORY NOFOLLOW NONBLOCK PATH NOATIME NOCTTY".split()
)
#: The only names of these modules that write nothing.
HARMLESS = {"shutil": {"which", "disk_usage", "get_terminal_size"}, "tempfile": {"gettempdir"}}

FORBIDDEN_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base"})
MODULE_LINES = 400
FUNCTION_LINES = 60
SHORT_SLEEP = re.compile(r"\bsleep\((?:\w+=)?0?\.\d")
MARKERS = re.compile(r"\b(TODO|FIXME)\b")


@dataclass
class Module:
    """One source file. `name` is dotted, without the package's: `core.model`, `core` for its __init__, `__init__`."""

    name: str
    source: str
    is_package: bool = False
    tree: ast.Module = field(init=False)
    aliases: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source, self.name)
        self.aliases = dict(self._aliases())

    def absolute(self, node: ast.ImportFrom) -> str:
        """The full name of what follows `from`, relative imports resolved."""
        if not node.level:
            return node.module or ""
        parts = [PACKAGE] if self.name == "__init__" else [PACKAGE, *self.name.split(".")]
        drop = node.level - (self.is_package or self.name == "__init__")
        return ".".join([*parts[: len(parts) - drop], *([node.module] if node.module else [])])

    def imported(self) -> Iterator[tuple[int, str]]:
        """Line and full name of every import in the file: functions, TYPE_CHECKING and import_module("...") too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, f"{self.absolute(node)}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Call) and self.dotted(node.func) in {"importlib.import_module", "__import__"}:
                yield from ((node.lineno, self._anchored(name)) for name in _strings(node.args[:1]))

    def _anchored(self, name: str) -> str:
        return PACKAGE + "." + name.lstrip(".") if name.startswith(".") else name

    def _aliases(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((a.asname, a.name) if a.asname else (a.name.split(".")[0],) * 2 for a in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((a.asname or a.name, f"{self.absolute(node)}.{a.name}") for a in node.names)

    def dotted(self, node: ast.AST | None) -> str:
        """`os.replace` for `o.replace` after `import os as o`; "" for what is no plain name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (left := self.dotted(node.value)):
            return f"{left}.{node.attr}"
        return ""


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def room_of(name: str, rooms: Mapping[str, object] = ROOMS) -> str | None:
    parts = name.split(".")
    return next((room for n in range(len(parts), 0, -1) if (room := ".".join(parts[:n])) in rooms), None)


# ---- the checks: a module in, its violations out


def imports(module: Module) -> Iterator[str]:
    here = room_of(module.name)
    if here is None:
        yield f"{module.name}: not in the table; say in ROOMS (tests/test_house.py) what it may import"
        return
    for line, name in module.imported():
        if name != PACKAGE and not name.startswith(PACKAGE + "."):
            continue
        target = name.removeprefix(PACKAGE).removeprefix(".")
        there = room_of(target) or ("__init__" if "." not in target else None)
        if there is None:
            yield f"{module.name}:{line} imports {name}: not in the table; add it to ROOMS (tests/test_house.py)"
        elif there not in ROOMS[here] and not _same_plugin(module.name, target):
            allowed = ", ".join(ROOMS[here]) or "nothing of ours"
            yield f"{module.name}:{line} imports {name}: {here} may import only {allowed}"


def _same_plugin(here: str, there: str) -> bool:
    """Whether both lie in one package within a room: `skills.repo_report.render` and `skills.repo_report.ledger`."""
    return len(here.split(".")) >= 2 and here.split(".")[:2] == there.split(".")[:2]


def purity(module: Module) -> Iterator[str]:
    if room_of(module.name) != "core":
        return
    deferred = {id(inner) for node in ast.walk(module.tree) for inner in _only_later(node)}
    for node in ast.walk(module.tree):
        for what in _impure(module, node, id(node) in deferred):
            yield f"{module.name}:{getattr(node, 'lineno', 0)} is not pure: {what}"


def _only_later(node: ast.AST) -> Iterator[ast.AST]:
    """What does not run when the module is imported: bodies of functions and of `if TYPE_CHECKING`."""
    if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        yield from (inner for statement in node.body for inner in ast.walk(statement))


def _impure(module: Module, node: ast.AST, deferred: bool) -> Iterator[str]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{module.absolute(node)}.{alias.name}" for alias in node.names]
    for name in names:
        top = name.split(".")[0]
        if top in IMPURE_MODULES or (top == "pathlib" and not name.startswith("pathlib.Pure")):
            yield f"imports {name}"
        if top in LAZY_IN_CORE and not (deferred and module.name == LAZY_IN_CORE[top]):
            yield f"imports {top} outside of a function of {LAZY_IN_CORE[top]}"
    if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
        yield "is asynchronous"
    if isinstance(node, ast.Attribute) and module.dotted(node) in IMPURE_CALLS:
        yield f"uses {module.dotted(node)}"
    if isinstance(node, ast.Call) and module.dotted(node.func) in IMPURE_BUILTINS:
        yield f"calls {module.dotted(node.func)}()"


def writing(module: Module) -> Iterator[str]:
    room = room_of(module.name, WRITERS)
    allowed = WRITERS[room][0].split() if room else []
    for line, what in sorted(set(_writes(module))):
        if what not in allowed and "*" not in allowed:
            yield f"{module.name}:{line} writes with {what}: only files.py does (or give a reason in WRITERS)"


def _writes(module: Module) -> Iterator[tuple[int, str]]:
    called = {id(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.expr):
            continue
        name = module.dotted(node)
        top, _, rest = name.partition(".")
        harmful = rest != "" and top in HARMLESS and rest not in HARMLESS[top]
        if harmful or name in OS_WRITES or (name == "os.open" and id(node) not in called):
            yield node.lineno, name
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _writing_call(module, node))


def _writing_call(module: Module, call: ast.Call) -> Iterator[str]:
    name = module.dotted(call.func)
    if name in OPENERS and _mode_writes(_argument(call, 1, "mode"), unknown=True):
        yield name
    if name == "os.open" and not _only_reads(module, _argument(call, 1, "flags")):
        yield name
    for node in (call.func, *call.args):  # also `run_sync(path.unlink)`
        if not isinstance(node, ast.Attribute) or module.dotted(node.value).split(".")[0] in {"os", PACKAGE, *HARMLESS}:
            continue
        own = node is call.func
        if node.attr in PATH_WRITES or (own and node.attr == "replace" and len(call.args) == 1 and not call.keywords):
            yield f".{node.attr}"
        if (
            own
            and node.attr == "open"
            and name not in OPENERS
            and _mode_writes(_argument(call, 0, "mode"), unknown=False)
        ):
            yield ".open"


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    named = (keyword.value for keyword in call.keywords if keyword.arg == name)
    return call.args[position] if len(call.args) > position else next(named, None)


def _mode_writes(mode: ast.expr | None, *, unknown: bool) -> bool:
    """Whether this mode of open() writes; `unknown` is the answer for a mode that only shows when run."""
    if mode is None:
        return False
    if not isinstance(mode, ast.Constant):
        return unknown
    return bool(re.fullmatch(r"[rwaxbtU+]+", str(mode.value))) and bool(set(str(mode.value)) & set("wax+"))


def _only_reads(module: Module, flags: ast.expr | None) -> bool:
    if isinstance(flags, ast.BinOp) and isinstance(flags.op, ast.BitOr):
        return _only_reads(module, flags.left) and _only_reads(module, flags.right)
    return module.dotted(flags) in READING_FLAGS


def names(module: Module) -> Iterator[str]:
    for part in module.name.split("."):
        if part.strip("_") in FORBIDDEN_NAMES:
            yield f"{module.name}: {part!r} says nothing about what is in it"


def sizes(module: Module) -> Iterator[str]:
    if (lines := len(module.source.splitlines())) > MODULE_LINES:
        yield f"{module.name} has {lines} lines, more than {MODULE_LINES}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{module.name}:{node.lineno} {node.name} has {lines} lines, more than {FUNCTION_LINES}"


def leftovers(module: Module) -> Iterator[str]:
    """Comments that put work off. Strings are data: a skill may well look for such words."""
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT and MARKERS.search(token.string):
            yield f"{module.name}:{token.start[0]} {token.string}"


def sleeping(module: Module) -> Iterator[str]:
    """Waits for a fixed time. `sleep(0)` only yields; a named interval belongs to a loop that waits for a condition.

    In a text, which may be the code of a skill or of a process, a fraction of a second: longer ones stand for a hang.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and SHORT_SLEEP.search(str(node.value)):
            yield f"{module.name}:{node.lineno} a text sleeps: wait for a condition instead"
        if isinstance(node, ast.Call) and module.dotted(node.func).split(".")[-1] == "sleep":
            for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
                fixed = not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(value))
                if fixed and ast.unparse(value) != "0":
                    yield f"{module.name}:{node.lineno} sleeps: wait for a condition instead"


def cycles(modules: Iterable[Module], room: str = "core") -> Iterator[str]:
    """Imports within a room that go in a circle, wherever in the file they stand."""
    inside = {module.name: module for module in modules if room_of(module.name) == room}
    graph = {
        name: {
            t
            for _, full in module.imported()
            if (t := room_of(full.removeprefix(PACKAGE + "."), inside)) not in {None, name}
        }
        for name, module in inside.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield " <- ".join(error.args[1])
    if graph.get(f"{room}.model"):
        yield f"{room}.model is at the bottom, and imports {graph[f'{room}.model']}"


def foreign_paths(text: str, checkout: Path) -> Iterator[str]:
    """Lines with a path of this machine: the checkout, or the directory it is in unless every machine has that one."""
    shared = {"/", "/tmp", "/var/tmp", "/home", "/root", "/srv", "/opt", "/usr/src", "/mnt", "/app", "/src"}
    places = [str(place) for place in (checkout, checkout.parent) if str(place) not in shared]
    if places:
        pattern = re.compile(rf"(?<![\w.~}}-])(?:{'|'.join(map(re.escape, places))})(?![\w-])")
        yield from (f"{n}: {line.strip()[:120]}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line))


def public_names(module: Module) -> list[str]:
    """What `__all__` lists, as a literal."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return list(ast.literal_eval(node.value))
    return []


def documented_names(markdown: str) -> list[str]:
    """The lines "- `name`" under the heading "## Public names"."""
    section = re.search(r"^## Public names\s*$(.*?)(?=^#{1,2} |\Z)", markdown, re.MULTILINE | re.DOTALL)
    return re.findall(r"^[-*] `(\w+)", section[1], re.MULTILINE) if section else []


# ---- the real house


@functools.cache
def read(directory: Path) -> list[Module]:
    """All modules under a directory, by their dotted names; those in templates are data."""
    found = []
    for path in sorted(directory.rglob("*.py")):
        parts = list(path.relative_to(directory).with_suffix("").parts)
        package = parts[-1] == "__init__" and len(parts) > 1
        found.append(Module(".".join(parts[:-1] if package else parts), path.read_text("utf-8"), package))
    return found


def tracked_files() -> list[Path]:
    """What git tracks or would; without git (an unpacked archive), everything that is not hidden or a workspace."""
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [
            path for name in os.fsdecode(listed.stdout).split("\0") if name and (path := REPOSITORY / name).is_file()
        ]
    visible = (
        path for path in REPOSITORY.rglob("*") if not any(p[0] == "." for p in path.relative_to(REPOSITORY).parts)
    )
    return [path for path in visible if path.is_file() and path.relative_to(REPOSITORY).parts[0] != "workspaces"]


@pytest.fixture(scope="module")
def house() -> list[Module]:
    modules = read(REPOSITORY / PACKAGE)
    assert modules, "nothing found: the walk looks in the wrong place"
    return modules


@pytest.mark.parametrize("check", [imports, purity, writing, names, sizes, leftovers])
def test_the_house_keeps_its_rules(house: list[Module], check: Callable[[Module], Iterator[str]]) -> None:
    found = [violation for module in house for violation in check(module)]
    assert not found, "\n" + "\n".join(found)


def test_core_has_no_circle_and_the_model_at_its_bottom(house: list[Module]) -> None:
    assert list(cycles(house)) == []


def test_no_arrow_of_the_table_goes_up() -> None:
    TopologicalSorter({room: set(allowed) - {room} for room, allowed in ROOMS.items()}).prepare()
    assert {name for allowed in ROOMS.values() for name in allowed} <= set(ROOMS)


def test_tests_wait_for_conditions_and_put_nothing_off() -> None:
    modules = [m for name in ("tests", "examples", "benchmarks") for m in read(REPOSITORY / name)]
    found = [v for module in modules for v in leftovers(module)]
    found += [v for module in read(REPOSITORY / "tests") for v in sleeping(module)]
    assert not found, "\n" + "\n".join(found)


def test_no_file_knows_where_this_checkout_lies() -> None:
    found = []
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" not in content:
            text = content.decode("utf-8", "replace")
            found += [f"{path.relative_to(REPOSITORY)}:{line}" for line in foreign_paths(text, REPOSITORY)]
    assert not found, "\n" + "\n".join(found)


def test_the_public_names_are_the_documented_ones(house: list[Module]) -> None:
    readme = REPOSITORY / "README.md"
    listed = [name for module in house if module.name == "__init__" for name in public_names(module)]
    assert sorted(listed) == sorted(documented_names(readme.read_text("utf-8")))
    assert listed, "`orchestrator` has no public name"


# ---- planted violations: every rule can fail, and says so about nothing else


PLANTED: list[tuple[Callable[[Module], Iterator[str]], str, str]] = [
    (imports, "core.model", "from orchestrator.store import Store"),
    (imports, "core.model", "from ..store import Store"),
    (imports, "core.model", "from .. import files"),
    (imports, "core.model", "def f():\n    import orchestrator.files"),
    (
        imports,
        "core.model",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from orchestrator.ports import Engine",
    ),
    (imports, "core.model", "import importlib\nimportlib.import_module('orchestrator.compose')"),
    (imports, "core.model", "from importlib import import_module\nimport_module('.compose', 'orchestrator')"),
    (imports, "errors", "from orchestrator import core"),
    (imports, "agents.claude", "from orchestrator.process import run"),
    (imports, "agents.claude", "from .codex import parse"),
    (imports, "engines.local", "from orchestrator.store import Store"),
    (imports, "coordinator", "from orchestrator.engines import local"),
    (imports, "worker.guard", "from orchestrator import errors"),
    (imports, "worker.loop", "from orchestrator.coordinator import Coordinator"),
    (imports, "compose", "from orchestrator.cli.main import main"),
    (imports, "compose", "from orchestrator import Coordinator"),
    (imports, "skills.report", "from orchestrator.worker.task import Task"),
    (imports, "skills.report.text", "from orchestrator.skills.other import x"),
    (imports, "surprise", "x = 1"),
    (imports, "compose", "from orchestrator.surprise import x"),
    (purity, "core.model", "import os"),
    (purity, "core.model", "import os.path as p"),
    (purity, "core.model", "def f():\n    from time import monotonic"),
    (purity, "core.model", "from pathlib import Path"),
    (purity, "core.model", "import pathlib"),
    (purity, "core.model", "import structlog"),
    (purity, "core.model", "async def f(): ..."),
    (purity, "core.model", "open('x')"),
    (purity, "core.model", "import datetime\ndatetime.datetime.now(datetime.UTC)"),
    (purity, "core.model", "from datetime import datetime as d\nclock = d.utcnow"),
    (purity, "core.spec", "import pydantic"),
    (purity, "core.names", "def f():\n    import pydantic"),
    *[
        (writing, "store", text)
        for text in (
            "open('x', 'w')",
            "open('x', mode='ab')",
            "open('x', 'r+')",
            "def f(m): open('x', m)",
            "import io\nio.open('x', 'x')",
            "import os\nos.fdopen(3, 'wb')",
            "import os\nos.open('x', os.O_WRONLY | os.O_CREAT)",
            "import os\ndef f(flags): os.open('x', flags)",
            "import os as o\no.replace('a', 'b')",
            "from os import fsync as sync\nsync(3)",
            "import os\nrun_sync(os.unlink, 'x')",
            "import os\nos.truncate('x', 0)",
            "import shutil\nshutil.rmtree('x')",
            "from shutil import copyfile\ncopyfile('a', 'b')",
            "import tempfile\ntempfile.mkdtemp()",
            "def f(path): path.write_text('x')",
            "def f(path): (path / 'a').mkdir()",
            "def f(path, run): run(path.unlink)",
            "def f(path): path.replace('b')",
            "def f(path): path.open('wb')",
        )
    ],
    (writing, "containment", "import os\nos.replace('a', 'b')"),
    (names, "worker.utils", ""),
    (names, "base", ""),
    (names, "core._helpers", ""),
    (sizes, "store", "x = 1\n" * (MODULE_LINES + 1)),
    (sizes, "store", "def f():\n" + "    x = 1\n" * FUNCTION_LINES),
    (sizes, "store", "async def f():\n" + "    x = 1\n" * FUNCTION_LINES),
    (leftovers, "store", "x = 1  # TO" + "DO: later"),
    (sleeping, "test_x", "import time\ntime.sleep(0." + "1)"),
    (sleeping, "test_x", "CODE = 'while not there(): anyio.sleep(delay=0." + "001)'"),
    (sleeping, "test_x", "from asyncio import sleep\nasync def f(): await sleep(2 * 60)"),
    (sleeping, "test_x", "import anyio\nasync def f(): await anyio.sleep(delay=1)"),
]

HARMLESS_SOURCES: list[tuple[Callable[[Module], Iterator[str]], str, str]] = [
    (imports, "core.names", "from .model import StepId\nfrom orchestrator.errors import BadSpec\nimport json, yaml"),
    (imports, "worker.loop", "from . import task\nfrom .. import errors\nfrom ..core import model"),
    (imports, "skills.report", "from orchestrator import Task, errors"),
    (imports, "skills.report.text", "from orchestrator.skills.report.table import row"),
    (imports, "store", "import orchestrator_of_another_project"),
    (
        purity,
        "core.names",
        "from pathlib import PurePosixPath\nimport datetime, re\ndatetime.datetime.fromisoformat('x')",
    ),
    (purity, "core.spec", "def f():\n    from pydantic import BaseModel"),
    (purity, "store", "import os, time"),
    (
        writing,
        "store",
        "open('x')\nopen('x', 'rb')\nimport os\nos.open('x', os.O_RDONLY | os.O_DIRECTORY)\nos.stat('x')",
    ),
    (writing, "store", "from orchestrator import files\nfiles.replace('a')\nfiles.mkdir('b')"),
    (writing, "store", "def f(text, path): text.replace('a', 'b'); path.open(); path.read_text()"),
    (writing, "store", "import shutil, webbrowser\nshutil.which('git')\nwebbrowser.open('https://example.org')"),
    (writing, "files", "import os\nos.replace('a', 'b')"),
    (writing, "containment", "def f(group): open(f'{group}/cgroup.kill', 'w')"),
    (names, "core.database", ""),
    (sizes, "store", "def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1)),
    (sleeping, "test_x", "CODE = 'sleep(POLL); sleep(300); sleep(0)'"),
    (leftovers, "skills.report", "MARK = 'TO' 'DO'\nx = 'FIXME'"),
    (sleeping, "test_x", "import anyio\nasync def f(): await anyio.sleep(0); await anyio.sleep(POLL)"),
]


@pytest.mark.parametrize("check, name, source", PLANTED)
def test_a_planted_violation_is_found(check: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    assert list(check(Module(name, source)))


@pytest.mark.parametrize("check, name, source", HARMLESS_SOURCES)
def test_what_is_allowed_is_let_through(check: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    assert list(check(Module(name, source))) == []


def test_relative_imports_of_a_package_are_seen_from_inside_it() -> None:
    assert list(imports(Module("core", "from .model import Task\nfrom .. import errors", is_package=True))) == []
    assert list(imports(Module("core", "from ..files import append", is_package=True)))
    assert list(imports(Module("__init__", "from .compose import Coordinator"))) == []
    assert list(imports(Module("__init__", "from .mcp_server import serve")))


def test_a_circle_in_core_is_found() -> None:
    model, names_ = Module("core.model", ""), Module("core.names", "def f():\n    from . import retro")
    retro = Module("core.retro", "from orchestrator.core.names import task_id\nfrom orchestrator.core import model")
    assert list(cycles([model, names_, retro]))
    assert list(cycles([model, Module("core.names", "from .model import Task"), retro])) == []
    assert list(cycles([Module("core.model", "from .names import x"), Module("core.names", "")]))


def test_a_path_of_this_machine_is_found() -> None:
    place = Path("/w/repo")
    assert list(foreign_paths("cd /w/repo && make\n", place))
    assert list(foreign_paths('python = "/w/.venv/bin/python"\n', place))
    assert list(foreign_paths("see /workspaces, a/w/b, /tmp/w and {root}/w\n", place)) == []
    assert list(foreign_paths("everybody has /tmp/x\n", Path("/tmp/repo"))) == []
    assert list(foreign_paths("but not /tmp/repo/x\n", Path("/tmp/repo")))


def test_public_names_are_read_from_both_sides() -> None:
    assert public_names(Module("__init__", "__all__: list[str] = ['A', 'b']")) == ["A", "b"]
    text = "# X\n## Public names\n\n- `A` - the first\n### More\n- `b`\n## Else\n- `c`\n"
    assert documented_names(text) == ["A", "b"]


def test_a_worker_left_behind_by_a_test_is_found(find_workers: Callable[[str], list[object]]) -> None:
    """The search at the end of the session (conftest.py), on a process that waits for its stdin to close."""
    session = f"planted-{uuid.uuid4().hex}"
    part = f"{session}.gw1"  # as a process of pytest-xdist calls its own
    environment = os.environ | {"ORCHESTRATOR_TEST_SESSION": part, "ORCHESTRATOR_TOKEN": session}
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        for whole_or_part in (session, part):
            assert [getattr(process, "pid", None) for process in find_workers(whole_or_part)] == [child.pid]
        for other in ("another session", f"{session}.gw", f"{session}.gw10"):
            assert find_workers(other) == []
    assert find_workers(session) == []
