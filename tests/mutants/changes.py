"""A change of the product, and the named ones as they are kept in `named.toml`."""

from __future__ import annotations

import ast
import functools
import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = Path(__file__).with_name("named.toml")


class DoesNotApply(Exception):  # noqa: N818 - says what is wrong
    """The product has changed: this mutant changes nothing of it any more, or more than one place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed file. `tests` are the node ids of those that are expected to notice."""

    name: str
    rule: str
    path: str
    mutated: str
    tests: tuple[str, ...]
    module: str = ""  #: for a generated one: what it is counted under
    around: str = ""  #: the function that is changed, as it was; for a named one what it replaces, and by what

    @property
    def id(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()[:8]


def named(table: Path = NAMED, repository: Path = REPOSITORY) -> list[Mutant]:
    """All named mutants. Raises DoesNotApply when some fit no more, and names them all."""
    found, wrong = [], []
    for row in tomllib.loads(table.read_text())["mutant"]:
        try:
            found.append(_named(row, repository))
        except DoesNotApply as error:
            wrong.append(str(error))
    if wrong:
        raise DoesNotApply("\n".join(wrong))
    twice = {m.name for m in found if sum(m.name == other.name for other in found) > 1}
    if twice:
        raise DoesNotApply(f"more than one mutant has the name {sorted(twice)}")
    return found


def _named(row: dict[str, str], repository: Path) -> Mutant:
    source = (repository / row["file"]).read_text()
    mutated = replace_once(source, row["old"], row["new"], row["name"])
    try:
        compile(mutated, row["file"], "exec")
    except SyntaxError as error:
        raise DoesNotApply(f"{row['name']}: what it makes of {row['file']} is no Python: {error}") from None
    return Mutant(row["name"], row["rule"], row["file"], mutated, tuple(row["tests"]), "", row["old"] + row["new"])


def replace_once(source: str, old: str, new: str, name: str) -> str:
    count = source.count(old)
    if count != 1 or old == new:
        raise DoesNotApply(f"{name}: its text is there {count} times instead of once:\n{old}")
    return source.replace(old, new)


def missing_tests(mutants: Iterable[Mutant], repository: Path = REPOSITORY) -> Iterator[str]:
    """The tests that are named and are not there."""
    for mutant in mutants:
        for test in mutant.tests:
            path, _, function = test.partition("::")
            if not (repository / path).is_file():
                yield f"{mutant.name}: {path} is not there"
            elif function and function.partition("[")[0] not in _functions(repository / path):
                yield f"{mutant.name}: {test} is not there"
        if not mutant.tests:
            yield f"{mutant.name}: no test is named"


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def key(mutant: Mutant, tests: Sequence[str]) -> str:
    """What a result is kept under: it holds until the changed function is another."""
    return _hash(mutant.name, mutant.path, mutant.around, *tests)


def state_of(tests: Sequence[str], repository: Path = REPOSITORY) -> str:
    """What a mutant that lives was tried on: with another test in these files it may not."""
    return _hash(*(_content(repository / test.partition("::")[0]) for test in tests))


def witness(test: str, repository: Path = REPOSITORY) -> str:
    """The test that noticed, as it is now; empty when it is not there any more."""
    path, _, function = test.partition("::")
    source = _content(repository / path)
    for node in ast.walk(ast.parse(source)) if source else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function.partition("[")[0]:
            return _hash(ast.get_source_segment(source, node) or "")
    return ""


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


@functools.cache
def _content(path: Path) -> str:
    """As it was when it was first asked for: the copies in which the tests run are made at the start as well."""
    return path.read_text() if path.is_file() else ""
