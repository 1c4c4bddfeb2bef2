"""The demonstration, as a reader would run it, on a tree that is small enough for a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator import store


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Some Python, and two files that are the same."""
    tree = tmp_path / "a small tree"
    for number in range(30):
        path = tree / f"part{number % 3}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def f{number % 29}():\n    return 1  # TODO: think\n" * 20, "utf-8")
    return tree


def demo(*words: str | Path, root: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "orchestrator.cli.main", "--root", root, "demo", *words]
    return subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, encoding="utf-8", timeout=120, check=False
    )


def test_the_demo_kills_a_worker_in_a_step_and_shows_that_nothing_was_lost(tree: Path, root: Path) -> None:
    shown = demo("--keep", "--path", tree, root=root)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stderr == ""
    (task_id,) = store.task_ids(str(root))
    killed = int(re.search(r"\$ kill -KILL (\d+)", shown.stdout)[1])  # type: ignore[index]
    assert not psutil.pid_exists(killed)
    for line in (
        f"{task_id}, worker process {killed}",
        f"$ orchestrator recover {task_id}",
        "announced: completed: 6 of 6 steps done",
        "# Report on `a small tree`",
        "# Retrospect: report on a small tree",
        "✔ no finished step was begun again",
        "✔ every step was committed exactly once",
        "Nothing was lost.",
    ):
        assert line in shown.stdout
    assert re.search(r"^ *\[working done\] take the inventory$", shown.stdout, re.MULTILINE)
    assert re.search(r"^ *\[working\] ", shown.stdout, re.MULTILINE)
    assert "NOT SO" not in shown.stdout
    assert "\x1b" not in shown.stdout, "colours belong in a terminal"


def test_what_the_demo_says_of_the_journal_is_so(tree: Path, root: Path) -> None:
    """The same told from the journal itself, not by the demo."""
    assert demo("--keep", "--path", tree, root=root).returncode == 0
    (task_id,) = store.task_ids(str(root))
    entries = store.read_journal(store.paths(str(root), task_id)).entries
    begun = [entry["step"] for entry in entries if entry["kind"] == "running"]
    done = [entry["step"] for entry in entries if entry["kind"] == "commit"]
    assert [entry["kind"] for entry in entries].count("attempt") == 2
    assert len(done) == len(set(done)) == 6
    assert len(begun) == 7
    died_at = next(i for i, entry in enumerate(entries) if entry["kind"] == "closed")
    before = {entry["step"] for entry in entries[:died_at] if entry["kind"] == "commit"}
    after = {entry["step"] for entry in entries[died_at:] if entry["kind"] == "running"}
    assert len(before) >= 2
    assert not before & after


def test_a_path_that_is_no_directory_is_refused_before_anything_is_made(tmp_path: Path, root: Path) -> None:
    shown = demo("--keep", "--path", tmp_path / "nothing", root=root)
    assert shown.returncode == 64
    assert "is no directory" in shown.stderr
    assert store.task_ids(str(root)) == []
