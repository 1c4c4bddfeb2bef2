"""The configuration: read once at a door, passed down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

#: What of the environment reaches a worker; the rest stays outside (fault 85). A name ending in * is a beginning.
ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM",
    "VIRTUAL_ENV", "PYTHON*", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH", "ORCHESTRATOR_*",
)  # fmt: skip

#: Always so in a worker: no pager, no prompt, no editor can wait for somebody (fault 59), text is UTF-8 (fault 69).
FIXED = {"PYTHONUTF8": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "PAGER": "cat"}


@dataclass(frozen=True, slots=True)
class Config:
    """`root` holds the tasks; `environment` is what workers may see of ours."""

    root: str = "workspaces"
    environment: tuple[tuple[str, str], ...] = ()


def from_environment(environ: Mapping[str, str], root: str | None = None) -> Config:
    """`root` when given, else ORCHESTRATOR_ROOT, else `workspaces`."""
    return Config(root or environ.get("ORCHESTRATOR_ROOT") or "workspaces", tuple(sorted(allowed(environ).items())))


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in environ.items() if any(_matches(name, rule) for rule in ENVIRONMENT)}
    if "PYTHONPATH" in found:  # a worker runs in a directory of its own
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, found["PYTHONPATH"].split(os.pathsep))))
    return found | FIXED


def _matches(name: str, rule: str) -> bool:
    return name.startswith(rule[:-1]) if rule.endswith("*") else name == rule
