"""Where findings are collected: one for each fault, with the env step at which it showed first.

Stages and probes write into it, `check_env` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable

from menv.checking.codes import CODES
from menv.checking.finding import Finding
from menv.errors import ConfigError


class Broken(Exception):  # noqa: N818 - says what the environment is
    """The environment cannot be played on.

    Attributes:
        code: What a finding about it is called.
        message: What happened.
        step: Env steps taken until then.
        fix: What to do, None for what the code says.
    """

    def __init__(self, code: str, message: str, step: int | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.step = step
        self.fix = fix


class Report:
    """Findings, each fault once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def __contains__(self, code: str) -> bool:
        return any(found == code for found, _ in self._found)

    def add(
        self, code: str, message: str, step: int | None = None, *, about: str = "", fix: str | None = None
    ) -> None:
        """Note a fault, unless it was noted before.

        Args:
            code: One of `CODES`.
            message: What is wrong, with values, and what was expected.
            step: Env steps taken so far.
            about: Tells faults of one code apart, such as the path in a space.
            fix: What to do, None for what the code says.
        """
        known = CODES[code]
        self._found.setdefault(
            (code, about), Finding(code, known.severity, step, _one_line(message), fix or known.fix)
        )

    def take(self, broken: Broken, where: str = "") -> None:
        """Note why the environment could not be played on."""
        self.add(broken.code, where + broken.message, broken.step, fix=broken.fix)

    def findings(self, ignored: Iterable[str]) -> list[Finding]:
        """Return what was found and is not ignored, by severity, env step and code."""
        silent = set(ignored)
        order = ("error", "warning", "info")
        found = [finding for finding in self._found.values() if finding.code not in silent]
        return sorted(
            found, key=lambda f: (order.index(f.severity), -1 if f.step is None else f.step, f.code)
        )


def checked_codes(codes: Iterable[str], where: str) -> frozenset[str]:
    """Return codes to be ignored.

    Raises:
        ConfigError: One of them does not exist, or they are no codes at all.
    """
    if not isinstance(codes, Iterable):
        raise ConfigError(f'{where}: {codes!r:.100}, expected codes of findings; write ("ME031",)')
    asked = frozenset((codes,) if isinstance(codes, str) else codes)
    unknown = sorted(map(str, asked.difference(CODES)))
    if unknown:
        raise ConfigError(
            f"{where}: {unknown} are no codes of findings, expected some of {min(CODES)} to {max(CODES)}; "
            "see docs/checking.md for those that exist"
        )
    return asked


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]
