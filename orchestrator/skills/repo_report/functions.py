"""How long the functions of a Python file are: by its syntax tree, or by indentation where it has none."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator

from orchestrator.skills.repo_report.languages import PYTHON, language_of, lines_of
from orchestrator.skills.repo_report.sealed import Row

#: What `ast.parse` raises on a text that is no Python of this version: a bad one, NUL bytes, or too deep a nesting.
NO_TREE = (SyntaxError, ValueError, RecursionError, MemoryError)

_DEF = re.compile(r"(?P<indent>[ \t]*)(?:async[ \t]+)?def[ \t]+(?P<name>\w+)")

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def measure(path: str, text: str) -> Iterable[Row]:
    """One row per function of a Python file: `name` (qualified), `line`, `lines`, and `guessed` if there is no tree.

    From the line of `def` to the last of the body, without decorators; a nested function counts in the outer one too.
    """
    if language_of(path) is not PYTHON:
        return []
    try:
        return [_row(path, *found, guessed=False) for found in _by_tree(_parse(text))]
    except NO_TREE:
        return [_row(path, *found, guessed=True) for found in _by_indentation(text)]


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():  # an invalid escape in what we read is none of our log's business
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _row(path: str, name: str, line: int, lines: int, *, guessed: bool) -> Row:
    return {"path": path, "name": name, "line": line, "lines": lines, "guessed": guessed}


def _by_tree(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, outer = waiting.pop()
        if isinstance(node, _Function):
            yield outer, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1
        waiting += [(child, _qualified(outer, child)) for child in ast.iter_child_nodes(node) if not _is_leaf(child)]


def _is_leaf(node: ast.AST) -> bool:
    return isinstance(node, ast.expr | ast.expr_context | ast.arguments)  # no `def` lies below these


def _qualified(outer: str, node: ast.AST) -> str:
    if not isinstance(node, _Named):
        return outer
    return f"{outer}.{node.name}" if outer else node.name


def _by_indentation(text: str) -> Iterator[tuple[str, int, int]]:
    lines = lines_of(text)
    for index, line in enumerate(lines):
        if match := _DEF.match(line):
            yield match["name"], index + 1, _body_length(lines[index:], len(match["indent"]))


def _body_length(lines: list[str], indent: int) -> int:
    """Lines from a `def` to the last line, not blank, that is indented deeper than it."""
    length = 1
    for number, line in enumerate(lines[1:], start=2):
        if line.strip() and len(line) - len(line.lstrip()) <= indent and not line.lstrip().startswith(")"):
            break
        length = number if line.strip() else length
    return length
