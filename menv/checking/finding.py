"""One thing that is wrong, doubtful or worth knowing about an environment.

`menv.checking.report` makes findings, `check_env` returns them. It knows nothing of how they are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "info"]
"""error: menv refuses it, or what is learned from it is wrong. warning: it works, and a promise is
lost. info: it works, and one should know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of `check_env`; `str(finding)` is one line.

    Attributes:
        code: Stable name, such as "ME022"; `docs/checking.md` has a wrong and a right example of each.
        severity: "error", "warning" or "info".
        step: Env steps taken since the check began when it showed first, 0 in the first reset; None where
            no env step is to blame.
        message: What is wrong, with values, and what was expected.
        fix: What to do about it.
    """

    code: str
    severity: Severity
    step: int | None
    message: str
    fix: str

    def __str__(self) -> str:
        at = "" if self.step is None else f", env step {self.step}"
        return f"{self.code} {self.severity}{at}: {self.message}; {self.fix}"
