"""What the authors left for later: the TODOs in comments, with the place where they stand."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator

from orchestrator.skills.repo_report.languages import PYTHON, language_of, scan
from orchestrator.skills.repo_report.sealed import Row

#: The words that open an entry, in the order of the report. In capitals only: "todo" is a word of many languages.
TAGS = ("FIXME", "TODO", "XXX", "HACK")

#: An entry's text is cut to so many characters.
TEXT_CHARACTERS = 120

_TAG = re.compile(rf"\b(?P<tag>{'|'.join(TAGS)})\b(?P<text>.*)")

#: What `tokenize` raises on a text that is no Python: an end in the middle, an indentation that fits nothing.
_NO_TOKENS = (tokenize.TokenError, SyntaxError)


def entries(path: str, text: str) -> Iterable[Row]:
    """One row per tagged comment: `line`, `tag`, and what the comment's line says after the tag."""
    if not _TAG.search(text):  # most files end here, and taking a file apart is the dear part
        return []
    return [row for line, comment in _comments(path, text) for row in _entry(path, line, comment)]


def _comments(path: str, text: str) -> list[tuple[int, str]]:
    language = language_of(path)
    if language is PYTHON:
        try:
            return list(_by_tokens(text))
        except _NO_TOKENS:
            pass  # then by the comment's mark, like any other language
    return [(line.number, line.comment) for line in scan(text, language) if line.comment]


def _by_tokens(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _entry(path: str, line: int, comment: str) -> list[Row]:
    match = _TAG.search(comment)
    return [{"path": path, "line": line, "tag": match["tag"], "text": _cut(match["text"])}] if match else []


def _cut(text: str) -> str:
    text = " ".join(text.strip(" \t:-").split())
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1].rstrip() + "…"
