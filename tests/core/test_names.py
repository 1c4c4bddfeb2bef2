"""Names that must never meet, never leave their directory, and still be what the person called the thing."""

from __future__ import annotations

from datetime import UTC, datetime
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core import names
from orchestrator.core.checklist import display
from orchestrator.core.model import StepId

AT = datetime(2026, 5, 24, 21, 6, 0, tzinfo=UTC)
bounded = settings(max_examples=200, deadline=None)


@pytest.mark.parametrize(
    "number, right",
    [(1, "task-20260524-210600-001"), (999, "task-20260524-210600-999"), (1000, "task-20260524-210600-1000")],
)
def test_more_than_999_tasks_in_a_second_still_get_an_id(number: int, right: str) -> None:
    assert names.task_id(AT, number) == right
    assert names.is_task_id(right)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "task-20260524-210600-01",
        "task-20260524-210600-0001",
        "task-20260524-210600-001\n",
        "task-20260524-210600-001/..",
        "Task-20260524-210600-001",
        "task-２0260524-210600-001",
        "task-20260524-210600-001.1",
    ],
)
def test_what_only_looks_like_a_task_is_never_deleted_for_one(text: str) -> None:
    assert not names.is_task_id(text)


@pytest.mark.parametrize("generation", ["", "a1b2c3", "12"])
@pytest.mark.parametrize("attempt", [0, 1, 17])
def test_a_run_is_read_back_as_it_was_named(generation: str, attempt: int) -> None:
    task = names.task_id(AT, 1)
    assert names.parse_run(names.run_id(task, attempt, generation)) == (task, generation, attempt)


@pytest.mark.parametrize("tail", ["", ".", ".01", ".-1", ".1.", "..1", ".a.b", ".g.1.2", ".1\n", ".²", ".a b.1", ".x"])
def test_a_message_with_a_mangled_run_reaches_nobody(tail: str) -> None:
    assert names.parse_run(names.task_id(AT, 1) + tail) is None
    assert names.parse_run("task-x.1") is None


def test_steps_of_one_name_are_told_apart_by_eye() -> None:
    assert names.label(StepId("run tests"), ()) == "run tests"
    assert names.label(StepId("run tests", 2), {"run tests"}) == "run tests (2)"
    assert names.label(StepId("run", 1, "linux"), ()) == "run (linux)"
    assert names.label(StepId("run tests", 2), {"run tests (2)", "run tests (2) #2"}) == "run tests (2) #3"
    assert names.label(StepId(" a\nb "), ()) == "a b"


@given(st.text(max_size=20), st.integers(1, 3), st.one_of(st.none(), st.text(max_size=5)))
@bounded
def test_a_label_survives_being_written_into_the_checklist(name: str, n: int, key: str | None) -> None:
    label = names.label(StepId(name, n, key), ())
    assert display(label) == label
    assert names.label(StepId(name, n, key), {label}) not in ("", label)


@pytest.mark.parametrize(
    "label", ["fetch pages", "步骤1 抓取网页", "café", "👩‍👩‍👧 family", "v1.2 done", "-rf", "~", "x" * 252]
)
def test_a_name_that_every_system_can_hold_is_kept(label: str) -> None:
    assert names.file_name(label, ()) == label + ".md"


@pytest.mark.parametrize(
    "label, begins",
    [("a/b", "ab-"), ("../../etc/passwd", "etcpasswd-"), ("..", "step-"), ("???", "step-"), (".hidden", "hidden-"),
     ("end. ", "end-"), ("Task", "Task-"), ("task-retro", "task-retro-"), ("results", "results-"), ("con", "_con-"),
     ("NUL.txt", "_NUL.txt-"), ("Lpt1 .x", "_Lpt1 .x-"), ("COM¹", "_COM¹-"), ("a\0b", "ab-"), ("\udcff", "step-"),
     ("DOMAIN\\user", "DOMAINuser-"), ("C:\\PROGRA~1", "CPROGRA~1-"), ("tmux:0.1", "tmux0.1-")],
)  # fmt: skip
# fault 71
def test_a_name_that_had_to_be_changed_is_kept_apart_by_a_hash(label: str, begins: str) -> None:
    name = names.file_name(label, ())
    assert name.startswith(begins)
    assert len(name) == len(begins) + 8 + 3
    assert name == names.file_name(label, ())


# fault 65
def test_names_that_are_alike_once_cleaned_get_files_of_their_own() -> None:
    assert len({names.file_name(label, ()) for label in ("a/b", "a:b", "ab", "a?b")}) == 4
    assert names.file_name("Fetch", {"fetch.md"}) == "Fetch (2).md"
    assert names.file_name("Fetch", {"fetch.md", "fetch (2).md"}) == "Fetch (3).md"
    assert names.file_name("cafe\u0301", {"café.md"}) == "café (2).md"


# fault 67
def test_a_long_name_is_cut_between_characters() -> None:
    name = names.file_name("步" * 200, ())
    assert 250 < len(name.encode()) <= 255
    assert name.startswith("步" * 80)
    other = names.file_name("步" * 200, {name.casefold()})
    assert other != name
    assert len(other.encode()) <= 255


@given(st.text(max_size=300), st.booleans())
@bounded
def test_no_name_whatever_leads_out_of_the_workspace(label: str, again: bool) -> None:
    name = names.file_name(label, ())
    if again:
        name = names.file_name(label, {name.casefold()})
    assert len(name.encode()) <= 255
    assert name.endswith(".md")
    assert name == normalize("NFC", name)
    assert not set(name) & set('/\\:*?"<>|\0\n')
    assert not name.startswith(".")
    assert len(name) > len(".md")
    assert not name[:-3].endswith((" ", "."))
    assert name.casefold() not in ("task.md", "task-retro.md", "results.md", "con.md", "nul.md")


@pytest.mark.parametrize(
    "one, other",
    [
        ("timed out after 31.5 s", "timed out after 8 s"),
        ("<object at 0x7f3b378b42c0>", "<object at 0x7f86855e2020>"),
        ("no /tmp/pytest-of-me/a1/x.txt", "no /tmp/tmpab12cd34/x.txt"),
        ("run 3f2504e0-4f89-11d3-9a0c-0305e82c3301 lost", "run 9a0c04e0-4f89-11d3-9a0c-0305e82c3302 lost"),
        ("line 3, column 4", "line  12,\ncolumn 1"),
        ("commit deadbeef1 is gone", "commit 0123abcdef is gone"),
    ],
)
def test_the_same_failure_is_recognised_when_it_comes_again(one: str, other: str) -> None:
    assert names.error_fingerprint("runtime", "OSError", one) == names.error_fingerprint("runtime", "OSError", other)


def test_another_failure_is_not_taken_for_the_same() -> None:
    found = {
        names.error_fingerprint(*failure)
        for failure in (
            ("runtime", "OSError", "no such file: /home/me/a"),
            ("runtime", "OSError", "no such file: /home/me/b"),
            ("runtime", "OSError", "no such file: /tmp/x/b"),
            ("runtime", "ValueError", "no such file: /home/me/a"),
            ("timeout", "OSError", "no such file: /home/me/a"),
        )
    }
    assert len(found) == 5


def test_a_message_of_any_size_or_content_has_a_fingerprint() -> None:
    assert len(names.error_fingerprint("", "", "\udcff" * 3 + "a/tmp/" * 1_000_000)) == 16
