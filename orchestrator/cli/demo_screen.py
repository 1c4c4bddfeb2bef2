"""How the demonstration looks: colours, a spinner and rendered Markdown in a terminal; plain text anywhere else."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

#: Text is set no wider than this, however wide the terminal is.
_WIDTH = 96


class Working(Protocol):
    def update(self, text: str) -> None: ...


class Screen:
    """One after the other: a title, numbered chapters with the commands that do the same, and what is in them."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._out.width = min(self._out.width, _WIDTH)
        self._nice = self._out.is_terminal
        self._chapter = 0

    def title(self, text: str, about: str) -> None:
        self._out.print()
        self._out.print(
            Panel(Text(about), title=f"[bold]{text}[/]", padding=(0, 1)) if self._nice else f"{text}\n\n{about}"
        )

    def chapter(self, text: str, *commands: str) -> None:
        self._chapter += 1
        heading = f"{self._chapter}  {text}"
        self._out.print()
        self._out.print(
            Rule(Text(heading, "bold"), align="left", style="bright_black") if self._nice else f"== {heading}"
        )
        for command in commands:
            if self._nice and len(command) > self._out.width - 2:
                command = command.replace(" --arg", " \\\n    --arg")
            self._out.print(Text(f"$ {command}", "bright_black"), soft_wrap=True)

    def say(self, text: str, *, wrap: bool = True) -> None:
        self._out.print(Text(text), soft_wrap=not wrap)

    def lines(self, styled: Iterable[str]) -> None:
        """Lines that carry their colours as terminals have them."""
        for line in styled:
            self._out.print(Text.from_ansi(line))

    def file(self, text: str) -> None:
        if self._nice:
            self._out.print(
                Panel(_marked(text.rstrip("\n")), box=box.ROUNDED, border_style="bright_black", expand=False)
            )
        else:
            self._out.print(Text(textwrap.indent(text.rstrip("\n"), "    ")), soft_wrap=True)

    def markdown(self, text: str) -> None:
        self._out.print(Markdown(text) if self._nice else Text(text.rstrip("\n")), soft_wrap=not self._nice)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = Table(box=box.SIMPLE_HEAD if self._nice else None, pad_edge=False, header_style="bold")
        for name in head:
            table.add_column(name, justify="right" if name in ("Begun", "Done") else "left")
        for row in rows:
            table.add_row(*row)
        self._out.print(table)

    def checks(self, found: Iterable[tuple[bool, str]]) -> None:
        self._out.print()
        for holds, text in found:
            mark = Text("✔ ", "green") if holds else Text("✘ NOT SO: ", "bold red")
            self._out.print(mark + Text(text))

    def verdict(self, good: bool, text: str) -> None:
        said = "Nothing was lost" if good else "It did not go as promised"
        if self._nice:
            colour = "green" if good else "red"
            self._out.print(Panel(Text(text), title=f"[bold {colour}]{said}[/]", border_style=colour, padding=(0, 1)))
        else:
            self._out.print(f"\n{said}. {text}\n")

    @contextlib.contextmanager
    def working(self) -> Iterator[Working]:
        """A spinner with the last that was noted, below the lines; nothing where there is no terminal."""
        if not self._nice:
            yield _Silent()
            return
        with self._out.status("", spinner="dots") as status:
            yield _Spinner(status.update)


class _Silent:
    def update(self, text: str) -> None:
        pass


class _Spinner:
    def __init__(self, update: object) -> None:
        self._update = update

    def update(self, text: str) -> None:
        if callable(self._update):
            self._update(Text(text, "bright_black"))


def _marked(text: str) -> Text:
    """A checklist with its tags in colour."""
    shown = Text(text)
    shown.highlight_regex(r"^\[(working done|start done|end)\]", "green")
    shown.highlight_regex(r"^\[working\]", "bold cyan")
    shown.highlight_regex(r"^\[pending\]", "bright_black")
    shown.highlight_regex(r"^#.*", "bold")
    return shown
