"""Whether task.md says just what the journal does, told without parsing it: for looking at thousands of tasks. Pure."""

from __future__ import annotations

from orchestrator.core.model import StepStatus
from orchestrator.core.snapshot import Snapshot

_TAGS = {
    StepStatus.PENDING: "[pending] ",
    StepStatus.WORKING: "[working] ",
    StepStatus.UNCERTAIN: "[working] ",
    StepStatus.DONE: "[working done] ",
    StepStatus.FAILED: "[failed] ",
    StepStatus.SKIPPED: "[skipped] ",
}


def says_the_same(text: bytes, snapshot: Snapshot) -> bool:
    """True when the steps stand in the text as we write them, and no further line has a tag at its beginning.

    False says nothing: the text may lag behind, or have been edited.
    """
    lines = [_TAGS[snapshot.steps[label].status] + label for label in snapshot.order]
    block = "".join(f"\n{line}" for line in ["[start done]", *lines]) + "\n"
    return block.encode("utf-8", "replace") in text and text.count(b"\n[") - text.count(b"\n[end]") == len(lines) + 1
