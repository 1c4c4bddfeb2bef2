"""Every exception raised on purpose. Each says what happened, what to do, and with which exit code a door leaves.

Exit codes follow sysexits.h, so that a shell script can tell a typing error from a full disk.
"""

from __future__ import annotations


class OrchestratorError(Exception):
    """Base of all errors of this package: one line `what`, one line `hint`, an `exit_code`.

    Only doors turn it into text.
    """

    exit_code = 70  # EX_SOFTWARE

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  {self.hint}" if self.hint else self.what


class UsageError(OrchestratorError):
    """The call's words are wrong: an argument that is none, two that exclude each other."""

    exit_code = 64  # EX_USAGE


class BadSpec(OrchestratorError):
    """What to run cannot be understood; the message names file, line and key where there is one."""

    exit_code = 65  # EX_DATAERR


class Damaged(OrchestratorError):
    """A file of a task cannot be read and nothing is left to rebuild it from."""

    exit_code = 65  # EX_DATAERR


class TaskNotFound(OrchestratorError):
    """No task of exactly this id under this root."""

    exit_code = 66  # EX_NOINPUT


class UnknownSkill(OrchestratorError):
    """The worker named is neither an importable function, nor a skill's name, nor a steps file."""

    exit_code = 66  # EX_NOINPUT


class Exhausted(OrchestratorError):
    """This process, or the machine, may open no further file: it says nothing of the file, and nothing was changed.

    The one OSError that is told apart: whoever asks for a file expects it to be gone, closed or bad, and knows what
    that means for the task; this must never be taken for one of them.
    """

    exit_code = 71  # EX_OSERR


class RootUnusable(OrchestratorError):
    """The root cannot be created, read or written."""

    exit_code = 73  # EX_CANTCREAT


class SyncFailed(OrchestratorError):
    """A sync failed, or followed one that did: nothing written since is known to be on the disk."""

    exit_code = 74  # EX_IOERR


class Held(OrchestratorError):
    """Somebody else holds the task's lock."""

    exit_code = 75  # EX_TEMPFAIL


class WaitTimeout(OrchestratorError):
    """The time given to wait passed before the task ended; the task goes on."""

    exit_code = 75  # EX_TEMPFAIL


class Refused(OrchestratorError):
    """An order that makes no sense in the state the task is in; nothing was changed."""

    exit_code = 65  # EX_DATAERR


class NotRunning(OrchestratorError):
    """Nobody works on the task that is waited for."""

    exit_code = 75  # EX_TEMPFAIL


class Unkillable(OrchestratorError):
    """Processes of a worker are still alive after SIGKILL; its task is not started again."""

    exit_code = 75  # EX_TEMPFAIL


class TransitionError(OrchestratorError):
    """A change of status that the table does not allow; nothing was changed."""

    exit_code = 65  # EX_DATAERR


class StepFailed(OrchestratorError):
    """A step failed for good. Raised by `task.step`, and again on every replay until a person retries it.

    `step` is its label, `error_class` one of the classes of `core.model.ErrorClass`.
    """

    exit_code = 1

    def __init__(self, step: str, what: str, error_class: str = "runtime") -> None:
        super().__init__(f"step {step!r} failed: {what}")
        self.step = step
        self.error_class = error_class


class StepConflict(OrchestratorError):
    """A finished step is asked for with other arguments than those it was committed with."""

    exit_code = 65  # EX_DATAERR


class StepUncertain(OrchestratorError):
    """A `once` step was cut off and nobody knows whether its effect took place: a person decides."""

    exit_code = 75  # EX_TEMPFAIL


class TooManyChildren(OrchestratorError):
    """A task may spawn no further sub-task: too many, or too deep."""

    exit_code = 65  # EX_DATAERR


class NotDone(Exception):  # noqa: N818 - a skill says it, it is no error of ours
    """Raise this in a `once` step to say: the effect did certainly not take place, another try is safe."""
