"""Markdown that holds whatever text is put into it: cells, numbers and tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

#: Longer paths lose their beginning.
PATH_CHARACTERS = 120

_SPECIAL = re.compile(r"([\\`*_\[\]<>|&~#$])")


def number(value: int) -> str:
    return f"{value:,}"


def size(value: int) -> str:
    """Bytes for a reader, in powers of 1,000: `812 bytes`, `1.2 MB`."""
    if value < 1000:
        return amount(value, "byte")
    for unit, power in (("GB", 10**9), ("MB", 10**6)):
        if value >= power:
            return f"{value / power:,.1f} {unit}"
    return f"{value / 1000:,.1f} kB"


def amount(value: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 file`, `2,450 files`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def visible(text: str) -> str:
    """The text with readable escapes for all that does not print: line ends, control and bidi characters, bad bytes."""
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte of a file's name that is no UTF-8 (PEP 383)
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def code(text: str) -> str:
    """The text as a code span that is safe in a table: a fence longer than any in it, pipes escaped as GFM asks for."""
    text = visible(text)
    text = text if len(text) <= PATH_CHARACTERS else "…" + text[1 - PATH_CHARACTERS :]
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", r"\|")


def plain(text: str) -> str:
    """The text as running words: nothing in it is markup."""
    return _SPECIAL.sub(r"\\\1", visible(text))


def table(heads: Sequence[str], rows: Iterable[Sequence[str | int]]) -> list[str]:
    """The lines of a table, aligned in the source as well; numbers stand to the right, thousands marked.

    Strings are taken as finished Markdown: pass them through `code` or `plain` first.
    """
    cells = list(rows)
    columns = [_column(head, [row[index] for row in cells]) for index, head in enumerate(heads)]
    return ["| " + " | ".join(line) + " |" for line in zip(*columns, strict=True)]


def _column(head: str, values: Sequence[str | int]) -> list[str]:
    numeric = bool(values) and all(isinstance(value, int) for value in values)
    texts = [head, *(number(value) if isinstance(value, int) else value for value in values)]
    width = max(3, *map(_width, texts))
    pad = _left if numeric else _right
    head, *body = [pad(text, width) for text in texts]
    return [head, "-" * (width - 1) + ":" if numeric else "-" * width, *body]


def _left(text: str, width: int) -> str:
    return " " * (width - _width(text)) + text


def _right(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
