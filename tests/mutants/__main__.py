"""`make mutants`: try every change, say which were noticed, and end with 1 when one lives that nobody has explained."""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants import changes, generated, page
from mutants.bench import Bench, Run, fast_directory, place_for
from mutants.changes import REPOSITORY, Mutant, key, state_of, witness

RESULTS = REPOSITORY / ".mutants.jsonl"
#: How long the tests of one mutant may take on a machine that has other work too; longer is taken for caught.
SECONDS = {"named": 240.0, "generated": 120.0}
#: What `--all` tries on a named one that its own tests let live.
WIDE = ("tests", "-m", "not slow")
WIDE_SECONDS = 1800.0
_PASSED, _FAILED, _BROKEN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutant: `caught`, `survived` or `error` (it could not be tried); by which test, with what
    words."""

    outcome: str
    by: str = ""
    said: str = ""
    seconds: float = 0.0


class Results:
    """What is known from earlier runs, and what comes in now.

    A result holds while the changed function is the same; that a mutant was noticed, while the test that did is; that
    it lives, while none of its tests has changed.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Result, str]] = {}
        if not fresh and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._known[row["key"]] = Result(row["outcome"], row["by"], row["said"], row["seconds"]), row["state"]

    def get(self, mutant: Mutant, tests: Sequence[str]) -> Result | None:
        result, state = self._known.get(key(mutant, tests), (None, ""))
        return result if result is not None and state == _state(result, tests) else None

    def add(self, mutant: Mutant, tests: Sequence[str], result: Result) -> None:
        row = {"key": key(mutant, tests), "name": mutant.name, "state": _state(result, tests), **asdict(result)}
        with self._lock:
            self._known[str(row["key"])] = result, str(row["state"])
            with open(self._path, "a") as file:
                print(json.dumps(row), file=file)


def _state(result: Result, tests: Sequence[str]) -> str:
    return witness(result.by) if "::" in result.by else state_of(tests)


def judge(run: Run) -> Result:
    """Whether the tests noticed. A mutant with which they cannot even be collected is caught by that."""
    if run.code is None:
        return Result("caught", "(took too long)", "", run.seconds)
    if run.code == _PASSED:
        return Result("survived", seconds=run.seconds)
    if run.failed:
        return Result("caught", *run.failed[0], run.seconds)
    if run.code == _FAILED:
        return Result("caught", "(a worker was left behind)", "", run.seconds)
    if run.code in (_BROKEN, -1):
        return Result("caught", "(nothing runs)", run.output[-300:], run.seconds)
    return Result("error", "", run.output[-1500:], run.seconds)


def try_one(bench: Bench, mutant: Mutant, tests: Sequence[str], seconds: float, known: Results) -> Result:
    """Try one, if it is not known already what becomes of it."""
    found = known.get(mutant, tests)
    if found is None:
        found = judge(bench.try_out(mutant, tests, seconds))
        known.add(mutant, tests, found)
    return found


class Workshop:
    """Several copies of the tree, and the work divided among them."""

    def __init__(self, jobs: int, place: Path) -> None:
        self._benches = [Bench(REPOSITORY, place_for(number, place)) for number in range(jobs)]
        self._print = threading.Lock()

    def close(self) -> None:
        for bench in self._benches:
            bench.__exit__()

    def sound(self, lists: Iterable[Sequence[str]]) -> list[str]:
        """Run each list on the product as it is: a test that fails by itself notices nothing. What is wrong."""
        wrong: list[str] = []
        waiting: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        for tests in lists:
            waiting.put(tests)

        def work(bench: Bench) -> None:
            while not waiting.empty():
                try:
                    tests = waiting.get_nowait()
                except queue.Empty:
                    return
                run = bench.run(tests, WIDE_SECONDS, first_failure=False)
                self._say(f"unchanged: {run.seconds:6.1f} s  {' '.join(tests)[:150]}")
                if run.code != _PASSED:
                    wrong.append(f"{' '.join(tests)[:300]}\n{run.failed}\n{run.output[-1500:]}")

        self._on_all(work)
        return wrong

    def try_all(
        self, work: Sequence[tuple[Mutant, Sequence[str]]], seconds: float, known: Results
    ) -> dict[Mutant, Result]:
        """Try each on its tests."""
        found: dict[Mutant, Result] = {}
        waiting = list(reversed(work))
        taking = threading.Lock()

        def one_after_the_other(bench: Bench) -> None:
            while True:
                with taking:
                    if not waiting:
                        return
                    mutant, tests = waiting.pop()
                result = try_one(bench, mutant, tests, seconds, known)
                with taking:
                    found[mutant] = result
                    number = len(found)
                self._say(
                    f"[{number}/{len(work)}] {result.outcome:8} {result.seconds:6.1f} s  {mutant.name}"
                    + (f"\n{'':28}{result.by.removeprefix('tests/')}: {result.said}"[:220] if result.by else "")
                )

        self._on_all(one_after_the_other)
        return found

    def _on_all(self, work: object) -> None:
        assert callable(work)
        threads = [threading.Thread(target=work, args=(bench,), daemon=True) for bench in self._benches]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # so that ^C is heard

    def _say(self, text: str) -> None:
        with self._print:
            print(text, flush=True)


def run_named(shop: Workshop, known: Results, options: argparse.Namespace) -> list[str]:
    """Try the named ones. What is wrong."""
    mutants = changes.named()
    wrong = list(changes.missing_tests(mutants))
    if wrong:
        return wrong
    chosen = [m for m in mutants if options.name.casefold() in m.name.casefold()]
    tests = sorted({test for m in chosen if known.get(m, m.tests) is None for test in m.tests})
    files = sorted({test.partition("::")[0] for test in tests})
    wrong = shop.sound([[t for t in tests if t.partition("::")[0] == file] for file in files])
    if wrong:
        return ["these tests fail though nothing is changed:\n" + text for text in wrong]
    found = shop.try_all([(m, m.tests) for m in chosen], SECONDS["named"], known)
    lives = [m for m, result in found.items() if result.outcome == "survived"] if options.all else []
    found |= shop.try_all([(m, WIDE) for m in lives], WIDE_SECONDS, known)
    for mutant, result in found.items():
        if result.outcome != "caught" or result.by == "(nothing runs)":
            wrong.append(f"not caught: {mutant.name} ({mutant.rule}) {result.said}")
    print(f"named: {sum(r.outcome == 'caught' for r in found.values())} of {len(found)} caught")
    return wrong


def run_generated(shop: Workshop, known: Results, options: argparse.Namespace) -> tuple[list[str], list[page.Score]]:
    """Try the generated ones of each module. What is wrong, and the scores."""
    modules = [m for m in generated.PLAN if options.module in ("", m, m.rpartition("/")[2])]
    if not modules:
        return [f"no module {options.module!r}; there are: {', '.join(generated.PLAN)}"], []
    mutants = {module: generated.generate(module) for module in modules}
    said = page.explained(page.read())
    wrong: list[str] = []
    scores: list[page.Score] = []
    for module in modules:
        chosen = [m for m in mutants[module] if options.name.casefold() in m.name.casefold() or options.name == m.id]
        lives = _try_levels(shop, known, chosen, generated.PLAN[module], wrong)
        wrong += [f"lives, and nobody says why:\n{page.explained_row(m, '')}" for m in page.unexplained(lives, said)]
        scores.append(page.Score(module, len(chosen), len(chosen) - len(lives), len(lives)))
        print(scores[-1].row, flush=True)
    if not options.name:
        there = [m for module in modules for m in mutants[module]]
        of_these = {k: v for k, v in said.items() if v[0].split(":")[0] in modules}
        wrong += [f"explained, and there is no such mutant: {text}" for text in page.of_nothing(of_these, there)]
    return wrong, scores


def _try_levels(
    shop: Workshop, known: Results, mutants: Sequence[Mutant], levels: Sequence[Sequence[str]], wrong: list[str]
) -> list[Mutant]:
    """Try each on the first list of tests, and what that lets live on the next. Those that all of them let live."""
    lives = list(mutants)
    for tests in levels:
        if any(known.get(m, tests) is None for m in lives):
            unsound = shop.sound([tests])
            wrong += ["these tests fail though nothing is changed:\n" + text for text in unsound]
        found = shop.try_all([(m, tests) for m in lives], SECONDS["generated"], known)
        wrong += [f"could not be tried: {m.name}: {r.said}" for m, r in found.items() if r.outcome == "error"]
        lives = [m for m in lives if found[m].outcome == "survived"]
    return lives


def write_page(scores: Sequence[page.Score]) -> None:
    text = page.read()
    text = page.with_section(text, "named", page.named_table(changes.named()))
    kept = page.scores(text) | {score.module: score for score in scores}
    text = page.with_section(text, "scores", page.score_table(kept[m] for m in generated.PLAN if m in kept))
    page.PAGE.write_text(text)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--only", choices=("named", "generated", ""), default="")
    parser.add_argument("--module", default="", help="of the generated ones, those of this module")
    parser.add_argument("--name", default="", help="those whose name has this text in it")
    parser.add_argument("--all", action="store_true", help="try all tests on a named one that its own let live")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--write", action="store_true", help="write the tables of docs/mutants.md")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    options = _options(words)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.fresh:
        RESULTS.unlink(missing_ok=True)
    known = Results(RESULTS, fresh=options.fresh)
    wrong: list[str] = []
    scores: list[page.Score] = []
    with tempfile.TemporaryDirectory(prefix="orchestrator-mutants-", dir=fast_directory()) as place:
        shop = Workshop(options.jobs, Path(place))
        try:
            if options.only != "generated" and not options.module:
                wrong += run_named(shop, known, options)
            if options.only != "named":
                more, scores = run_generated(shop, known, options)
                wrong += more
        except KeyboardInterrupt:
            print("stopped; what is known is kept, and the next run goes on from there", file=sys.stderr)
            return 130
        finally:
            shop.close()
    if options.write and not options.name:
        write_page(scores)
    print(f"{time.monotonic() - began:.0f} s")
    print("\n".join(wrong) if wrong else "every mutant is caught or explained")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
