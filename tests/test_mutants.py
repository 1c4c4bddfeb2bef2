"""The mutants themselves: each fits the product as it is now, is noticed, and none lives without a reason that is told.

All are tried by `make mutants`; here, besides the rules of the trial, a handful, another one for each state of
the product.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants import __main__ as trial
from mutants import changes, generated, page
from mutants.bench import Bench, Run
from mutants.changes import REPOSITORY, DoesNotApply, Mutant

#: For how long new ones of the handful are begun.
BUDGET_SECONDS = 15.0
NAMED = changes.named()


def test_every_named_mutant_fits_the_product_and_its_tests_are_there() -> None:
    assert len(NAMED) > 100
    assert list(changes.missing_tests(NAMED)) == []


@pytest.mark.parametrize("source", ["x = 1\ny = 2\n", "x = 1\nx = 1\n"], ids=["gone", "twice"])
def test_a_mutant_that_changes_nothing_or_more_than_one_place_is_an_error(source: str) -> None:
    with pytest.raises(DoesNotApply):
        changes.replace_once(source, "x = 1\n" if "y" not in source else "z = 1\n", "x = 2\n", "a mutant")


def test_a_named_mutant_that_is_no_python_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "orchestrator").mkdir()
    (tmp_path / "orchestrator" / "x.py").write_text("x = 1\n")
    table = tmp_path / "named.toml"
    row = 'name = "n"\nrule = "r"\nfile = "orchestrator/x.py"\nold = "x = 1"\ntests = ["tests/test_x.py"]\n'
    table.write_text(f'[[mutant]]\n{row}new = "x ="\n')
    with pytest.raises(DoesNotApply, match="no Python"):
        changes.named(table, tmp_path)
    table.write_text(f'[[mutant]]\n{row}new = "x = 2"\n' * 2)
    with pytest.raises(DoesNotApply, match="more than one"):
        changes.named(table, tmp_path)
    table.write_text(f'[[mutant]]\n{row}new = "x = 2"\n')
    (mutant,) = changes.named(table, tmp_path)
    assert mutant.mutated == "x = 2\n"
    assert list(changes.missing_tests([mutant], tmp_path)) == ["n: tests/test_x.py is not there"]


def test_a_test_that_is_named_and_is_not_there_is_found() -> None:
    mutant = Mutant("m", "", "", "", ("tests/test_mutants.py::test_of_nothing", "tests/test_mutants.py"))
    assert list(changes.missing_tests([mutant])) == ["m: tests/test_mutants.py::test_of_nothing is not there"]
    assert list(changes.missing_tests([Mutant("m", "", "", "", ())])) == ["m: no test is named"]


# -- the handful -----------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    place = tmp_path / "copy"
    place.mkdir()
    with Bench(REPOSITORY, place) as found:
        yield found


def _handful() -> list[Mutant]:
    """Those whose tests run in one process, in an order that is another one for each state of the product."""
    sources = sorted((REPOSITORY / "orchestrator").rglob("*.py"))
    seed = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    quick = (
        "tests/core/",
        "tests/test_syncs.py",
        "tests/test_store.py",
        "tests/test_files.py",
        "tests/test_hand_edits",
    )
    chosen = [m for m in NAMED if m.tests[0].startswith(quick) and "thousand" not in m.tests[0]]
    random.Random(seed).shuffle(chosen)
    return chosen


@pytest.mark.slow
def test_a_handful_of_mutants_is_noticed_and_the_product_as_it_is_is_not(bench: Bench) -> None:
    deadline = time.monotonic() + BUDGET_SECONDS
    tried = []
    before = {path: path.read_bytes() for path in (bench.tree / "orchestrator").rglob("*.py")}
    for mutant in _handful():
        if tried and time.monotonic() > deadline:
            break
        tried.append(mutant)
        found = trial.judge(bench.try_out(mutant, mutant.tests[:1], 120.0))
        assert found.outcome == "caught", (mutant.name, found)
        assert not found.by.startswith("("), (mutant.name, found)
    assert {path: path.read_bytes() for path in before} == before
    unchanged = bench.run(sorted({mutant.tests[0] for mutant in tried}), 240.0)
    assert unchanged.code == 0, unchanged.output


@pytest.mark.slow
def test_what_a_mutant_keeps_busy_for_ever_is_ended_and_counts_as_noticed(bench: Bench) -> None:
    source = (REPOSITORY / "orchestrator/core/journal.py").read_text()
    endless = changes.replace_once(
        source, "        number += 1\n", "        while True:\n            pass\n", "endless"
    )
    mutant = Mutant("endless", "", "orchestrator/core/journal.py", endless, ("tests/core/test_journal.py",))
    mutant_of_it = trial.judge(bench.try_out(mutant, mutant.tests, 5.0))
    assert (mutant_of_it.outcome, mutant_of_it.by) == ("caught", "(took too long)")
    with subprocess.Popen([bench.python, "-c", "import signal; signal.pause()"], env={}) as left:  # as a worker is
        assert bench.run(("tests/core/test_journal.py",), 120.0).code == 0
        assert left.wait(60) == -signal.SIGKILL


def test_a_result_is_judged_by_what_the_tests_said() -> None:
    def judged(code: int | None, *failed: tuple[str, str]) -> tuple[str, str]:
        result = trial.judge(Run(code, failed, 1.0, ""))
        return result.outcome, result.by

    assert judged(0) == ("survived", "")
    assert judged(1, ("test_x", "why")) == ("caught", "test_x")
    assert judged(1) == ("caught", "(a worker was left behind)")
    assert judged(None) == ("caught", "(took too long)")
    assert judged(2) == ("caught", "(nothing runs)")
    assert judged(4)[0] == judged(5)[0] == "error", "no such test: nothing was tried"


def test_a_result_is_kept_until_the_mutant_or_its_tests_change(tmp_path: Path) -> None:
    mutant, other, path = NAMED[0], NAMED[1], tmp_path / "results"
    caught = trial.Result("caught", mutant.tests[0], "why", 1.0)
    results = trial.Results(path, fresh=False)
    results.add(mutant, mutant.tests, caught)
    results.add(other, other.tests, trial.Result("survived"))
    again = trial.Results(path, fresh=False)
    assert again.get(mutant, mutant.tests) == caught
    assert again.get(other, other.tests) == trial.Result("survived")
    assert again.get(mutant, ("tests/test_files.py",)) is None
    assert again.get(dataclasses.replace(mutant, around="another function"), mutant.tests) is None
    assert trial.Results(path, fresh=True).get(mutant, mutant.tests) is None
    path.write_text(path.read_text().replace('"state": "', '"state": "other'))  # as if the tests had changed since
    changed = trial.Results(path, fresh=False)
    assert changed.get(mutant, mutant.tests) is changed.get(other, other.tests) is None


def test_the_test_that_noticed_is_known_by_its_text(tmp_path: Path) -> None:
    def witness(text: str, name: str) -> str:
        (tmp_path / name).write_text(text)
        return changes.witness(f"{name}::test_a[x-1]", tmp_path)

    first = witness("def test_a(): assert 1\n\n\ndef test_b(): ...\n", "one.py")
    assert first == witness("import os\n\n\ndef test_a(): assert 1\n", "two.py") != ""
    assert first != witness("def test_a(): assert 2\n", "three.py")
    assert witness("def test_c(): ...\n", "four.py") == changes.witness("gone.py::test_a", tmp_path) == ""


# -- the generated ones ----------------------------------------------------------------------------------------------

_SAMPLE = '''
"""Words."""
LIMIT: int = 3

def f(a, b=True):
    """Words."""
    if a < LIMIT and not b:
        raise ValueError("words of a sentence")
    while g(a, b):
        a.x = 1
        break
    return "word" if a else f"{a}"
'''


def test_each_kind_of_small_change_is_made_and_words_are_left_alone() -> None:
    made = dict(generated.changed(_SAMPLE, "sample"))
    found = {name.rpartition(": ")[2] for name in made}
    assert found == {
        *("3 -> 4", "True -> False", "a < LIMIT -> (a <= LIMIT)", "not b -> (bool(b))"),
        "a < LIMIT and not b -> ((a < LIMIT) or (not b))",
        'raise ValueError("words of a sentence") -> pass',
        *("g(a, b) -> (not (g(a, b)))", "g(a, b) -> g(b, a)", "a.x = 1 -> pass", "1 -> 2", "break -> pass"),
        *('return "word" if a else f"{a}" -> return None', "\"word\" -> 'wordX'"),
        "\"word\" if a else f\"{a}\" -> (f'{a}' if a else 'word')",
    }
    for text in made.values():
        compile(text, "sample", "exec")
        assert '"""Words."""' in text


@pytest.mark.parametrize("module", generated.PLAN)
def test_generated_mutants_are_python_differ_and_keep_their_names_when_lines_move(module: str) -> None:
    path = REPOSITORY / "orchestrator" / f"{module}.py"
    source = path.read_text()
    made = dict(generated.changed(source, module))
    assert len(made) > 20
    moved = dict(generated.changed("\n\n" + source, module))
    assert list(moved) == list(made)
    for text in list(made.values())[::9]:  # the trial would tell of the others
        ast.parse(text)
    assert source not in made.values()
    assert len({Mutant(name, "", "", "", ()).id for name in made}) == len(made)
    for tests in generated.PLAN[module]:
        assert list(changes.missing_tests([Mutant("m", "", "", "", tests)])) == []


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_the_table_of_the_named_ones_as_it_is() -> None:
    assert page.section(page.read(), "named") == page.named_table(NAMED), (
        "write it anew: make mutants ONLY=named WRITE=1"
    )


def test_a_score_of_the_page_says_how_many_of_its_survivors_are_explained() -> None:
    text = page.read()
    said = page.explained(text)
    for module, score in page.scores(text).items():
        explained = [what for what, _ in said.values() if what.split(":")[0] == module]
        assert score.caught + score.explained == score.total
        assert len(explained) == score.explained, module


def test_no_explanation_is_of_a_mutant_that_is_no_more() -> None:
    mutants = [mutant for module in generated.PLAN for mutant in generated.generate(module)]
    assert page.of_nothing(page.explained(page.read()), mutants) == []


def test_a_survivor_that_nobody_explains_is_found_and_so_is_an_explanation_of_nothing() -> None:
    lives, other = Mutant("m: f: x -> y | z", "", "", "", ()), Mutant("m: g", "", "", "", ())
    said = page.explained(f"| mutant |\n{page.explained_row(lives, 'equivalent: both are the same')}\n")
    assert page.unexplained([lives], said) == []
    assert page.unexplained([lives, other], said) == [other]
    assert page.unexplained([lives], page.explained(page.explained_row(lives, ""))) == [lives]
    assert page.of_nothing(said, [lives, other]) == []
    assert len(page.of_nothing(said, [other])) == 1


def test_what_is_asked_for_in_vain_is_said() -> None:
    with pytest.raises(SystemExit), contextlib.redirect_stderr(None):
        trial.main(["--only", "some"])
