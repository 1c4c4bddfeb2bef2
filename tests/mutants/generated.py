"""Small changes made by rule: of a comparison, a condition, a constant, a return, a statement, two arguments.

What is only wording (texts with a blank in them, docstrings) is left alone, and so are annotations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from mutants.changes import REPOSITORY, Mutant

_FOLD = ("tests/core/test_snapshot.py", "tests/core/test_lifecycle.py")
_HOLDER = ("tests/test_takeover.py", "tests/test_syncs.py")

#: Module -> lists of tests, each tried on what the one before it let live: first seconds, then what is wider.
PLAN: dict[str, tuple[tuple[str, ...], ...]] = {
    "core/journal": (("tests/core/test_journal.py",), _HOLDER),
    "core/lifecycle": (_FOLD, ("tests/test_budget.py", "tests/test_cut_off.py")),
    "core/snapshot": (_FOLD, ("tests/test_store.py", *_HOLDER, "tests/test_steering.py")),
    "core/told": (_FOLD, ("tests/test_fence.py",)),
    "files": (("tests/test_files.py",), (*_HOLDER, "tests/test_hand_edits.py")),
    "ledger": (("tests/test_ledger.py",), _HOLDER, ("tests/test_hand_edits.py", "tests/test_rebuild.py")),
    "store": (("tests/test_store.py",), (*_HOLDER, "tests/test_rebuild.py")),
}

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.BitOr: "&", ast.BitAnd: "|",
    ast.LShift: ">>", ast.Pow: "*", ast.Mod: "+",
}  # fmt: skip
_IN_ANY_ORDER = frozenset({"min", "max", "contextlib.suppress"})
_WORD = re.compile(r"[A-Za-z_.]+")

Change = tuple[ast.AST, str]


def generate(module: str) -> list[Mutant]:
    path = f"orchestrator/{module}.py"
    source = (REPOSITORY / path).read_text()
    functions = dict(_functions(ast.parse(source), source))
    return [
        Mutant(name, "", path, mutated, PLAN[module][0], module, functions.get(name.split(": ")[1], ""))
        for name, mutated in changed(source, module)
    ]


def _functions(node: ast.AST, source: str, place: str = "") -> Iterator[tuple[str, str]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{place}.{inner.name}".lstrip(".")
            yield name, ast.get_source_segment(source, inner) or ""
            yield from _functions(inner, source, name)


def changed(source: str, module: str) -> Iterator[tuple[str, str]]:
    """Each change's name, which stays the same when lines move, and the whole text with it."""
    seen: dict[str, int] = {}
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()
    for place, statement, (node, new) in _walk(ast.parse(source)):
        begin, end = _span(node, starts)
        old = data[begin:end].decode()
        if old == new:
            continue
        name = f"{module}: {place}: {_header(statement)}: {_short(old)} -> {_short(new)}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name += f" #{seen[name]}"
        mutated = data[:begin] + new.encode() + data[end:]
        yield name, mutated.decode()


def _span(node: ast.AST, starts: Sequence[int]) -> tuple[int, int]:
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _header(statement: ast.stmt) -> str:
    text = ast.unparse(statement)
    return _short(text.splitlines()[0] if isinstance(getattr(statement, "body", None), list) else text)


def _short(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= 90 else folded[:89] + "…"


def _walk(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, Change]]:
    for statement in tree.body:
        yield from _of_statement(statement, "")


def _of_statement(statement: ast.stmt, place: str) -> Iterator[tuple[str, ast.stmt, Change]]:
    if isinstance(statement, ast.Import | ast.ImportFrom) or _is_docstring(statement) or _for_types(statement):
        return
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        place = f"{place}.{statement.name}".lstrip(".")
    for change in _removed(statement):
        yield place, statement, change
    for part in _expressions(statement):
        for node in _parts(part):
            for change in _of_expression(node):
                yield place, statement, change
    for inner in _inner(statement):
        yield from _of_statement(inner, place)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _for_types(statement: ast.stmt) -> bool:
    """Or for those who import by a star, which nobody does."""
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0]) == "__all__"
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield from handler.body
    for case in getattr(statement, "cases", []):
        yield from case.body


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of the statement itself; not its annotations, and not those of the statements in it."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from statement.args.defaults
            yield from (default for default in statement.args.kw_defaults if default is not None)
        case ast.ClassDef():
            return
        case ast.AnnAssign():
            if statement.value is not None:
                yield statement.value
        case ast.With() | ast.AsyncWith():
            yield from (item.context_expr for item in statement.items)
        case ast.Try():
            yield from (handler.type for handler in statement.handlers if handler.type is not None)
        case ast.Match():
            yield statement.subject
        case _:
            yield from (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr))


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    yield node
    if isinstance(node, ast.JoinedStr):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _parts(child)
        elif isinstance(child, ast.keyword):
            yield from _parts(child.value)
        elif isinstance(child, ast.comprehension):
            yield from _parts(child.iter)
            for condition in child.ifs:
                yield from _parts(condition)


def _removed(statement: ast.stmt) -> Iterator[Change]:
    match statement:
        case ast.Expr() | ast.AugAssign() | ast.Delete():
            yield statement, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield statement, "pass"
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Attribute(), *_])]):
            yield statement, "pass"
        case ast.Raise() | ast.Break() | ast.Continue():
            yield statement, "pass"
        case ast.Return(value=ast.expr()) if not _is_nothing(statement.value):
            yield statement, "return None"
        case ast.If() | ast.While() if not isinstance(statement.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield statement.test, f"(not ({ast.unparse(statement.test)}))"


def _is_nothing(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in (None, False)


def _of_expression(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare():
            yield from _of_comparison(node)
        case ast.BoolOp():
            other = " and " if isinstance(node.op, ast.Or) else " or "
            yield node, "(" + other.join(f"({ast.unparse(value)})" for value in node.values) + ")"
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"(bool({ast.unparse(node.operand)}))"
        case ast.BinOp(op=op) if type(op) in _SIGNS and not _is_text(node):
            yield node, f"({ast.unparse(node.left)} {_SIGNS[type(op)]} {ast.unparse(node.right)})"
        case ast.IfExp():
            yield node, f"({ast.unparse(node.orelse)} if {ast.unparse(node.test)} else {ast.unparse(node.body)})"
        case ast.Constant():
            yield from _of_constant(node)
        case ast.Call(args=[first, second, *rest]) if not any(isinstance(a, ast.Starred) for a in node.args):
            if ast.unparse(node.func) not in _IN_ANY_ORDER and ast.unparse(first) != ast.unparse(second):
                swapped = ast.Call(node.func, [second, first, *rest], node.keywords)
                yield node, ast.unparse(ast.copy_location(swapped, node))


def _of_comparison(node: ast.Compare) -> Iterator[Change]:
    for number, operator in enumerate(node.ops):
        if type(operator) in _COMPARISONS:
            words = [ast.unparse(node.left)]
            for i, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
                words += [_COMPARISONS[type(op)] if i == number else _sign(op), ast.unparse(right)]
            yield node, "(" + " ".join(words) + ")"


def _sign(operator: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("a"), [operator], [ast.Name("b")]))[2:-2]


def _is_text(node: ast.expr) -> bool:
    return any(isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str))
               for n in ast.walk(node))  # fmt: skip


def _of_constant(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield node, str(not value)
    elif isinstance(value, int):
        yield node, str(value + 1)
    elif isinstance(value, float):
        yield node, repr(value * 2 + 1)
    elif isinstance(value, str) and _WORD.fullmatch(value):
        yield node, repr(value + "X")
    elif isinstance(value, bytes) and value:
        yield node, repr(value + b"X")
