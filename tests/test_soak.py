"""The soak, in short: SIGKILL at random moments loses nothing; and its checks can fail.

`make soak MINUTES=15` is the long form.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import soak_judge
import soaking
from soak_judge import Figures

SOAK = Path(__file__).with_name("soak.py")
#: What must be nothing.
FOUR = ("entered_again", "lost", "temporaries", "processes")


def start(place: Path, *words: str, **more: Any) -> subprocess.Popen[str]:
    argv = [sys.executable, str(SOAK), "--place", str(place), *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def soak(place: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    process = start(place, *words)
    out, err = process.communicate(timeout=300)
    assert not err, out + err
    return process.returncode, out, json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_whoever_is_killed_at_whatever_moment_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    code, out, figures = soak(tmp_path, "--minutes", "0.3")
    assert code == 0, out
    assert {name: figures[name] for name in FOUR} == dict.fromkeys(FOUR, 0), out
    assert figures["steps"] > figures["tasks"] > 0, out
    assert f"seed {figures['seed']}" in out
    assert not list(tmp_path.iterdir()), "what passed is not kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, figure", [("commits", "entered_again"), ("results", "lost"), ("temporaries", "temporaries")]
)
def test_a_fault_of_the_product_makes_it_red_and_what_it_met_is_kept(tmp_path: Path, fault: str, figure: str) -> None:
    code, out, figures = soak(
        tmp_path, "--minutes", "9", "--tasks", "2", "--seed", "2", "--at-once", "2", "--fault", fault
    )
    assert code == 1, out
    assert figures[figure] > 0, out
    assert re.search(r"\d+  (in|after) \w+: ", out), "where in the write order they died"
    kept = re.search(r"\(seed 2\), kept: (.*), its log: (.*)", out)
    assert kept is not None, out
    assert Path(kept[1], "task.md").is_file()
    assert Path(kept[2]).is_file()


def test_stopped_in_the_middle_it_ends_all_it_started_and_prints_what_there_was(tmp_path: Path) -> None:
    process = start(tmp_path, "--minutes", "60", "--at-once", "2", start_new_session=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    root = str(tmp_path.joinpath(first.split()[-1], "root"))

    def of_it() -> list[str]:
        return [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]) if _names(p, root)]

    started = psutil.wait_procs([], timeout=0)[0]
    while not started:
        assert process.poll() is None
        started = [line for line in of_it() if "orchestrator.worker" in line]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT, out + err
    assert not err, err
    assert set(FOUR) < set(json.loads(out.splitlines()[-1]))
    assert of_it() == []


def _names(process: psutil.Process, root: str) -> bool:
    try:
        return process.pid != os.getpid() and (
            any(root in word for word in process.cmdline()) or process.environ().get("ORCHESTRATOR_ROOT") == root
        )
    except psutil.Error:
        return False


@pytest.mark.parametrize("of", FOUR)
def test_its_exit_code_is_one_when_any_of_the_four_is_not_nothing_and_when_nothing_was_killed(of: str) -> None:
    figures = Figures(1, 1.0)
    assert figures.code == 1, "nothing was killed: it proves nothing"
    figures.kills["in commit: sync journal.jsonl"] += 1
    assert figures.code == 0
    setattr(figures, of, 1)
    assert figures.code == 1


BEGAN, RETURNED = ("began", "0 plain", "1"), ("returned", "0 plain", "x")
AGAIN = ("began", "0 plain", "2")


@pytest.mark.parametrize(
    "lines, in_order, number",
    [
        ([BEGAN, AGAIN, RETURNED], False, 0),
        ([BEGAN, RETURNED, AGAIN], False, 1),
        ([BEGAN, RETURNED, AGAIN, ("returned", "0 plain", "x"), ("began", "0 plain", "3")], False, 2),
        ([BEGAN, ("committed", "0 plain", ""), AGAIN], False, 1),
        ([BEGAN, ("gave up", "0 plain", ""), AGAIN], False, 1),
        ([BEGAN, RETURNED, ("ordered", "0 plain", ""), RETURNED, AGAIN], False, 0),
        ([BEGAN, RETURNED, ("ordered", "0 plain", ""), AGAIN, RETURNED, ("began", "0 plain", "3")], False, 1),
        ([BEGAN, ("began", "1 plain", "1"), AGAIN], True, 1),
        ([BEGAN, ("began", "1 plain", "1"), ("began", "1 plain", "2")], True, 0),
        ([("effect", "0 once", ""), ("effect", "0 once", "")], False, 1),
        ([("effect", "0 once", ""), ("ordered", "0 once", ""), ("effect", "0 once", "")], False, 0),
    ],
)
def test_a_committed_step_entered_again_is_told_by_the_log_outside_alone(
    lines: Any, in_order: bool, number: int
) -> None:
    assert len(soak_judge.entered_again(lines, in_order=in_order)) == number


def test_one_seed_draws_the_same_tasks_and_the_same_blows(tmp_path: Path) -> None:
    drawn = []
    for name in ("one", "other", "another"):
        place = tmp_path / name
        place.mkdir()
        bench = soaking.Soak(place, Figures(8 if name == "another" else 7, 1.0), at_once=1)
        lives = [soaking.Life(bench, number) for number in range(20)]
        drawn.append([(life.kind, life.script, life.begins, life.blows) for life in lives])
    assert drawn[0] == drawn[1] != drawn[2]
    forms = {form for _, script, _, _ in drawn[0] for form in script}
    assert forms >= {*soaking.PYTHON_FORMS, *soaking.SHELL_FORMS}, "every form of a step is among twenty tasks"
    assert {blow.what for *_, blows in drawn[0] for blow in blows} == {"kill", *soaking.ORDERS}
