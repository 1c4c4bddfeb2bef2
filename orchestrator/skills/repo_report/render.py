"""The report: from the rows that the steps left to Markdown. Pure; the same rows give the same text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from orchestrator.skills.repo_report.inventory import SKIPPED_DIRECTORIES
from orchestrator.skills.repo_report.ledger import TAGS
from orchestrator.skills.repo_report.markdown import amount, code, number, plain, size, table
from orchestrator.skills.repo_report.sealed import Row

#: In a row instead of a finding: why a listed text file was not looked at.
MISSED = "missed"

#: So many paths of one group of duplicates are shown.
COPIES_SHOWN = 4

#: Kinds of entries that are no files of the tree: what one is called, what many are.
_NO_FILES = {
    "link": ("symbolic link, not followed", "symbolic links, not followed"),
    "special": ("socket, pipe or device, not opened", "sockets, pipes or devices, not opened"),
    "skipped": ("directory of a tool, not entered", "directories of tools, not entered"),
}

_NEVER_ENTERED = ", ".join(map(code, sorted(SKIPPED_DIRECTORIES)))

_HOW_COUNTED = f"""\
*How it was counted.* A file with a NUL byte in its first 8 KiB is binary. The language goes by the name of the file.
A line with code and a comment is code; so is a docstring, and any line with text in a language without comments.
Functions are Python's, from `def` to the last line; “≈” marks those of a file that does not parse, measured by its
indentation. Tags count in comments only. Never entered: virtual environments, {_NEVER_ENTERED}.
`.gitignore` is not read."""

_Body = Callable[[Sequence[Row], int], list[str]]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known about a tree. None stands for a step that was skipped or whose file was taken away."""

    root: str
    inventory: Sequence[Row]
    languages: Sequence[Row] | None
    functions: Sequence[Row] | None
    todos: Sequence[Row] | None
    duplicates: Sequence[Row] | None


def report(found: Findings, top: int) -> str:
    """The whole report; no list in it has more than `top` entries."""
    sections = [
        [f"# Report on {code(PurePath(found.root).name or found.root)}"],
        [_summary(found)],
        _section("Languages", found.languages, _languages, top),
        _section("Longest files", found.languages, _longest_files, top),
        _section("Longest functions", found.functions, _longest_functions, top),
        _section("Left for later", found.todos, _todos, top),
        _section("Duplicate files", found.duplicates, _duplicates, top),
        ["## Not in the numbers", "", *_not_in_the_numbers(found, top)],
        ["---", "", _HOW_COUNTED],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def seen(rows: Iterable[Row] | None) -> list[Row]:
    """The rows about files that were looked at."""
    return [row for row in rows or () if MISSED not in row]


def lines(row: Row) -> int:
    """All lines of a file, from its row of `languages.count`."""
    return int(row["code"] + row["comment"] + row["blank"])


def _section(title: str, rows: Sequence[Row] | None, body: _Body, top: int) -> list[str]:
    if rows is None:
        return [f"## {title}", "", "*Not known: the step that finds out was skipped, or its file was taken away.*"]
    return [f"## {title}", "", *body(seen(rows), top)]


def _summary(found: Findings) -> str:
    files = [row for row in found.inventory if row["kind"] in ("text", "binary")]
    binary = sum(row["kind"] == "binary" for row in files)
    total = size(sum(row["size"] for row in files))
    held = f"{code(found.root)} holds **{amount(len(files), 'file')}** ({total}, {number(binary)} of them binary)"
    return f"{held}{_summary_of_lines(seen(found.languages))}.{_summary_of_finds(found)}"


def _summary_of_lines(rows: Sequence[Row]) -> str:
    by_language = _lines_by_language(rows)
    total = sum(by_language.values())
    if not total:
        return ""
    first = min(by_language, key=lambda name: (-by_language[name], name))
    return f" with **{amount(total, 'line')}** of text, {by_language[first] / total:.0%} in {plain(first)}"


def _lines_by_language(rows: Sequence[Row]) -> Counter[str]:
    counter: Counter[str] = Counter()
    for row in rows:
        counter[row["language"]] += lines(row)
    return counter


def _summary_of_finds(found: Findings) -> str:
    todos = len(seen(found.todos))
    wasted = sum(row["wasted"] for row in seen(found.duplicates))
    parts = [f"**{amount(todos, 'note')}** left for later"] * (todos > 0)
    parts += [f"**{size(wasted)}** in second copies of files"] * (wasted > 0)
    return f" It has {' and '.join(parts)}." if parts else ""


def _languages(rows: Sequence[Row], top: int) -> list[str]:
    if not rows:
        return ["No text files."]
    order = sorted(_lines_by_language(rows).items(), key=lambda item: (-item[1], item[0]))
    body = [_language(plain(name), [row for row in rows if row["language"] == name]) for name, _ in order]
    heads = ["Language", "Files", "Lines", "Code", "Comment", "Blank"]
    return [*table(heads, [*body[:top], _language("**all**", rows)]), *_more(len(body) - top, "language")]


def _language(label: str, rows: Sequence[Row]) -> list[str | int]:
    kinds = [sum(row[kind] for row in rows) for kind in ("code", "comment", "blank")]
    return [label, len(rows), sum(kinds), *kinds]


def _longest_files(rows: Sequence[Row], top: int) -> list[str]:
    if not rows:
        return ["No text files."]
    order = sorted(rows, key=lambda row: (-lines(row), row["path"]))[:top]
    body = [[lines(row), row["code"], code(row["path"]), plain(row["language"])] for row in order]
    return table(["Lines", "Code", "File", "Language"], body)


def _longest_functions(rows: Sequence[Row], top: int) -> list[str]:
    if not rows:
        return ["No Python functions."]
    order = sorted(rows, key=lambda row: (-row["lines"], row["path"], row["line"], row["name"]))[:top]
    body = [[row["lines"], _function(row), _place(row)] for row in order]
    return [*table(["Lines", "Function", "Place"], body), "", f"Of {amount(len(rows), 'function')} in all."]


def _function(row: Row) -> str:
    return ("≈ " if row["guessed"] else "") + code(row["name"])


def _place(row: Row) -> str:
    return code(f"{row['path']}:{row['line']}")


def _todos(rows: Sequence[Row], top: int) -> list[str]:
    if not rows:
        return ["Nothing: no comment has one of the tags."]
    tags = Counter(row["tag"] for row in rows)
    counts = ", ".join(f"{number(tags[tag])} {tag}" for tag in TAGS if tags[tag])
    order = sorted(rows, key=lambda row: (TAGS.index(row["tag"]), row["path"], row["line"]))
    body = [[row["tag"], _place(row), plain(row["text"])] for row in order[:top]]
    return [f"{counts}.", "", *table(["Tag", "Place", "Text"], body), *_more(len(rows) - top, "note")]


def _duplicates(rows: Sequence[Row], top: int) -> list[str]:
    if not rows:
        return ["None."]
    body = [[len(row["paths"]), row["size"], row["wasted"], _copies(row["paths"])] for row in rows[:top]]
    return [*table(["Copies", "Bytes each", "Bytes wasted", "Files"], body), *_more(len(rows) - top, "group")]


def _copies(paths: Sequence[str]) -> str:
    shown = "<br>".join(code(path) for path in paths[:COPIES_SHOWN])
    rest = len(paths) - COPIES_SHOWN
    return f"{shown}<br>… and {number(rest)} more" if rest > 0 else shown


def _more(count: int, noun: str) -> list[str]:
    return ["", f"… and {amount(count, f'more {noun}')}."] if count > 0 else []


def _not_in_the_numbers(found: Findings, top: int) -> list[str]:
    kinds = Counter(row["kind"] for row in found.inventory)
    counts = [f"- {amount(kinds[kind], *names)}" for kind, names in _NO_FILES.items() if kinds[kind]]
    unread = [*_unreadable(found.inventory), *_missed(found)]
    body = [[code(path), plain(why)] for path, why in unread[:top]]
    parts = [counts, table(["File or directory", "Why it was not read"], body) if body else []]
    listed = "\n\n".join("\n".join(part) for part in parts if part)
    return [listed or "Nothing was left out.", *_more(len(unread) - top, "path")]


def _unreadable(inventory: Sequence[Row]) -> list[tuple[str, str]]:
    return [(row["path"], row["why"]) for row in inventory if row["kind"] == "unreadable"]


def _missed(found: Findings) -> list[tuple[str, str]]:
    """The text files that one step or several could not look at, each once for each reason."""
    rows = [row for part in (found.languages, found.functions, found.todos) for row in part or ()]
    return sorted({(row["path"], row[MISSED]) for row in rows if MISSED in row})
