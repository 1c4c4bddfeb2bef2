"""The lines of the commit log as text: what is whole is believed, what is not is told, and no bytes are too bad."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core import journal

ENTRIES = [
    {"run": "task-20260101-000000-001.1", "seq": n, "kind": "commit", "step": f"ü {n}", "status": "done"}
    for n in (1, 2, 3)
]
LINES = [journal.encode(entry) for entry in ENTRIES]
bounded = settings(max_examples=200, deadline=None)


def test_a_line_is_json_closed_by_the_checksum_of_all_before_it() -> None:
    """Other tools may read it, with nothing but JSON and CRC-32."""
    for line, entry in zip(LINES, ENTRIES, strict=True):
        body, _, rest = line.rpartition(b',"crc":"')
        assert rest == b'%08x"}\n' % zlib.crc32(body)
        assert {**entry, "crc": rest[:8].decode()} == json.loads(line)
        assert line.isascii()


def test_what_was_written_is_read_back() -> None:
    assert [journal.decode(line[:-1]) for line in LINES] == ENTRIES
    assert journal.decode(journal.encode({"kind": "k", "run": "r"})[:-1]) == {"kind": "k", "run": "r"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_json_cannot_hold_is_refused_and_not_written_otherwise(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        journal.encode({"run": "r", "kind": "k", "result": value})


def test_a_line_with_any_byte_changed_is_not_whole() -> None:
    line = LINES[0][:-1]
    for place in range(len(line)):
        for other in (line[place] ^ 1, 0):
            assert journal.decode(line[:place] + bytes([other]) + line[place + 1 :]) is None, place
        assert journal.decode(line[:place]) is None
        assert journal.decode(line[:place] + b"0" + line[place:]) is None, place


def _closed(body: bytes) -> bytes:
    """As an entry is closed, whatever it is."""
    return b'%s,"crc":"%08x"}' % (body, zlib.crc32(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[",
        b'{"run":"r"',
        b'{"kind":"k"',
        b'["kind","run"',
        b'{"run":"r","kind":',
        b'{"kind":"\xff","run":"r"',
    ],
)
def test_what_has_its_checksum_and_is_no_entry_is_none(body: bytes) -> None:
    assert journal.decode(_closed(body)) is None


def test_a_line_as_deep_as_no_reader_can_follow_is_none() -> None:
    assert journal.decode(_closed(b'{"run":"r","kind":"k","x":' + b"[" * 100_000)) is None


def test_a_journal_cut_at_any_byte_is_its_whole_lines_and_a_torn_rest() -> None:
    whole = b"".join(LINES)
    ends = [0, *(len(b"".join(LINES[: n + 1])) for n in range(len(LINES)))]
    for cut in range(len(whole) + 1):
        sound = max(end for end in ends if end <= cut)
        found = journal.read(whole[:cut])
        assert found == journal.Reading(tuple(ENTRIES[: ends.index(sound)]), sound, cut - sound), cut


@pytest.mark.parametrize("zeros", [1, 100, 4096])
@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_zeros_behind_the_last_line_are_torn_and_no_damage(zeros: int, newline: bytes) -> None:
    """As a power cut leaves them, where a file grew and its content did not come."""
    whole = b"".join(LINES)
    found = journal.read(whole + b"\0" * zeros + newline)
    assert (found.entries, found.sound, found.torn, found.damaged) == (
        tuple(ENTRIES),
        len(whole),
        zeros + len(newline),
        (),
    )


def test_a_bad_line_with_good_ones_after_it_is_damage_and_is_left_out() -> None:
    first, second, third = LINES
    found = journal.read(first + second[:-5] + b"\n" + third)
    assert found.entries == (ENTRIES[0], ENTRIES[2])
    assert found.damaged == (2,)
    assert (found.sound, found.torn) == (len(first + second + third) - 4, 0)
    assert journal.read(b"\n" + first + b"x\n" + second + b"y\nz\n").damaged == (1, 3)


#: What lines of a kind cannot be without.
NEEDED = {
    "plan": {"steps": [{"step": "a"}]},
    "commit": {"step": "a", "status": "done"},
    "rebuilt": {"generation": "0a1b2c3d"},
}


def _lines(*lines: tuple[int, int, str]) -> bytes:
    """Lines by attempt, number and kind; a bad one for the kind `bad`."""
    said = (
        {"run": f"task-20260101-000000-001.{run}", "seq": seq, "at": f"at {seq}", "kind": k, **NEEDED.get(k, {})}
        for run, seq, k in lines
    )
    return b"".join(b"x\n" if entry["kind"] == "bad" else journal.encode(entry) for entry in said)


def _read(*lines: tuple[int, int, str]) -> list[tuple[str, int, str, bool]]:
    found = journal.read(_lines(*lines)).entries
    return [(e["run"].rpartition(".")[2], e["seq"], e["kind"], e.get("made_up", False)) for e in found]


def test_where_the_beginning_of_an_attempt_may_be_the_bad_line_it_has_begun_all_the_same() -> None:
    """Else the fence would let none of its commits count."""
    assert _read((0, 1, "created"), (1, 1, "bad"), (1, 2, "plan"), (1, 3, "commit")) == [
        *(("0", 1, "created", False), ("1", 1, "attempt", True), ("1", 2, "plan", False), ("1", 3, "commit", False)),
    ]
    (made_up,) = (e for e in journal.read(_lines((1, 1, "bad"), (1, 2, "plan"))).entries if "made_up" in e)
    assert made_up == {
        "run": "task-20260101-000000-001.1",
        "seq": 1,
        "at": "at 2",
        "kind": "attempt",
        "made_up": True,
    }


@pytest.mark.parametrize(
    "lines",
    [
        [(1, 1, "attempt"), (1, 2, "bad"), (1, 3, "commit")],
        [(1, 1, "bad"), (1, 1, "plan")],
        [(0, 1, "bad"), (0, 2, "plan")],
        [(1, 1, "bad"), (1, 2, "attempt"), (1, 3, "plan")],
        [(1, 1, "bad"), (1, 2, "created")],
        [(1, 1, "bad"), (1, 2, "rebuilt")],
        [(1, 2, "plan"), (1, 3, "commit")],
    ],
)
def test_no_beginning_is_made_up_where_none_can_be_lost(lines: list[tuple[int, int, str]]) -> None:
    assert _read(*lines) == [(str(run), seq, kind, False) for run, seq, kind in lines if kind != "bad"]


def test_a_line_that_lost_its_newline_to_the_next_is_one_bad_line() -> None:
    first, second, third = LINES
    assert journal.read(first[:-1] + second + third).damaged == (1,)


def test_an_empty_journal_says_nothing_and_is_sound() -> None:
    assert journal.read(b"") == journal.Reading((), 0, 0, ())


@bounded
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(LINES)), max_size=6))
def test_whatever_the_bytes_are_they_are_read(parts: list[bytes]) -> None:
    data = b"".join(parts)
    found = journal.read(data)
    assert 0 <= found.sound <= len(data) == found.sound + found.torn
    assert journal.read(data[: found.sound]).torn == 0
    assert all("kind" in entry and "run" in entry for entry in found.entries)
