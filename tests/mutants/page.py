"""docs/mutants.md: the table of the named mutants, the scores, and why each other survivor lives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.changes import REPOSITORY, Mutant

PAGE = REPOSITORY / "docs" / "mutants.md"
_EXPLAINED = re.compile(r"^\| `([0-9a-f]{8})` \| (.*) \| (.*) \|$", re.MULTILINE)
_SECTION = "<!-- {0} -->\n(.*?)<!-- /{0} -->"


@dataclass(frozen=True, slots=True)
class Score:
    module: str
    total: int
    caught: int
    explained: int

    @property
    def row(self) -> str:
        share = 100 * self.caught / self.total if self.total else 100.0
        return f"| `{self.module}` | {self.total} | {self.caught} | {self.explained} | {share:.1f} % |"


def named_table(mutants: Iterable[Mutant]) -> str:
    rows = ["| mutant | rule | caught by |", "|---|---|---|"]
    for mutant in mutants:
        tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in mutant.tests)
        rows.append(f"| {_cell(mutant.name)} | {_cell(mutant.rule)} | {tests} |")
    return "\n".join(rows) + "\n"


def score_table(scores: Iterable[Score]) -> str:
    rows = ["| module | mutants | caught | explained | score |", "|---|---|---|---|---|", *(s.row for s in scores)]
    return "\n".join(rows) + "\n"


def scores(page: str) -> dict[str, Score]:
    """The scores as the page has them."""
    rows = re.findall(r"^\| `([\w/]+)` \| (\d+) \| (\d+) \| (\d+) \| [\d.]+ % \|$", page, re.MULTILINE)
    return {module: Score(module, int(total), int(caught), int(said)) for module, total, caught, said in rows}


def explained(page: str) -> dict[str, tuple[str, str]]:
    """Of each survivor that is explained, by its id: what was changed, and why nothing notices."""
    return {id_: (what, why) for id_, what, why in _EXPLAINED.findall(page)}


def explained_row(mutant: Mutant, why: str) -> str:
    return f"| `{mutant.id}` | {_cell(mutant.name)} | {why} |"


def section(page: str, name: str) -> str:
    found = re.search(_SECTION.format(name), page, re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no section {name}")
    return found[1]


def with_section(page: str, name: str, text: str) -> str:
    section(page, name)
    return re.sub(_SECTION.format(name), lambda _: f"<!-- {name} -->\n{text}<!-- /{name} -->", page, flags=re.DOTALL)


def unexplained(survivors: Sequence[Mutant], said: Mapping[str, tuple[str, str]]) -> list[Mutant]:
    return [mutant for mutant in survivors if mutant.id not in said or not said[mutant.id][1].strip()]


def of_nothing(said: Mapping[str, tuple[str, str]], mutants: Iterable[Mutant]) -> list[str]:
    """Explanations of mutants that are no more."""
    there = {mutant.id for mutant in mutants}
    return [f"{id_}: {what}" for id_, (what, _) in said.items() if id_ not in there]


def _cell(text: str) -> str:
    """As a table has it: a bar or a newline would end the cell."""
    return re.sub(r"[*_<>`|\\]", lambda found: f"&#{ord(found[0])};", text)


def read(path: Path = PAGE) -> str:
    return path.read_text()
