"""The report on a source tree: what is in it, and that a killed worker goes on with it.

The handle is a fake that keeps its commits in a file, as JSON, and writes down each entry into a step in a ledger.
Run as a program this file is a worker that is killed, really, at a given moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import markdown_it
import pytest

from orchestrator.errors import Damaged, UsageError
from orchestrator.skills.repo_report import STEPS, functions, inventory, languages, ledger, repo_report
from orchestrator.skills.repo_report import markdown as md


class FakeStep:
    def __init__(self, task: FakeTask) -> None:
        self.result: Any = None
        self._task = task

    def note(self, text: str) -> None:
        self._task.happens(f"note {text}")


class FakeTask:
    """Commits to `.commits` by JSON and nothing else; dies by SIGKILL when `die_at` happens."""

    def __init__(self, workspace: Path, die_at: str = "") -> None:
        self.workspace = workspace
        self._die_at = die_at
        self._redone = False
        workspace.mkdir(parents=True, exist_ok=True)

    def happens(self, what: str) -> None:
        with (self.workspace / ".ledger").open("a") as file:
            file.write(what + "\n")
        if self._die_at and what.startswith(self._die_at):
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def ledger(self) -> list[str]:
        return (self.workspace / ".ledger").read_text().splitlines()

    def commits(self) -> dict[str, Any]:
        path = self.workspace / ".commits"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _commit(self, name: str, args: list[Any], result: Any) -> None:
        self.happens(f"uncommitted {name}")
        (self.workspace / ".commits").write_text(json.dumps({**self.commits(), name: [args, result]}))
        self.happens(f"committed {name}")

    async def plan(self, names: list[str]) -> None:
        self.happens(f"plan {len(names)}")

    async def step(self, name: str, fn: Callable[..., Any], *args: Any, outputs: tuple[str, ...] = ()) -> Any:
        known = json.loads(json.dumps(list(args)))
        if self._redone and self.commits().get(name, [known])[0] != known:
            self.redo(name)  # as the worker does: other arguments in the wake of a redo reopen a step
        if name not in self.commits():
            self.happens(f"enter {name}")
            result = await asyncio.to_thread(fn, *args)
            assert all((self.workspace / output).is_file() for output in outputs)
            self._commit(name, known, result)
        committed, result = self.commits()[name]
        assert committed == known, f"{name}: other arguments than committed"
        return result

    async def todo(self, name: str) -> AsyncIterator[FakeStep]:
        if name not in self.commits():
            self.happens(f"enter {name}")
            step = FakeStep(self)
            yield step
            self._commit(name, [], step.result)

    def redo(self, *names: str) -> None:
        self._redone = True
        kept = {name: commit for name, commit in self.commits().items() if name not in names}
        (self.workspace / ".commits").write_text(json.dumps(kept))


def run(task: FakeTask, tree: Path, **args: Any) -> dict[str, Any]:
    return asyncio.run(repo_report(task, str(tree), **args))


def report_on(tree: Path, **args: Any) -> str:
    task = FakeTask(tree.parent / "workspace")
    run(task, tree, **args)
    return (task.workspace / "report.md").read_text(encoding="utf-8")


def section(report: str, title: str) -> str:
    return report.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "a.py").write_text("# TODO: be brave\n\ndef f():\n    return 1  # why\n")
    (tree / "sub" / "b.js").write_text("/* FIXME now\n */\nlet x = 'http://TODO';\n")
    (tree / "sub" / "same.txt").write_text("the same\n")
    (tree / "same.txt").write_text("the same\n")
    (tree / "data.bin").write_bytes(b"\x7fELF\0\0TODO")
    return tree


# What the report says


def test_the_report_counts_files_lines_notes_and_copies(tree: Path) -> None:
    task = FakeTask(tree.parent / "workspace")
    result = run(task, tree)
    counts = {name: result[name] for name in ("files", "lines", "todos", "duplicates")}
    assert counts == {"files": 5, "lines": 9, "todos": 2, "duplicates": 1}
    text = (task.workspace / "report.md").read_text()
    assert "holds **5 files**" in text
    assert "1 of them binary" in text
    assert "| Python     |     1 |     4 |    2 |       1 |     1 |" in text
    assert "`a.py:1`" in section(text, "Left for later")
    assert "`same.txt`<br>`sub/same.txt`" in section(text, "Duplicate files")


def test_the_same_tree_gives_the_same_bytes_in_whatever_order_the_disk_lists_it(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = os.listdir
    reports = set()
    for number, backwards in enumerate((False, True)):
        monkeypatch.setattr(os, "listdir", lambda path, back=backwards: sorted(listdir(path), reverse=back))
        task = FakeTask(tmp_path / f"workspace{number}")
        run(task, tree)
        reports.add((task.workspace / "report.md").read_bytes())
    assert len(reports) == 1
    assert b"workspace" not in reports.pop()


def test_a_list_has_at_most_top_entries_and_says_how_many_more_there_are(tree: Path) -> None:
    (tree / "many.py").write_text("".join(f"# TODO number {n}\n" for n in range(1500)))
    text = section(report_on(tree, top=3), "Left for later")
    assert text.count("| TODO ") + text.count("| FIXME") == 3
    assert "1 FIXME, 1,501 TODO." in text
    assert "… and 1,499 more notes." in text


def test_an_empty_tree_gets_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    assert "holds **0 files**" in report_on(tmp_path / "tree")


def test_a_hostile_name_breaks_no_table_and_no_report(tree: Path) -> None:
    names = [b"pipe|`tick``.py", b"line\nbreak.py", b"bad\xff.py", "turn\u202eyp.py".encode(), b"<script>.py", b" .py"]
    for name in names:
        (tree / os.fsdecode(name)).write_text("# XXX see | `here` <b>\ndef f(): pass\n")
    text = report_on(tree)
    for line in section(text, "Left for later").splitlines():
        assert not line.startswith("|") or line.replace("\\|", "").count("|") == 4
    for shown in ("```pipe\\|`tick``.py:1```", r"`line\nbreak.py:1`", r"`bad\xff.py:1`", r"`turn\u202eyp.py:1`"):
        assert shown in text
    assert r"see \| \`here\` \<b\>" in text


def test_a_table_survives_a_real_markdown_reader(tree: Path) -> None:
    reader = markdown_it.MarkdownIt("commonmark").enable("table")
    (tree / "a|b`c.py").write_text("# TODO x | y ` z\n")
    html = reader.render(section(report_on(tree), "Left for later"))
    assert "<td><code>a|b`c.py:1</code></td>\n<td>x | y ` z</td>" in html


# What is in a tree and is no source


def test_tools_directories_links_and_pipes_are_counted_and_never_entered(tree: Path) -> None:
    (tree / ".git").mkdir()
    (tree / ".git" / "config.py").write_text("# TODO no\n")
    (tree / "env").mkdir()
    (tree / "env" / "pyvenv.cfg").write_text("")
    (tree / "sub" / "loop").symlink_to(tree)
    (tree / "gone").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    text = section(report_on(tree), "Not in the numbers")
    assert "- 2 symbolic links, not followed" in text
    assert "- 1 socket, pipe or device, not opened" in text
    assert "- 2 directories of tools, not entered" in text


def test_what_cannot_be_read_is_named_with_its_reason(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, listed = os.open, os.listdir

    def refuse(path: Any, *args: Any, **more: Any) -> int:
        if str(path).endswith("a.py"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **more)

    def refuse_listing(path: Any) -> list[str]:
        if str(path).endswith("/sub"):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "listdir", refuse_listing)
    text = report_on(tree)
    assert "holds **2 files**" in text
    for name in ("`a.py`", "`sub`"):
        assert any(line.startswith(f"| {name} ") and "Permission denied" in line for line in text.splitlines())


def test_a_file_without_permission_is_unreadable() -> None:
    with tempfile.TemporaryDirectory() as tree:  # not pytest's, which nobody else may enter
        os.chmod(tree, 0o755)
        (Path(tree) / "a.py").write_text("x = 1\n")
        (Path(tree) / "a.py").chmod(0)
        me = os.geteuid()
        os.seteuid(me or 65534)  # root may read everything: for a moment we are somebody else
        try:
            found = inventory.take(tree)
        finally:
            os.seteuid(me)
    assert [row["path"] for row in found if row["kind"] == "unreadable"] == ["a.py"]


def test_a_workspace_inside_the_tree_is_not_part_of_it(tree: Path) -> None:
    task = FakeTask(tree / "workspaces" / "task-1")
    assert run(task, tree)["files"] == 5


def test_no_tree_no_report(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run(FakeTask(tmp_path / "workspace"), tmp_path / "nowhere")


@pytest.mark.parametrize(
    "out",
    ["", "..", "../x.md", "/tmp/x.md", "task.md", "Task-Retro.md", "todos.jsonl", "write the report.md", ".x", "a\nb"],
)
def test_the_report_never_takes_the_place_of_another_file(tree: Path, tmp_path: Path, out: str) -> None:
    with pytest.raises(UsageError):
        run(FakeTask(tmp_path / "workspace"), tree, out=out)


def test_the_report_replaces_a_link_and_does_not_follow_it(tree: Path, tmp_path: Path) -> None:
    task = FakeTask(tmp_path / "workspace")
    (tmp_path / "precious").write_text("precious")
    for name in ("report.md", ".report.md.tmp"):
        (task.workspace / name).symlink_to(tmp_path / "precious")
    run(task, tree)
    assert (tmp_path / "precious").read_text() == "precious"
    assert (task.workspace / "report.md").read_text().startswith("# Report on `tree`")


# Killed and resumed


@pytest.mark.parametrize("moment", ["uncommitted " + STEPS[0], "note", "enter " + STEPS[3], "uncommitted " + STEPS[-1]])
def test_a_killed_worker_goes_on_and_no_committed_step_is_entered_again(
    tree: Path, tmp_path: Path, moment: str
) -> None:
    killed = FakeTask(tmp_path / "killed")
    command = [sys.executable, __file__, str(killed.workspace), str(tree), moment]
    worker = subprocess.run(
        command, check=False, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert worker.returncode == -signal.SIGKILL
    committed = set(killed.commits())
    resumed = run(killed, tree)
    for name in STEPS:
        assert killed.ledger.count(f"committed {name}") == 1
        assert name not in committed or killed.ledger.count(f"enter {name}") == 1
    assert resumed == run(FakeTask(tmp_path / "whole"), tree)
    assert not list(killed.workspace.glob(".*.tmp"))


def test_a_finished_task_run_again_enters_nothing_and_says_the_same(tree: Path, tmp_path: Path) -> None:
    task = FakeTask(tmp_path / "workspace")
    first = run(task, tree)
    (tree / "new.py").write_text("x = 1\n")
    assert run(task, tree) == first
    assert [task.ledger.count(f"enter {name}") for name in STEPS] == [1] * len(STEPS)


def test_results_are_small_whatever_the_tree_holds(tree: Path, tmp_path: Path) -> None:
    for number in range(300):
        (tree / f"file {number}.py").write_text("def f(): pass  # TODO\n" * 9)
    task = FakeTask(tmp_path / "workspace")
    run(task, tree)
    assert all(len(json.dumps(result)) < 500 for _, result in task.commits().values())


def test_a_file_that_changed_after_the_inventory_is_named_and_not_counted(tree: Path, tmp_path: Path) -> None:
    task = FakeTask(tmp_path / "workspace")
    run(task, tree)
    (tree / "a.py").write_text("# TODO other\n" * 50)
    (tree / "same.txt").unlink()
    task.redo(*STEPS[1:])
    assert run(task, tree)["lines"] == 4
    text = section((task.workspace / "report.md").read_text(), "Not in the numbers")
    assert text.count("changed or gone") == 2


@pytest.mark.parametrize("name", ["inventory.jsonl", "todos.jsonl"])
def test_a_file_edited_by_hand_is_noticed_and_the_step_to_redo_is_named(tree: Path, tmp_path: Path, name: str) -> None:
    task = FakeTask(tmp_path / "workspace")
    run(task, tree)
    task.redo(STEPS[-1])
    (task.workspace / name).write_text((task.workspace / name).read_text().replace("a.py", "b.py"))
    with pytest.raises(Damaged, match="orchestrator redo workspace"):
        run(task, tree)


@pytest.mark.parametrize("damage", [b"", b"[1]\n", b"nonsense", b"\xff\n", b"1\n"])
def test_a_file_that_is_no_sealed_file_is_noticed_too(tree: Path, tmp_path: Path, damage: bytes) -> None:
    task = FakeTask(tmp_path / "workspace")
    run(task, tree)
    (task.workspace / "todos.jsonl").write_bytes(damage)
    with pytest.raises(Damaged):
        run(task, tree)


def test_after_the_inventory_is_redone_what_is_older_is_not_believed_but_named(tree: Path, tmp_path: Path) -> None:
    task = FakeTask(tmp_path / "workspace")
    run(task, tree)
    (tree / "new.py").write_text("x = 1\n")
    task.redo(STEPS[0])
    with pytest.raises(Damaged) as error:
        run(task, tree)
    assert [name in error.value.hint for name in STEPS] == [False, True, True, True, False, False]
    task.redo(*STEPS[1:4])
    assert run(task, tree)["files"] == 6


def test_a_skipped_step_leaves_a_section_that_says_so(tree: Path, tmp_path: Path) -> None:
    task = FakeTask(tmp_path / "workspace")
    (task.workspace / ".commits").write_text(json.dumps({STEPS[3]: [[], None]}))
    assert run(task, tree)["todos"] == 0
    text = (task.workspace / "report.md").read_text()
    assert "*Not known: the step that finds out was skipped" in section(text, "Left for later")
    assert "left for later" not in text.split("## ", 1)[0]


# The analyses by themselves


@pytest.mark.parametrize(
    "path, text, code, comment, blank",
    [
        ("a.py", "#!x\n\nx = '#'\n", 1, 1, 1),
        ("a.c", "/* one\n\n two */ int x;\n// three\n", 1, 2, 1),
        ("a.c", 'char *glob = "src/*";\nint y;\n', 2, 0, 0),
        ("a.sh", "echo ${x#y} $#\n  # yes\n", 1, 1, 0),
        ("a.lua", "--[[ long\n]] x = 1\n-- short\n", 1, 2, 0),
        ("Makefile", "all:\n\t@echo # no\n# yes", 2, 1, 0),
        ("a.html", "<p>\n<!-- a -->\n<!-- b --> <br>\n", 2, 1, 0),
        ("a.unknown", "# text\n\f\n", 1, 0, 1),
        ("empty.py", "", 0, 0, 0),
    ],
)
def test_a_line_is_code_or_comment_or_blank(path: str, text: str, code: int, comment: int, blank: int) -> None:
    (row,) = languages.count(path, text)
    assert (row["code"], row["comment"], row["blank"]) == (code, comment, blank)


def test_a_blank_line_within_a_block_comment_is_blank() -> None:
    assert [line.comment for line in languages.scan("/*\n\n*/", languages.language_of("a.c"))] == ["", None, ""]


def test_functions_are_measured_with_their_qualified_names() -> None:
    text = "class A:\n    async def f(self):\n        def g():\n            pass\n        return g\n"
    rows = functions.measure("a.py", text)
    assert {(row["name"], row["line"], row["lines"], row["guessed"]) for row in rows} == {
        ("A.f", 2, 4, False),
        ("A.f.g", 3, 2, False),
    }


@pytest.mark.parametrize("broken", ["print 'old'\n", "(" * 5000 + "\n", "x = '\0'\n", "if x:\n"])
def test_functions_of_a_file_that_does_not_parse_are_guessed(broken: str) -> None:
    text = f"def f(\n    a,\n):\n    return 1\n\ndef g(): pass\n{broken}"
    rows = functions.measure("a.py", text)
    assert [(row["name"], row["lines"], row["guessed"]) for row in rows] == [("f", 4, True), ("g", 1, True)]


def test_a_guessed_length_is_marked_in_the_report(tree: Path) -> None:
    (tree / "old.py").write_text("def old():\n    print 'old'\n")
    assert "≈ `old`" in section(report_on(tree), "Longest functions")


@pytest.mark.filterwarnings("error")
def test_an_odd_escape_in_the_source_is_no_syntax_error_and_no_warning_of_ours() -> None:
    (row,) = functions.measure("a.py", "def f():\n    return '\\d'\n")
    assert not row["guessed"]


def test_a_tag_counts_in_a_comment_only() -> None:
    assert [
        row["text"] for row in ledger.entries("a.py", "x = 'TODO no'  # TODO(me): yes\nTODO = 1\n'''\n# TODO no\n'''\n")
    ] == ["(me): yes"]
    assert [row["line"] for row in ledger.entries("a.go", "x := 1 // XXX\n/*\n * HACK here */\n")] == [1, 3]
    assert not list(ledger.entries("a.txt", "TODO: prose"))


def test_tags_of_a_file_without_tokens_are_found_by_the_mark() -> None:
    assert [row["line"] for row in ledger.entries("a.py", "x = (\n# TODO close it\n")] == [2]


def test_a_long_note_is_cut() -> None:
    (row,) = ledger.entries("a.py", "# TODO " + "word " * 100)
    assert len(row["text"]) <= ledger.TEXT_CHARACTERS
    assert row["text"].endswith("…")


def test_text_that_is_not_utf8_is_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"\xef\xbb\xbf# TODO caf\xe9\r\nx = 1\r")
    (row,) = inventory.take(str(tmp_path))
    assert inventory.read_as_listed(str(tmp_path), row) == "# TODO caf\ufffd\nx = 1\n"


def test_empty_files_are_no_copies_of_each_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    assert inventory.duplicates(inventory.take(str(tmp_path))) == []


def test_numbers_stand_to_the_right_and_wide_letters_keep_the_columns() -> None:
    lines = md.table(["Lines", "Name"], [[1234567, "表"], [1, "ab"]])
    assert lines == [
        "|     Lines | Name |",
        "| --------: | ---- |",
        "| 1,234,567 | 表   |",
        "|         1 | ab   |",
    ]


if __name__ == "__main__":
    workspace, where, moment = sys.argv[1:]
    run(FakeTask(Path(workspace), die_at=moment), Path(where))
