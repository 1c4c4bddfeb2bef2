"""Which language a file is in, and which of its lines are code, comment or blank. A rule of thumb, not a parser."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from orchestrator.skills.repo_report.sealed import Row


class Language(NamedTuple):
    """How a language writes comments: to the end of the line, from and to; and its quotes, inside which none starts."""

    name: str
    line: tuple[str, ...] = ()
    block: tuple[tuple[str, str], ...] = ()
    quotes: str = ""


_C_BLOCK = (("/*", "*/"),)
_XML_BLOCK = (("<!--", "-->"),)


def _c_like(name: str, quotes: str = "\"'") -> Language:
    return Language(name, ("//",), _C_BLOCK, quotes)


def _hash(name: str, quotes: str = "\"'") -> Language:
    return Language(name, ("#",), (), quotes)


OTHER = Language("Other text")
PYTHON = _hash("Python")
_MAKE = _hash("Make", "")
_ASSEMBLER = Language("Assembler", ("#", ";", "//"), _C_BLOCK, '"')
_JAVASCRIPT = _c_like("JavaScript", "\"'`")
_TYPESCRIPT = _c_like("TypeScript", "\"'`")
_CPP = _c_like("C++")
_SHELL = _hash("Shell")
_YAML = _hash("YAML")
_FORTRAN = Language("Fortran", ("!",), (), "\"'")
_MARKDOWN = Language("Markdown", (), _XML_BLOCK)
_HTML = Language("HTML", (), _XML_BLOCK)
_RST = Language("reStructuredText")
_BATCH = Language("Batch", ("::", "REM ", "rem "))

#: What must not stand before a mark: `a#b`, `${x#y}`, `http://x` and `\%` begin no comment.
_NOT_AFTER: Mapping[str, str] = {"#": r"(?<!\S)", ";": r"(?<!\S)", "//": r"(?<!:)", "%": r"(?<!\\)"}

#: The language by the end of a file's name, in lower case.
BY_SUFFIX: Mapping[str, Language] = {
    ".py": PYTHON, ".pyi": PYTHON, ".pyw": PYTHON, ".pyx": _hash("Cython"), ".pxd": _hash("Cython"),
    ".c": _c_like("C"), ".h": _c_like("C"), ".cc": _CPP, ".cpp": _CPP, ".cxx": _CPP, ".hh": _CPP, ".hpp": _CPP,
    ".m": _c_like("Objective-C"), ".cs": _c_like("C#"), ".java": _c_like("Java"), ".kt": _c_like("Kotlin"),
    ".scala": _c_like("Scala"), ".swift": _c_like("Swift"), ".go": _c_like("Go", "\"'`"),
    ".rs": _c_like("Rust", '"'), ".dart": _c_like("Dart"), ".zig": Language("Zig", ("//",), (), '"'),
    ".js": _JAVASCRIPT, ".jsx": _JAVASCRIPT, ".mjs": _JAVASCRIPT, ".cjs": _JAVASCRIPT,
    ".ts": _TYPESCRIPT, ".tsx": _TYPESCRIPT, ".mts": _TYPESCRIPT, ".proto": _c_like("Protocol Buffers"),
    ".php": Language("PHP", ("//", "#"), _C_BLOCK, "\"'"), ".css": Language("CSS", (), _C_BLOCK, "\"'"),
    ".scss": _c_like("SCSS"), ".less": _c_like("Less"),
    ".html": _HTML, ".htm": _HTML, ".vue": _HTML, ".xml": Language("XML", (), _XML_BLOCK),
    ".svg": Language("SVG", (), _XML_BLOCK), ".md": _MARKDOWN, ".markdown": _MARKDOWN, ".rst": _RST,
    ".txt": Language("Plain text"), ".csv": Language("CSV"), ".tsv": Language("CSV"), ".json": Language("JSON"),
    ".jsonl": Language("JSON"), ".ipynb": Language("Notebook"), ".diff": Language("Patch"), ".patch": Language("Patch"),
    ".yaml": _YAML, ".yml": _YAML, ".toml": _hash("TOML"), ".ini": Language("INI", ("#", ";")),
    ".cfg": Language("INI", ("#", ";")), ".sh": _SHELL, ".bash": _SHELL, ".zsh": _SHELL, ".fish": _SHELL,
    ".csh": _SHELL, ".ps1": Language("PowerShell", ("#",), (("<#", "#>"),), "\"'"), ".bat": _BATCH, ".cmd": _BATCH,
    ".rb": _hash("Ruby"), ".pl": _hash("Perl"), ".pm": _hash("Perl"), ".r": _hash("R"), ".jl": _hash("Julia"),
    ".ex": _hash("Elixir"), ".exs": _hash("Elixir"), ".tcl": _hash("Tcl"), ".cmake": _hash("CMake"),
    ".tf": Language("Terraform", ("#", "//"), _C_BLOCK, '"'), ".mk": _MAKE, ".nix": _hash("Nix"),
    ".lua": Language("Lua", ("--",), (("--[[", "]]"),), "\"'"), ".sql": Language("SQL", ("--",), _C_BLOCK, "\"'"),
    ".hs": Language("Haskell", ("--",), (("{-", "-}"),), '"'), ".erl": Language("Erlang", ("%",), (), '"'),
    ".lisp": Language("Lisp", (";",), (), '"'), ".el": Language("Lisp", (";",), (), '"'),
    ".clj": Language("Clojure", (";",), (), '"'), ".tex": Language("TeX", ("%",)), ".asm": _ASSEMBLER, ".s": _ASSEMBLER,
    ".f": _FORTRAN, ".f90": _FORTRAN,
}  # fmt: skip

#: The language of files known by their whole name, in lower case.
BY_NAME: Mapping[str, Language] = {
    "makefile": _MAKE, "gnumakefile": _MAKE, "dockerfile": _hash("Docker"), "cmakelists.txt": _hash("CMake"),
    ".gitignore": _hash("Git settings", ""), ".gitattributes": _hash("Git settings", ""),
}  # fmt: skip


def language_of(path: str) -> Language:
    """The language of a file by its name; OTHER if the tables do not know it."""
    name = PurePosixPath(path.lower())
    return BY_NAME.get(name.name) or BY_SUFFIX.get(name.suffix) or OTHER


#: What ends the comments that have no mark of their own for it; no line holds it.
_LINE_END = "\n"


class Line(NamedTuple):
    """One line taken apart: does it hold code, and what do its comments say (without their marks)."""

    number: int
    code: bool
    comment: str | None


def lines_of(text: str) -> list[str]:
    """The lines of a text as editors number them; only a newline ends one (`str.splitlines` knows eight more ends)."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def scan(text: str, language: Language) -> Iterator[Line]:
    """Take every line apart, in order. Quotes that span lines are not followed (a `#` in a docstring is a comment)."""
    end: str | None = None
    for number, line in enumerate(lines_of(text), start=1):
        code, comment, end = _take_apart(line, language, end)
        yield Line(number, code, comment)


def _take_apart(line: str, language: Language, end: str | None) -> tuple[bool, str | None, str | None]:
    """Whether there is code in the line, its comment, and the mark that ends the block comment still open after it."""
    code, comments, rest = False, list[str](), line
    while rest.strip():
        if end is None:
            before, mark, rest = _first_mark(rest, language)
            code = code or bool(before.strip())
            end = dict(language.block).get(mark, _LINE_END) if mark else None
            comments += [""] * bool(mark)
        else:
            comment, found, rest = rest.partition(end)
            comments.append(comment.strip())
            end = None if found else end
    return code, " ".join(filter(None, comments)) if comments else None, None if end == _LINE_END else end


def _first_mark(text: str, language: Language) -> tuple[str, str, str]:
    """The text before the first mark of a comment that stands outside quotes, the mark, and the text after it."""
    pattern = _marks(language)
    for match in pattern.finditer(text) if pattern else ():
        if match.lastgroup == "mark":
            return text[: match.start()], match["mark"], text[match.end() :]
    return text, "", ""


@functools.cache
def _marks(language: Language) -> re.Pattern[str] | None:
    marks = [start for start, _ in language.block] + list(language.line)  # `--[[` before `--`
    if not marks:
        return None
    quoted = [rf"{quote}(?:\\.|[^{quote}\\])*{quote}" for quote in language.quotes]
    return re.compile("|".join([*quoted, f"(?P<mark>{'|'.join(map(_mark, marks))})"]))


def _mark(mark: str) -> str:
    return _NOT_AFTER.get(mark, "") + re.escape(mark)


def count(path: str, text: str) -> Iterable[Row]:
    """One row for a file: its language and its lines of code, comment and blank. A line with both is code."""
    language = language_of(path)
    row: Row = {"path": path, "language": language.name, "code": 0, "comment": 0, "blank": 0}
    for line in scan(text, language):
        row["code" if line.code else "blank" if line.comment is None else "comment"] += 1
    return [row]
