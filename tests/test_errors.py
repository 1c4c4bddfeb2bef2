"""docs/errors.md and the code say the same of every error; scripts rely on the codes, people on the two lines."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import orchestrator
from orchestrator import errors
from orchestrator.errors import OrchestratorError

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "errors.md"
#: Of sysexits.h, and 1 for work that failed.
CODES = {1, *range(64, 79)}


class Row(NamedTuple):
    name: str
    code: int
    when: str
    lines: list[str]


def rows() -> dict[str, Row]:
    found = {}
    for line in PAGE.read_text("utf-8").splitlines():
        match = re.fullmatch(r"\| `(\w+)` \| (\d+) \| (.*?) \|(?: (.*))? \|", line)
        if match:
            lines = (match[4] or "").replace("\\|", "|").strip()
            found[match[1]] = Row(match[1], int(match[2]), match[3], lines.split("<br>") if lines else [])
    return found


def subclasses(base: type[OrchestratorError] = OrchestratorError) -> Iterator[type[OrchestratorError]]:
    for found in base.__subclasses__():
        if found.__module__.startswith("orchestrator."):
            yield found
            yield from subclasses(found)


def every_class() -> list[type[OrchestratorError]]:
    """With all modules imported: an error may be defined anywhere."""
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [OrchestratorError, *subclasses()]


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((REPOSITORY / "orchestrator").rglob("*.py")):
        yield path, ast.parse(path.read_text("utf-8"), str(path))


def raised(tree: ast.AST) -> Iterator[ast.Raise]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Raise))


def name_of(node: ast.expr | None) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_every_error_is_on_the_page_with_the_code_that_it_has() -> None:
    assert {name: row.code for name, row in rows().items()} == {c.__name__: c.exit_code for c in every_class()}


def test_every_error_has_a_code_that_a_script_can_tell() -> None:
    assert not [c for c in every_class() if c.exit_code not in CODES]
    assert {c.__module__ for c in every_class()} == {"orchestrator.errors"}


def test_the_page_is_sorted_by_what_a_script_sees() -> None:
    found = [(row.code, row.name) for row in rows().values()][1:]
    assert found == sorted(found, key=lambda row: row[0])


def test_nothing_is_raised_that_says_neither_what_nor_what_to_do() -> None:
    bare = [
        f"{path.name}:{node.lineno}"
        for path, tree in sources()
        for node in raised(tree)
        if name_of(node.exc) in {"Exception", "BaseException", "RuntimeError", "OrchestratorError"}
    ]
    assert bare == []


def test_an_error_is_raised_with_what_to_do() -> None:
    """Two lines, from every place. StepFailed has one: what to do is in the end of its task."""
    known = {c.__name__ for c in subclasses()} - {"StepFailed"}
    calls = [(path, node.exc) for path, tree in sources() for node in raised(tree) if name_of(node.exc) in known]
    short = [
        f"{path.name}:{call.lineno}"
        for path, call in calls
        if isinstance(call, ast.Call) and len(call.args) + len(call.keywords) < 2 and not _spread(call)
    ]
    assert short == []
    assert len(calls) > 40


def _spread(call: ast.Call) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in call.args)


def templates(name: str) -> list[re.Pattern[str]]:
    """The first lines that the code gives an error, as patterns: a value may be anything."""
    found = []
    for _, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name_of(node) == name and node.args:
                found += [re.compile(text) for text in _patterns(node.args[0])]
    return found


def _patterns(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [re.escape(str(node.value))]
    if isinstance(node, ast.JoinedStr):
        parts = (re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".+" for p in node.values)
        return ["".join(parts)]
    return []


@pytest.mark.parametrize("name", [name for name in rows() if name != "OrchestratorError"])
def test_the_example_of_an_error_is_what_the_program_says(name: str) -> None:
    row = rows()[name]
    assert row.when
    assert len(row.lines) == (1 if name == "StepFailed" else 2), row
    if name != "StepFailed":  # its text is put together in its class
        patterns = [p for p in templates(name) if p.pattern.replace(".+", "").strip(": ")]
        assert any(p.fullmatch(row.lines[0]) for p in patterns), [p.pattern for p in patterns]


def test_a_step_that_failed_says_which_and_why() -> None:
    said = errors.StepFailed("fetch", "ValueError: no such page")
    assert str(said) == rows()["StepFailed"].lines[0]
    assert (said.step, said.exit_code, said.hint) == ("fetch", 1, "")


def test_an_error_is_two_lines_as_text() -> None:
    assert str(errors.Held("what", "what to do")) == "what\n  what to do"
    assert str(errors.Held("what")) == "what"
