"""What a person, an agent or a crash may do to task.md, and what must still be read from it and kept in it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.checklist import Checklist, display, new
from orchestrator.core.model import StepStatus, TaskStatus

CASES = Path(__file__).parents[1] / "cases" / "task-md"
TASK_ID = "task-20260524-210600-001"
HEAD = f"# Task: digest\n## Status: working\n## TaskID: {TASK_ID}\n\n[start done]\n"
PENDING, WORKING, DONE = StepStatus.PENDING, StepStatus.WORKING, StepStatus.DONE
bounded = settings(max_examples=200, deadline=None)


def read(text: str, known: tuple[str, ...] = ()) -> Checklist:
    return Checklist.parse(text.encode(), known)


def steps(checklist: Checklist) -> list[tuple[str, str]]:
    return [(step.name, step.status.value) for step in checklist.steps]


def codes(checklist: Checklist) -> set[str]:
    return {found.code for found in checklist.findings}


def again(checklist: Checklist) -> Checklist:
    return Checklist.parse(checklist.render())


def body(checklist: Checklist) -> str:
    """What stands behind the usual head."""
    text = checklist.render().decode()
    assert text.startswith(HEAD)
    return text.removeprefix(HEAD)


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.md")))
def test_the_case_is_read_as_agreed(case: str) -> None:
    right = json.loads((CASES / f"{case}.json").read_text(encoding="utf-8"))
    found = Checklist.parse((CASES / f"{case}.md").read_bytes()).lint_json()
    assert {key: found[key] for key in ("damaged", "ended", "resume", "steps")} == {
        key: right[key] for key in ("damaged", "ended", "resume", "steps")
    }
    assert set(found) == {"damaged", "ended", "resume", "steps", "findings"}


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.md")))
def test_the_case_is_kept_byte_for_byte_when_nothing_is_changed(case: str) -> None:
    data = (CASES / f"{case}.md").read_bytes()
    assert Checklist.parse(data).render() == data


# Reading


@pytest.mark.parametrize("data", [b"", b"\n\n", b" \t\r\n", b"\0" * 4096, b"\xef\xbb\xbf", HEAD.encode() + b"\0\0\0"])
def test_an_unreadable_file_is_never_a_task_without_steps(data: bytes) -> None:
    assert Checklist.parse(data).damaged


@pytest.mark.parametrize(
    "line, status, code",
    [
        ("[Working Done] a", "done", "tag-case"),
        ("[working  done] a", "done", "white-space"),
        ("【working】a", "working", "full-width"),
        ("［ｐending］ a", None, None),
        ("［pending］\u3000a", "pending", "full-width"),
        ("  [working] a", "working", "indent"),
        ("- [working] a", "working", "bullet"),
        ("12) [working] a", "working", "bullet"),
        ("1、【working done】a", "done", "full-width"),
        ("- [ ] a", "pending", "checkbox"),
        ("* [X] a", "done", "checkbox"),
        ("- [ ] [failed] a", "failed", "checkbox"),
        ("[working]a", "working", "white-space"),
        ("[skipped] a  ", "skipped", "white-space"),
        ("[pending] a <!-- think twice -->", "pending", "html-comment"),
        ("[pending] a <!-- one --> <!-- two -->", "pending", "html-comment"),
        ("[redo] a", "pending", None),
        ("[done] a", None, "unknown-tag"),
        ("[完成] a", None, "unknown-tag"),
        ("- [] a", None, "broken-checkbox"),
        ("- [  ] a", None, "broken-checkbox"),
        ("- [ x ] a", None, "broken-checkbox"),
        ("- [x]a", None, "broken-checkbox"),
        ("- [-] a", None, "broken-checkbox"),
        ("［✓］ a", None, "broken-checkbox"),
        ("[x] a", None, "broken-checkbox"),
        ("[ ] a", None, "broken-checkbox"),
        ("[working](https://example.org) a", None, None),
        ("[working]", None, "no-name"),
        ("> [working] a", None, None),
        ("- [x](https://example.org) a", None, None),
        ("so [working] a", None, None),
        ("<!-- [working] a -->", None, None),
    ],
)
def test_a_line_is_read_as_a_person_meant_it(line: str, status: str | None, code: str | None) -> None:
    found = read(f"{HEAD}{line}\n[working done] other\n")
    assert steps(found)[:-1] == ([] if status is None else [("a", status)])
    assert code is None or code in codes(found)


def test_a_redo_order_is_told_from_a_step_that_merely_waits() -> None:
    found = read(f"{HEAD}[redo] a\n[pending] b\n")
    assert [step.redo for step in found.steps] == [True, False]


@pytest.mark.parametrize(
    "known, right",
    [
        (("a",), [("a", "pending")]),
        (("a", "a (2)"), [("a", "done"), ("a", "pending")]),
        ((), [("a", "done"), ("a", "pending")]),
    ],
)
def test_a_redo_order_appended_by_hand_is_for_the_step_that_is_known(
    known: tuple[str, ...], right: list[tuple[str, str]]
) -> None:
    found = read(f"{HEAD}[working done] a\n[redo] a\n", known)
    assert steps(found) == right
    assert found.steps[-1].redo
    found.insert(None, "b", PENDING)
    assert steps(Checklist.parse(found.render(), known))[1:] == right
    assert Checklist.parse(found.render(), known).steps[-1].redo


def test_a_name_in_another_unicode_form_is_the_same_step() -> None:
    found = read(f"{HEAD}[working] cafe\u0301  au\u00a0lait\n[working done] café au lait\n")
    assert steps(found) == [("café au lait", "done")]
    assert "not-nfc" in codes(found)


def test_what_came_before_the_checklist_is_passed_over() -> None:
    front = read(f"---\ntags: [x]\n[working] no step\n---\n{HEAD}[working] a\n")
    assert (front.title, front.task_id, steps(front)) == ("digest", TASK_ID, [("a", "working")])
    assert "front-matter" in codes(front)


@pytest.mark.parametrize("closing", ["", "---\nrules\n[working] no step\n"])
def test_a_line_of_dashes_on_top_does_not_turn_the_task_into_notes(closing: str) -> None:
    assert steps(read(f"---\n{HEAD}[working] a\n{closing}")) == [("a", "working")]


def test_steps_behind_a_break_only_are_reported() -> None:
    found = read("# Task: x\n## Status: working\n\n---\n[working] a\n")
    assert steps(found) == []
    assert "steps-after-break" in codes(found)


def test_a_commented_block_hides_its_tags_and_an_unclosed_comment_hides_nothing() -> None:
    assert steps(read(f"{HEAD}<!--\n[working] no\n-->\n[working] a\n")) == [("a", "working")]
    assert steps(read(f"{HEAD}<!-- oh\n[working] a\n")) == [("a", "working")]


def test_a_file_that_stands_in_one_fence_is_read_with_its_headings_and_an_end_added_below() -> None:
    found = read(f"````markdown\n{HEAD}```\n[working] an example\n```\n[working done] a\n````\n[end]\n")
    assert (found.title, steps(found), found.ended) == ("digest", [("a", "done")], True)
    assert "whole-fence" in codes(found)


# fault 72
def test_two_fences_with_tags_are_examples() -> None:
    assert steps(read("# Task: x\n```\n[working] a\n```\n~~~\n[working] b\n~~~\n")) == []


@pytest.mark.parametrize(
    "lines, right",
    [
        ("[working] a|[working done] a|[working] a", [("a", "done"), ("a", "working")]),
        ("[working] a|[working] b|[working] a", [("a", "working"), ("b", "working"), ("a", "working")]),
        ("[working] a|[working] a|[working] a|[working done] a", [("a", "done")]),
        ("[working] a|[working] b|[working done] a|[working done] b", [("a", "done"), ("b", "done")]),
        ("[pending] a|[pending] b|[working] b|[working done] b", [("a", "pending"), ("b", "done")]),
        ("[pending] a|[working done] a", [("a", "done")]),
        ("[pending] a|[pending] a", [("a", "pending"), ("a", "pending")]),
        ("[working] a|[failed] a|[working] a|[working done] a", [("a", "done")]),
        ("[working] a|[skipped] a|[working] b", [("a", "skipped"), ("b", "working")]),
        ("[working done] a|[working done] a", [("a", "done"), ("a", "done")]),
        ("[working] a|[working] b|[working] a|[working done] a", [("a", "done"), ("b", "working"), ("a", "working")]),
    ],
)
def test_lines_about_one_step_are_one_step_and_no_others(lines: str, right: list[tuple[str, str]]) -> None:
    assert steps(read(HEAD + lines.replace("|", "\n") + "\n")) == right


@pytest.mark.parametrize(
    "lines, known, right",
    [
        ("[working] step 1|[working done] step 1", (), [("step 1", "done")]),
        ("[working] step 1|[working done] step 1", ("step 10",), [("step 1", "working")]),
        ("[working] a|[working done] unheard of", (), [("a", "working")]),
        ("[working] a|[working done] b", ("b",), [("a", "working"), ("b", "done")]),
        ("[working] a|[pending] last", (), [("a", "working"), ("last", "pending")]),
        ("[working] analyse|[working] ana", (), [("analyse", "working")]),
        ("[working] café|[working done] cafe", ("cafe",), [("café", "working")]),
        ("[working] a|[skipped] b", (), [("a", "working")]),
        ("[working done] a|[end]", (), [("a", "done")]),
    ],
)
def test_a_last_line_without_newline_proves_only_what_it_cannot_be_the_beginning_of(
    lines: str, known: tuple[str, ...], right: list[tuple[str, str]]
) -> None:
    assert steps(read(HEAD + lines.replace("|", "\n"), known)) == right


def test_a_line_cut_within_a_character_proves_nothing() -> None:
    whole = f"{HEAD}[working] 步骤\n[working done] 步骤".encode()
    assert steps(Checklist.parse(whole)) == [("步骤", "done")]
    for cut in (1, 2, 3, 4):
        torn = Checklist.parse(whole[:-cut])
        assert steps(torn) == [("步骤", "working")]
        torn.set_status(TaskStatus.WORKING)
        assert steps(again(torn)) == [("步骤", "working")]


def test_the_end_counts_whole_even_without_newline_and_not_by_half() -> None:
    assert read(f"{HEAD}[working done] a\n[end]").has_end
    assert not read(f"{HEAD}[working done] a\n[end").has_end


@pytest.mark.parametrize(
    "status, lines, ended, code",
    [
        ("end", "[working done] a|[end]", True, None),
        ("working", "[working done] a|[end]", True, "status-contradiction"),
        ("end", "[working] a|[end]", True, "end-with-open-steps"),
        ("working", "[working] a|[end]", False, "end-in-template"),
        ("end", "[working done] a", False, "status-contradiction"),
        ("working", "[skipped] a|[end]", True, "status-contradiction"),
        ("perhaps", "[working] a", False, "unknown-status"),
    ],
)
def test_an_end_put_there_in_advance_is_no_end(status: str, lines: str, ended: bool, code: str | None) -> None:
    found = read(HEAD.replace("working", status) + lines.replace("|", "\n") + "\n")
    assert found.ended is ended
    assert codes(found) == ({code} if code else set())


@given(st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(
    [b"[working] a", b"[working done] a", b"[end]", b"- [ ] b", b"```", b"---", b"<!--", b"-->", b"\r", b"\n", b"\xff",
     b"\0", b"# Task:", b"## Status: end", b"[", "【".encode(), b"[redo] a", b" ", b"> ", b"[start done]"]
), max_size=30).map(b"".join)), st.lists(st.text(max_size=5), max_size=3))  # fmt: skip
@bounded
def test_no_bytes_whatever_keep_a_task_from_being_listed(data: bytes, known: list[str]) -> None:
    found = Checklist.parse(data, known)
    assert found.render() == data
    assert found.resume is None or not found.steps[found.resume].status.finished
    json.dumps(found.lint_json())
    found.insert(None, "x", PENDING)
    found.set_status(TaskStatus.WORKING)
    found.set_end(True)
    found.set_end(False)
    found.mark(0, DONE)
    Checklist.parse(found.render())


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 5_000_000,
        b"- " * 2_000_000,
        b"[working] " + b"<!-- x -->" * 400_000,
        b"[working] x" + b" " * 4_000_000,
        b"[working] a\n" * 100_000,
        b"[working] a\n[working done] a\n" * 50_000,
        b"[pending] a\n" * 50_000 + b"[working] a\n" * 50_000,
        b"<!--\n" * 100_000,
        b"<!--\n-->\n" * 50_000,
        b"```\n" * 100_001,
        b"- [ ] a\n<!--\n" * 50_000,
        b"---\n" * 100_000,
    ],
    ids=lambda data: f"{data[:12]!r}x{len(data)}",
)
def test_a_monstrous_file_does_not_hang_the_list(data: bytes) -> None:
    before = time.process_time()
    Checklist.parse(data)
    assert time.process_time() - before < 5


# Writing


def test_a_fresh_task_has_nothing_to_complain_about_while_its_marks_change() -> None:
    fresh = new("weekly digest", TASK_ID, ["fetch", "分析"])
    head = HEAD.replace("digest", "weekly digest").replace("working", "start")
    assert fresh.render().decode() == head + "[pending] fetch\n[pending] 分析\n"
    for status in StepStatus:
        fresh.mark(1, status)
        assert again(fresh).findings == fresh.findings == []


def test_the_template_in_the_source_tree_is_the_one_that_is_used() -> None:
    path = Path(__file__).parents[2] / "templates" / "task.md"
    from orchestrator.core.checklist import TEMPLATE

    assert path.read_text(encoding="utf-8") == TEMPLATE


def test_a_template_of_ones_own_is_filled_once() -> None:
    template = "# Task: {name}\n## TaskID: {task_id}\n{steps}\n---\n{rules}\n"
    fresh = new("{steps} of {task_id}", TASK_ID, ["{name}"], template)
    assert fresh.title == "{steps} of {task_id}"
    assert steps(fresh) == [("{name}", "pending")]
    assert fresh.render().endswith(b"\n---\n{rules}\n")


NASTY = [
    "", "  ", "a\nb", "\r\n", " x ", "[working] x", "[end]", "---", "```", "> q", "x \\", "x <!-- y -->", "<!--", "-->",
    "x -->", "<!-->", "- [ ] x", "(x", "\u0338x", "\udc80", "\0", "\u2028", "cafe\u0301", "\ufeffx", "# Task: y",
    "a\x85b", "x <!-- a --> <!-- b -->", "]", "] [working done] x", "｛", "\u1fef\u1fef\u1fef", "<\u0338!--x-->",
]  # fmt: skip
names = st.one_of(st.sampled_from(NASTY), st.text(max_size=12))


@given(names)
@bounded
def test_a_displayed_name_is_one_line_and_its_own_display(name: str) -> None:
    shown = display(name)
    assert shown
    assert "\n" not in shown
    assert display(shown) == shown
    shown.encode()


@given(names, st.lists(names, max_size=6))
@bounded
def test_every_name_survives_being_written_and_read(title: str, given_names: list[str]) -> None:
    fresh = new(title, TASK_ID, given_names)
    read_back = again(fresh)
    assert [step.name for step in read_back.steps] == [display(name) for name in given_names]
    assert (read_back.title, read_back.task_id) == (display(title), TASK_ID)
    assert not read_back.damaged
    assert read_back.findings == []


LINES = st.sampled_from(
    ["[working] a", "- [pending] b <!-- keep -->", "[working done] a", "  [ ] note", "notes", "", "> [working] q",
     "[pending] c  ", "1. [x] d", "[end]", "---", "```", "［working］e", "caf\udcff", "[failed] f\udcff", "[working] b",
     "[end] all fine", "## Status: working", "[start done]", "[redo] g"]
)  # fmt: skip
documents = st.tuples(st.lists(LINES, max_size=14), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans()).map(
    lambda parts: (
        (b"\xef\xbb\xbf" if parts[2] else b"")
        + (parts[1].join(parts[0]) + (parts[1] if parts[3] else "")).encode("utf-8", "surrogateescape")
    )
)


def unique(checklist: Checklist) -> bool:
    return len({step.name for step in checklist.steps}) == len(checklist.steps)


def agree(checklist: Checklist) -> None:
    """The file says what memory says, line for line."""
    back = again(checklist)
    assert steps(back) == steps(checklist)
    assert [step.lines for step in back.steps] == [step.lines for step in checklist.steps]
    assert [step.redo for step in back.steps] == [step.redo for step in checklist.steps]
    assert (back.has_end, back.ended, back.resume) == (checklist.has_end, checklist.ended, checklist.resume)
    assert (back.status, back.title, back.task_id) == (checklist.status, checklist.title, checklist.task_id)


def kept(data: bytes) -> list[bytes]:
    """The lines no change may touch."""
    return sorted(line for line in data.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"").split(b"\n")
                  if line in (b"notes", b"> [working] q", b"---", b"```", b"caf\xff", b"  [ ] note"))  # fmt: skip


@given(documents, st.data())
@bounded
def test_after_every_change_the_file_says_what_memory_says_and_no_note_is_lost(
    data: bytes, draw: st.DataObject
) -> None:
    found = Checklist.parse(data)
    if found.damaged or not unique(found):
        return
    before = kept(data)
    for _ in range(4):
        what = draw.draw(st.sampled_from(["mark", "insert", "status", "end", "no end", "move"]))
        if what == "mark" and found.steps:
            index = draw.draw(st.integers(0, len(found.steps) - 1))
            found.mark(index, draw.draw(st.sampled_from(list(StepStatus))))
        elif what == "insert":
            after = draw.draw(st.one_of(st.none(), st.integers(0, len(found.steps) - 1)) if found.steps else st.none())
            index = found.insert(after, f"new {len(found.steps)}", WORKING)
            assert found.steps[index].name == f"new {len(found.steps) - 1}"
        elif what == "status":
            found.set_status(draw.draw(st.sampled_from(list(TaskStatus))))
        elif what in ("end", "no end"):
            found.set_end(what == "end")
            assert found.has_end is (what == "end")
        elif what == "move":
            found.move(draw.draw(st.permutations(range(len(found.steps)))))
        agree(found)
        assert kept(found.render()) == before


def test_a_changed_mark_changes_its_line_only_and_keeps_what_a_person_put_there() -> None:
    text = f"\ufeff{HEAD}- [working] fetch <!-- twice a day -->\n\tnotes\n\n3. [ ] report\n---\nrules\n"
    text = text.replace("\n", "\r\n")
    found = read(text)
    found.mark(0, DONE)
    found.mark(1, WORKING)
    text = text.replace("- [working] fetch", "- [working done] fetch")
    assert found.render().decode() == text.replace("3. [ ] report", "3. [working] report")


def test_bytes_that_are_no_utf8_stay_in_the_name_and_in_the_notes() -> None:
    found = Checklist.parse(HEAD.encode() + b"[working] caf\xe9\nnote \xff\n")
    assert "bad-bytes" in codes(found)
    found.mark(0, DONE)
    assert found.render() == HEAD.encode() + b"[working done] caf\xe9\nnote \xff\n"


def test_a_mark_written_last_gets_its_newline_for_without_it_it_would_not_count() -> None:
    found = read(f"{HEAD}[working] step 10\n[working] step 1")
    assert steps(found) == [("step 10", "working")]
    other = read(f"{HEAD}[working] only")
    other.mark(0, DONE)
    assert body(other) == "[working done] only\n"
    assert steps(again(other)) == [("only", "done")]


def test_a_step_in_append_style_becomes_one_line_when_it_is_marked() -> None:
    found = read(f"{HEAD}[working] a <!-- x -->\nnote\n[working done] a <!-- y -->\n[working] b\n")
    found.mark(0, WORKING)
    assert body(found) == "[working] a <!-- x --> <!-- y -->\nnote\n[working] b\n"
    agree(found)


@pytest.mark.parametrize(
    "torn, left",
    [("[working done] step 1", ""), ("[working do", ""), ("- [", ""), ("[working done] mine", "> [working done] mine"),
     ("and so", "and so"), ("[skipped] step 1 <!-- why -->", "> [skipped] step 1 <!-- why -->")],
)  # fmt: skip
def test_a_torn_line_never_becomes_a_proof_by_our_writing_and_prose_is_not_lost(torn: str, left: str) -> None:
    found = read(f"{HEAD}[working] step 1\n[working] step 10\n{torn}")
    assert steps(found) == [("step 1", "working"), ("step 10", "working")]
    found.mark(1, DONE)
    assert body(found) == f"[working] step 1\n[working done] step 10\n{left}"
    assert steps(Checklist.parse(found.render() + b"\n")) == steps(found)


def test_a_new_step_stands_before_the_notes_and_within_the_fence() -> None:
    footer = read(f"{HEAD}\n---\n[working] = a rule\n")
    footer.insert(None, "first", PENDING)
    footer.insert(0, "second", PENDING)
    assert body(footer) == "[pending] first\n[pending] second\n\n---\n[working] = a rule\n"
    fenced = read("# Task: x\n```\n[start done]\n[working] a\n```")
    fenced.insert(0, "b", WORKING)
    fenced.set_end(True)
    assert fenced.render() == b"# Task: x\n```\n[start done]\n[working] a\n[working] b\n[end]\n```"


def test_a_new_step_finds_a_sensible_place_without_a_start_line() -> None:
    found = read(f"# Task: x\n## TaskID: {TASK_ID}\n\nsome prose\n")
    found.insert(None, "a", PENDING)
    assert found.render().decode() == f"# Task: x\n## TaskID: {TASK_ID}\n\n[pending] a\nsome prose\n"


def test_a_line_that_becomes_the_last_one_keeps_its_newline_and_so_its_proof() -> None:
    found = read(f"{HEAD}[working done] a\n[end]")
    found.set_end(False)
    assert body(found) == "[working done] a\n"
    agree(found)


def test_the_end_stands_behind_the_last_step_and_leaves_again_without_a_trace() -> None:
    text = f"{HEAD}[working done] a\nnotes of the agent\n\n---\nrules"
    found = read(text)
    found.set_end(True)
    assert body(found) == "[working done] a\n[end]\nnotes of the agent\n\n---\nrules"
    found.insert(0, "b", PENDING)
    assert body(found) == "[working done] a\n[pending] b\n[end]\nnotes of the agent\n\n---\nrules"
    again_found = read(text)
    again_found.set_end(True)
    again_found.set_end(False)
    assert again_found.render().decode() == text


def test_words_behind_an_end_are_kept_when_the_task_is_opened_again() -> None:
    found = read(f"{HEAD}[working done] a\n[end] 任务完成\n")
    assert found.ended
    found.set_end(False)
    assert body(found) == "[working done] a\n任务完成\n"


def test_a_missing_status_is_added_where_it_belongs() -> None:
    found = read(f"# Task: x\n## TaskID: {TASK_ID}\n[start done]\n")
    found.set_status(TaskStatus.END)
    assert found.render().decode() == f"# Task: x\n## Status: end\n## TaskID: {TASK_ID}\n[start done]\n"


def test_steps_change_places_and_notes_stay() -> None:
    found = read(f"{HEAD}[working done] a\nnote\n- [working] b\n[pending] c")
    found.move([2, 0, 1])
    assert body(found) == "[pending] c\nnote\n[working done] a\n- [working] b\n"
    agree(found)
    with pytest.raises(ValueError):
        found.move([0, 0, 1])


#: A mark copies the text, which is ten times as long, and touches one line: measured 2.4. With all lines read it is 10.
RATIO = 7


def test_a_mark_in_a_thousand_steps_costs_no_more_than_its_line() -> None:
    few, many = (new("big", TASK_ID, [f"step {number}" for number in range(count)]) for count in (100, 1000))
    for found in (few, many):
        found.mark(0, DONE)
    took = [[_seconds(found, index % 100) for found in (few, many)] for index in range(1000)]
    assert min(long for _, long in took) < RATIO * min(short for short, _ in took)


def _seconds(found: Checklist, index: int) -> float:
    before = time.process_time()
    found.mark(index, DONE)
    found.render()
    return time.process_time() - before
