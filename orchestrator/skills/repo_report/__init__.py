"""A worker that reads a source tree and writes a Markdown report about it, step by step.

Every step leaves one sealed file in the task's workspace (`sealed.py`) and hands on only a small reference to it, with
its sha256. So a killed worker goes on at its first unfinished step, a step that is done again changes the arguments of
the steps that stand on it, and a file that was edited by hand is noticed instead of believed.

The same tree gives the same report, byte for byte.
"""

from __future__ import annotations

from orchestrator.skills.repo_report.skill import STEPS, StepHandle, TaskHandle, repo_report

__all__ = ["STEPS", "StepHandle", "TaskHandle", "repo_report"]
