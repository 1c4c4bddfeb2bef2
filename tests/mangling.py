"""What crashes, editors and people make of a text: valid text, mangled; and values of no kind that was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

#: How many examples of each reader; `make crashes EXAMPLES=n` asks for more, and then for others each time.
EXAMPLES = int(os.environ.get("ORCHESTRATOR_TEST_EXAMPLES", "0"))
bounded = settings(
    max_examples=EXAMPLES or 60, derandomize=not EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
)

#: What is put anywhere into a text.
TOKENS = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n", b"\t", b" ", b"\x1b[31m", b"\xed\xa0\x80"),
    *("\u202e".encode(), "\u2028".encode(), "\x85".encode(), "e\u0301".encode(), "【完成】".encode()),
    *(
        b"[working done] a\n",
        b"[end]",
        b"[redo] a\n",
        b"- [x] a\n",
        b"```\n",
        b"\n```yaml checkpoint\n",
        b"---\n",
        b"<!--",
    ),
    *(
        b"> ",
        b"# Task: b\n",
        b"## Status: end\n",
        b": ",
        b"- ",
        b'"',
        b"'",
        b"{",
        b"}",
        b"&a ",
        b"*a ",
        b"!!python/none ",
    ),
    *(
        b"[" * 3000,
        b"{" * 3000,
        b'{"a":' * 3000,
        b"9" * 5000,
        b"1e999",
        b"-0",
        b"NaN",
        b"null",
        b"true",
        b"\\ud800",
        b"0x_",
    ),
    *(b"2026-13-45", b"0001-01-01T00:00:00+23:59", b"<<: *a\n", b"=", b"?", b"!!timestamp "),
)


class Change(NamedTuple):
    """One of CHANGES, at a share of the text, over a share of it, with one of TOKENS."""

    how: str
    at: float
    length: float
    token: bytes


def _spliced(data: bytes, at: int, end: int, _token: bytes) -> bytes:
    lines = data.split(b"\n")
    first, last = at % len(lines), end % len(lines)
    lines[first], lines[last] = lines[last], lines[first]
    return b"\n".join(lines)


CHANGES: dict[str, Callable[[bytes, int, int, bytes], bytes]] = {
    "cut off": lambda data, at, end, token: data[:at],
    "taken out": lambda data, at, end, token: data[:at] + data[end:],
    "doubled": lambda data, at, end, token: data[:end] + data[at:],
    "holed": lambda data, at, end, token: data[:at] + b"\0" * (end - at) + data[end:],
    "put in": lambda data, at, end, token: data[:at] + token + data[at:],
    "replaced": lambda data, at, end, token: data[:at] + token + data[end:],
    "lines exchanged": _spliced,
    "CR LF": lambda data, at, end, token: data.replace(b"\n", b"\r\n"),
    "UTF-16": lambda data, at, end, token: data.decode("utf-8", "replace").encode("utf-16"),
    "appended": lambda data, at, end, token: data + token,
}


def applied(data: bytes, changes: Sequence[Change]) -> bytes:
    for change in changes:
        at = int(change.at * len(data))
        end = at + int(change.length * (len(data) - at))
        data = CHANGES[change.how](data, at, end, change.token)
    return data


_SHARES = st.floats(0, 1)
_CHANGES = st.builds(Change, st.sampled_from(list(CHANGES)), _SHARES, _SHARES, st.sampled_from(TOKENS))


def mangled(*texts: bytes) -> st.SearchStrategy[bytes]:
    """One of the texts with up to four changes, or bytes of any kind."""
    changed = st.builds(applied, st.sampled_from(texts), st.lists(_CHANGES, min_size=1, max_size=4))
    return st.one_of(changed, changed, changed, st.binary(max_size=200))


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


#: A value of any kind where another was asked for.
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([10**30, -(2**63), 1e308, -1.5, "", "a", "a\0b", "\ud800", "\u202e", "done", "0", "x" * 5000]),
    st.sampled_from([[], {}, [[]], [None], ["a"], {"a": 1}, [{"step": "a"}], [{"step": 1}], {"name": {}}, _deep(150)]),
    st.text(max_size=5),
)


def wronged(entry: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The mapping with some of its keys gone, or with values of another kind."""
    keys = st.sampled_from(sorted(entry))
    return st.builds(
        lambda gone, other: {k: v for k, v in {**entry, **other}.items() if k not in gone},
        st.sets(keys, max_size=1),
        st.dictionaries(keys, VALUES, max_size=2),
    )
