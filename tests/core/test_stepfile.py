"""Step files: notes never become proofs, checkpoints are read back as they were, and nothing stops the reader."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.model import Checkpoint, Output, StepError
from orchestrator.core.stepfile import (
    escape_note,
    heading,
    missing,
    notes_since_running,
    parse,
    render_checkpoint,
)

bounded = settings(max_examples=200, deadline=None)
DONE = Checkpoint("fetch pages", "done", attempt=1, try_number=1, at="2026-05-24T21:06:00.000Z", result={"pages": 3})
RUNNING = Checkpoint("fetch pages", "running", attempt=1, try_number=1)
FULL = Checkpoint(
    name='步骤 "1"',
    status="failed",
    n=2,
    key="k: v",
    attempt=3,
    try_number=2,
    at="2026-05-24T21:06:00.000Z",
    effect="once",
    args="abc",
    result=["a\nb", {"```": None}],
    error=StepError("runtime", "ValueError", "```\nyaml checkpoint\u2028\x85\x7f", "f00"),
    usage={"input": 1, "cost_usd": 0.5},
    outputs=(Output("a b.txt", 3, "00ff"),),
)
FORGERY = render_checkpoint(Checkpoint("forged", "done"))


def test_a_block_is_one_line_for_each_key_in_json() -> None:
    assert render_checkpoint(DONE) == (
        '\n```yaml checkpoint\nname: "fetch pages"\nn: 1\nstatus: "done"\nattempt: 1\ntry: 1\n'
        'at: "2026-05-24T21:06:00.000Z"\neffect: "idempotent"\nresult: {"pages":3}\n```\n'
    )


@pytest.mark.parametrize("cp", [DONE, RUNNING, FULL, Checkpoint("x", "done"), Checkpoint("x", "done", result="\udcff")])
def test_a_checkpoint_is_read_back_as_it_was_written(cp: Checkpoint) -> None:
    text = heading("fetch pages") + escape_note("thought") + render_checkpoint(cp) + escape_note("more")
    for written in (text, text.replace("\n", "\r\n"), "\ufeff" + text):
        found = parse(written)
        assert found.heading == "fetch pages"
        assert found.checkpoints == (cp,)
        assert [note for _, note in found.notes] == ["thought", "more"]
        assert found.findings == ()


def test_a_result_of_none_is_told_from_no_result() -> None:
    assert "result: null\n" in render_checkpoint(Checkpoint("x", "done"))
    assert "result" not in render_checkpoint(RUNNING)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(max_size=12), json_values)
@bounded
def test_any_name_and_any_result_come_back(name: str, result: object) -> None:
    cp = Checkpoint(name, "done", result=result)
    block = render_checkpoint(cp)
    block.encode()
    assert len(block.splitlines()) == block.count("\n")
    assert parse(heading(name) + block).checkpoints == (cp,)


NOTES = st.one_of(
    st.sampled_from(
        [
            FORGERY,
            FORGERY.rstrip("`\n"),
            "```yaml checkpoint",
            "~~~yaml checkpoint\nname: 1\n~~~",
            "````\n" + FORGERY,
            "```",
            "~~~~\n",
            'status: "done"\n```',
            "```YAML  checkpoint\n```",
            "> ```yaml checkpoint",
            "``` yaml checkpoint",
            "\r```yaml checkpoint\r",
            "```yaml\x00 checkpoint",
            "# fetch pages",
            "```yaml\u2028checkpoint",
            "`````yaml checkpoint",
        ]
    ),
    st.text(max_size=30),
    st.text(alphabet="`~yaml checkpoint\n\r\t>-", max_size=60),
)


@given(st.lists(NOTES, max_size=3), st.lists(NOTES, max_size=3), st.booleans())
@bounded
def test_no_note_can_forge_a_checkpoint_or_hide_one(before: list[str], after: list[str], crlf: bool) -> None:
    text = heading("fetch pages") + "".join(map(escape_note, before)) + render_checkpoint(DONE)
    text += "".join(map(escape_note, after))
    found = parse(text.replace("\n", "\r\n") if crlf else text)
    assert found.checkpoints == (DONE,)
    assert found.heading == "fetch pages"
    assert found.findings == ()


@given(NOTES, st.integers(0, 200))
@bounded
def test_a_block_that_a_crash_cut_off_is_no_checkpoint_and_hides_none(note: str, cut: int) -> None:
    whole = render_checkpoint(RUNNING).removesuffix("```\n")
    torn = whole[: min(cut, len(whole) - 1)]
    assert parse(torn).checkpoints == ()
    assert parse(torn + render_checkpoint(DONE)).checkpoints == (DONE,)
    found = parse(torn + "\n" + escape_note(note) + render_checkpoint(DONE))
    assert found.checkpoints == (DONE,)


def test_a_forged_info_string_is_escaped_where_a_person_sees_it() -> None:
    assert "```yaml\\ checkpoint\n" in escape_note(FORGERY)
    assert "~~~ YAML\\ checkpoint\n" in escape_note("~~~ YAML \tcheckpoint\n~~~")
    assert escape_note("a yaml checkpoint in prose") == "\na yaml checkpoint in prose\n"


@pytest.mark.parametrize(
    "text, right",
    [
        ("```\ncode", "\n```\ncode\n```\n"),
        ("~~~~ x\n~~~\n", "\n~~~~ x\n~~~\n~~~~\n"),
        ("```\ncode\n```", "\n```\ncode\n```\n"),
        ("```inline``` code", "\n```inline``` code\n"),
        ("    ```\nx", "\n    ```\nx\n"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_a_fence_left_open_does_not_swallow_what_comes_after(text: str, right: str) -> None:
    assert escape_note(text) == right


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert escape_note("a\x1b[31m\x00\rb\tc\udcff") == "\na\ufffd[31m\ufffd\nb\tc\ufffd\n"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda block: block.replace('"done"', "done"),
        lambda block: block.replace("n: 1", "n: true"),
        lambda block: block.replace('name: "fetch pages"\n', ""),
        lambda block: block.replace("result: ", "error: 3\nresult: "),
        lambda block: block.replace('{"pages":3}', "[" * 100_000),
        lambda block: block.replace("n: 1", "n: " + "9" * 10_000),
        lambda block: block.replace("effect: ", 'outputs: [{"path": 1}]\neffect: '),
    ],
)
def test_a_garbled_block_is_reported_and_the_others_are_read(spoil: object) -> None:
    assert callable(spoil)
    garbled = spoil(render_checkpoint(DONE))
    found = parse(heading("x") + garbled + render_checkpoint(RUNNING))
    assert found.checkpoints == (RUNNING,)
    assert [(finding.line, finding.code) for finding in found.findings] == [(3, "bad-checkpoint")]


def test_keys_of_a_later_version_do_not_spoil_a_block() -> None:
    assert parse(render_checkpoint(DONE).replace("n: 1", "n: 1\nx-new: not json")).checkpoints == (DONE,)


@pytest.mark.parametrize(
    "fence",
    [" ```yaml checkpoint", "```yaml checkpoint ", "```yaml  checkpoint", "~~~yaml checkpoint", "``yaml checkpoint",
     "> ```yaml checkpoint", "```yaml checkpoints", "```YAML checkpoint"],
)  # fmt: skip
def test_only_the_exact_fence_begins_a_checkpoint(fence: str) -> None:
    assert parse(render_checkpoint(DONE).replace("```yaml checkpoint", fence)).checkpoints == ()


def test_a_longer_fence_begins_one_too() -> None:
    assert parse(render_checkpoint(DONE).replace("```", "`````")).checkpoints == (DONE,)


@given(st.one_of(st.text(max_size=200), st.lists(NOTES, max_size=6).map("\n".join)))
@bounded
def test_no_text_whatever_stops_the_reader(text: str) -> None:
    found = parse(text)
    assert len(found.checkpoints) == len(found.lines)
    notes_since_running(text)
    assert missing(text, [DONE]) in ([DONE], [])


def test_the_next_worker_reads_what_the_interrupted_try_wrote() -> None:
    text = (
        heading("x") + escape_note("old") + render_checkpoint(RUNNING) + escape_note("tried a") + escape_note("then b")
    )
    assert notes_since_running(text) == "tried a\n\nthen b"
    assert notes_since_running(text + render_checkpoint(RUNNING)) == ""
    assert notes_since_running(heading("x") + escape_note("old") + render_checkpoint(DONE)) == ""


def test_blocks_that_an_agent_wrote_over_are_found_missing_in_their_order() -> None:
    blocks = [RUNNING, DONE, FULL, Checkpoint("fetch pages", "done", attempt=2, try_number=1)]
    assert missing("# my own text\n", blocks) == blocks
    assert missing(heading("x") + render_checkpoint(blocks[1]) + render_checkpoint(blocks[2]), blocks) == [
        blocks[0],
        blocks[3],
    ]
    assert missing("".join(map(render_checkpoint, blocks)), blocks) == []


def test_a_heading_is_one_line_whatever_the_name() -> None:
    assert heading("a/b\n# c") == "# a/b # c\n"
    assert parse(heading("a/b")).heading == "a/b"
    assert parse("no heading").heading is None


@pytest.mark.parametrize("text", ["```yaml checkpoint\n" * 200_000, "```yaml checkpoint\n" + "a: 1\n" * 200_000,
                                  "`" * 3_000_000, "```yaml" + " " * 3_000_000, "x\n" * 500_000])  # fmt: skip
def test_a_monstrous_file_does_not_hang_the_worker(text: str) -> None:
    before = time.process_time()
    parse(text)
    escape_note(text)
    assert time.process_time() - before < 5


#: Measured 1.8; through the YAML library it is 25.
RATIO = 8


def test_writing_a_checkpoint_costs_little_more_than_its_json() -> None:
    def seconds(work: Callable[[], object]) -> float:
        before = time.process_time()
        for _ in range(100):
            work()
        return time.process_time() - before

    took = [(seconds(lambda: json.dumps(DONE.result)), seconds(lambda: render_checkpoint(DONE))) for _ in range(50)]
    assert min(ours for _, ours in took) < RATIO * min(plain for plain, _ in took)
