"""Delegated work that survives anything.

Everything public is here; what is imported is loaded when it is first used, so that a command starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.compose import Coordinator
    from orchestrator.coordinator import Handle
    from orchestrator.core.delegation import Estimate, should_delegate
    from orchestrator.core.model import Announcement, Limits
    from orchestrator.errors import (
        NotDone,
        OrchestratorError,
        StepConflict,
        StepFailed,
        StepUncertain,
    )
    from orchestrator.worker.step import Done, Step, current_step
    from orchestrator.worker.task import Task

__all__ = [
    "Announcement",
    "Coordinator",
    "Done",
    "Estimate",
    "Handle",
    "Limits",
    "NotDone",
    "OrchestratorError",
    "Step",
    "StepConflict",
    "StepFailed",
    "StepUncertain",
    "Task",
    "current_step",
    "should_delegate",
]

_PLACES = {
    "Coordinator": "compose",
    "Handle": "coordinator",
    "Estimate": "core.delegation",
    "should_delegate": "core.delegation",
    "Announcement": "core.model",
    "Limits": "core.model",
    "NotDone": "errors",
    "OrchestratorError": "errors",
    "StepConflict": "errors",
    "StepFailed": "errors",
    "StepUncertain": "errors",
    "Done": "worker.step",
    "Step": "worker.step",
    "current_step": "worker.step",
    "Task": "worker.task",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
