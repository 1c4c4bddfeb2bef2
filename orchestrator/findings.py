"""What an examination finds, and whether anybody has to do something about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """level: `ok`, `note` (it costs something, nobody has to do anything), `mend` (--fix does it) or `person`."""

    area: str
    level: str
    code: str
    what: str
    hint: str = ""
    task: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def settled(self) -> bool:
        return self.level in ("ok", "note")
