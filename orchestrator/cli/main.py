"""The command line. Commands import what they need when they run: `list` must not pay for `spawn`."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, NoReturn

import click

from orchestrator import errors
from orchestrator.cli.group import cli
from orchestrator.errors import OrchestratorError


def main() -> NoReturn:
    """The console script. Every error is one line that says what and one that says what to do, with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a worker's words may hold what the terminal's encoding has not
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _call()
    except OrchestratorError as error:
        code = _fail(error.what, error.hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "orchestrator"
        code = _fail(error.format_message(), f"see: {where} --help", errors.UsageError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        from orchestrator import files

        os.dup2(files.open_log(os.devnull), 1)  # nobody reads any more: no complaint at exit either
        code = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _fail(
            f"{where}{error.strerror or error}", _HINTS.get(error.errno or 0, "nothing was lost; try again"), 74
        )
    sys.exit(code if isinstance(code, int) else 0)


def _call() -> Any:
    """Run the command. Of errors that came at once, the first that says what to do is the one to tell."""
    try:
        return cli.main(standalone_mode=False)
    except BaseExceptionGroup as group:
        first: BaseException = group.subgroup((OrchestratorError, OSError)) or group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, then: orchestrator recover",
    errno.EDQUOT: "your quota is used up: free some space, then: orchestrator recover",
    errno.EFBIG: "files may not grow so large: raise the limit (ulimit -f), then: orchestrator recover",
    errno.EROFS: "the file system is read-only: name another place with --root",
    errno.EACCES: "look at the permissions, or name another place with --root",
}


def _fail(what: str, hint: str, code: int) -> int:
    click.echo(f"orchestrator: {what}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)
    return code


if __name__ == "__main__":
    main()
