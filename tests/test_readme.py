"""What README.md and docs/ say comes true: snippets are run as a reader would run them, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.core import stepfile
from orchestrator.core.checklist import Checklist

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("python", "skills", "protocol", "isolation", "errors", "faults", "durability")),
)
RUN = ("README.md", "docs/python.md", "docs/skills.md")

_FENCE = re.compile(r"^(?P<marks>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=marks)$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w-]+\.(?:py|yaml))`")
_TASK_ID = re.compile(r"task-\d{8}-\d{6}-\d{3}")
_SECONDS = re.compile(r"\d+(\.\d+)? s\b")


@dataclass(frozen=True)
class Snippet:
    """A fenced block. `file` is the last file named in the paragraph before it, "" where there is none."""

    language: str
    text: str
    file: str = field(default="")


def snippets(page: str) -> list[Snippet]:
    text = (REPOSITORY / page).read_text("utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()].rstrip("\n").rpartition("\n\n")[2]
        named = _FILE.findall(before)
        found.append(Snippet(match["language"], match["text"], named[-1] if named else ""))
    return found


class Reader:
    """Somebody who saves and types what the page says, in one directory and one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.task = ""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {k: v for k, v in os.environ.items() if k != "ORCHESTRATOR_ROOT"} | {"PATH": path}

    def saves(self, snippet: Snippet) -> None:
        assert snippet.file, f"the page does not say what to call this:\n{snippet.text}"
        (self.directory / snippet.file).write_text(snippet.text, "utf-8")

    def types(self, session: str) -> None:
        """Run each `$ ` line of a session and compare what comes out with the lines below it."""
        for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            self._compare(command, self._run(command), expected.splitlines())

    def _run(self, command: str) -> str:
        ended = subprocess.run(
            command.replace("TASK", self.task),
            shell=True,
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}"
        ids = _TASK_ID.findall(ended.stdout)
        self.task = ids[-1] if ids else self.task
        return ended.stdout

    def _compare(self, command: str, said: str, expected: list[str]) -> None:
        """Each expected line comes, in this order. A page leaves out what depends on the moment: steps that begin."""
        lines = iter(said.splitlines())
        for line in expected:
            pattern = re.compile(_pattern(line))
            assert any(pattern.fullmatch(found) for found in lines), f"{command}\ndoes not say: {line}\nbut:\n{said}"


def _pattern(line: str) -> str:
    """The line as a pattern: `…` is anything, TASK an id (or the heading of a column), times are any time or none."""
    text = re.escape(_SECONDS.sub("SECONDS", line))
    text = text.replace("SECONDS", _SECONDS.pattern).replace("…", ".*").replace("TASK", r"(task-[\d-]+|TASK *)")
    return text + rf"(  {_SECONDS.pattern})?"


@pytest.mark.parametrize("page", RUN)
def test_every_snippet_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    typed = ""
    for snippet in snippets(page):
        if snippet.language in ("python", "yaml"):
            reader.saves(snippet)
        elif snippet.language == "console":
            typed += snippet.text
            reader.types(snippet.text)
        else:
            assert snippet.language == "markdown", f"nobody runs a {snippet.language!r} snippet:\n{snippet.text}"
    unused = [s.file for s in snippets(page) if s.language in ("python", "yaml") and s.file not in typed]
    assert all(any(name in s.text or f"from {name[:-3]} " in s.text for s in snippets(page)) for name in unused), unused
    assert "$ orchestrator" in typed


def test_a_snippet_that_promises_something_else_is_found(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.types("$ printf 'one (0.2 s)\\ntwo\\nthree\\n'\none (7.5 s)\n…ree\n")
    for promised in ("four", "two\none", "on", "one (7.5 m)"):
        with pytest.raises(AssertionError, match="does not say"):
            reader.types(f"$ printf 'one (0.2 s)\\ntwo\\nthree\\n'\n{promised}\n")
    with pytest.raises(AssertionError):
        reader.types("$ exit 3\n")


def test_the_examples_are_the_ones_of_the_readme() -> None:
    shown = {s.file: s.text for s in snippets("README.md") if s.language in ("python", "yaml")}
    assert sorted(shown) == sorted(path.name for path in (REPOSITORY / "examples").iterdir() if path.is_file())
    for name, text in shown.items():
        assert (REPOSITORY / "examples" / name).read_text("utf-8") == text, name


def test_the_files_shown_are_files_as_the_program_reads_and_writes_them() -> None:
    checklist, step = (s.text for s in snippets("README.md") if s.language == "markdown")
    face = Checklist.parse(checklist.encode())
    assert face.findings == []
    assert [(s.name, s.status.value) for s in face.steps] == [
        ("greet Ada", "done"),
        ("greet Linus", "working"),
        ("write the card", "pending"),
    ]
    read = stepfile.parse(step)
    assert read.findings == ()
    assert [c.status for c in read.checkpoints] == ["running", "done"]
    assert [note for _, note in read.notes] == ["Ada likes to be greeted by name."]
    written = stepfile.heading("greet Ada") + stepfile.render_checkpoint(read.checkpoints[0])
    assert step.startswith(written)


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_every_make_target_named_is_there(page: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make ([a-z]+)", (REPOSITORY / page).read_text("utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"


def test_every_make_target_is_in_the_readmes_table() -> None:
    there = re.findall(r"^([a-z]+):.* ## ", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE)
    shown = re.findall(r"^\| `make ([a-z]+)", (REPOSITORY / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted({*there} - {"help"})


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_every_relative_link_leads_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (REPOSITORY / page).read_text("utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        assert target.exists(), f"{page}: {link}"
        headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings
        ], link


def test_every_command_of_the_program_is_in_the_readmes_table() -> None:
    from orchestrator.cli.group import ROOMS

    there = sorted(name for _, names in ROOMS.values() for name in names)
    shown = re.findall(r"^\| `([a-z]+)[^|]*\|", (REPOSITORY / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(set(shown) & set(there)) == there
