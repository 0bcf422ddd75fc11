"""What came out of comparing back-ends, for programs and for people.

`menv.verify.verify` makes it; `python -m menv.verify` prints its lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from menv.verify.difference import Difference


@dataclass(frozen=True, slots=True)
class Finding:
    """A back-end in which an environment lives other lives than in the first one.

    Attributes:
        backend: Its name.
        first: The first row that differs; the first of its two values is that of the first back-end.
        suspects: What to look for; "" where what an earlier back-end showed says it all.
    """

    backend: str
    first: Difference
    suspects: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared, and what differs.

    Attributes:
        env: What the environment is called.
        num_envs: E.
        env_steps: Of all sub-environments together.
        seed: Of resets, draws and weights.
        digests: By back-end, in the order in which they were played; all are compared with the first.
        differences: Back-ends whose digests differ from the first one's.
        left_out: Why some back-ends were not played, by name.
        generators: The process's generators that were drawn from or seeded meanwhile, "" for none; nothing of menv
            does so.
    """

    env: str
    num_envs: int
    env_steps: int
    seed: int
    digests: Mapping[str, str]
    differences: tuple[Finding, ...]
    left_out: Mapping[str, str]
    generators: str = ""

    @property
    def same(self) -> bool:
        """Whether all digests are equal."""
        return not self.differences

    @property
    def lines(self) -> list[str]:
        """The report as text."""
        reference, *others = self.digests
        count = f"{self.num_envs} environments, {self.env_steps} env steps, seed {self.seed}"
        verdict = "the same everywhere" if self.same else "not the same everywhere"
        lines = [f"{self.env}: {verdict} ({count})", f"  {reference}: {self.digests[reference]}"]
        found = {finding.backend: finding for finding in self.differences}
        for name in others:
            lines.append(f"  {name}: {'differs' if name in found else self.digests[name]}")
            if name in found:
                lines.append(f"    first at {found[name].first} there")
                lines += [f"    look for {text}" for text in [found[name].suspects] if text]
        if self.generators:
            lines.append(f"  it draws from {self.generators}, or seeds it")
        lines += [f"  left out, {why}" for why in self.left_out.values()]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines)
