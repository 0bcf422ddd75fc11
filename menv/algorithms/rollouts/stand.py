"""Where workers stand: what each has done, and checkpoints of a run that was spread over other processes.

`menv.algorithms.rollouts.worker_rollouts` adds the workers up with it; rollouts of one process read a checkpoint of
many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from menv.algorithms.rollouts.fragment import Fragment
from menv.loop.digest import Digest

Tree = dict[str, Any]


@dataclass(slots=True)
class Stand:
    """What somebody has sampled.

    Attributes:
        env_steps: Since the start.
        agent_steps: Likewise.
        left_out: Rows that could not be learned from.
        digest: Of all rows.
        running: Episodes that run.
    """

    env_steps: int = 0
    agent_steps: int = 0
    left_out: int = 0
    digest: Digest = field(default_factory=Digest)
    running: int = 0

    @classmethod
    def after(cls, fragment: Fragment) -> Self:
        """Return where a worker stands after a fragment."""
        return cls(
            fragment.env_steps,
            fragment.agent_steps,
            fragment.left_out,
            Digest(*fragment.digest),
            fragment.running,
        )

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Return what `state`, or that of a sampler, tells."""
        return cls(
            tree["env_steps"],
            tree["agent_steps"],
            digest=Digest(*tree.get("digest", ())),
            running=tree["running"],
        )

    @classmethod
    def sum(cls, stands: Iterable[Stand]) -> Self:
        """Return what several have done together."""
        total = cls()
        for stand in stands:
            total.add(stand)
        return total

    def add(self, other: Stand) -> None:
        """Add what somebody else has done."""
        self.env_steps += other.env_steps
        self.agent_steps += other.agent_steps
        self.left_out += other.left_out
        self.digest.add(other.digest)

    def state(self) -> Tree:
        """Return it as a plain tree."""
        return {
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "digest": self.digest.state(),
            "running": self.running,
        }


def joined(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a run's samplers as that of one; running episodes of several are broken off."""
    if "workers" not in tree:
        return tree
    workers: Sequence[Tree] = tree["workers"]
    total = Stand()
    for one in (tree["gone"], *workers):
        total.add(Stand.of(one))
    return {
        **total.state(),
        "running": sum(one["running"] for one in workers),
        "pieces": tree["pieces"],
        "steps": np.concatenate([one["steps"] for one in workers]),
        "begun": np.concatenate([one["begun"] for one in workers]),
        **_NO_EPISODES,
    }


def spread(tree: Mapping[str, Any], count: int, each: int) -> Mapping[str, Any]:
    """Return the state of a run's samplers as that of `count` workers with `each` sub-environments."""
    if "workers" in tree and [len(one["steps"]) for one in tree["workers"]] == [each] * count:
        return tree
    whole = joined(tree)
    steps, begun = whole["steps"], whole["begun"]
    if len(steps) != count * each:
        # Other sub-environments: none may draw the numbers again that any of them has drawn.
        steps = np.full(count * each, steps.max(initial=0))
    if len(begun) != len(steps):
        begun = np.full(len(steps), begun.max(initial=0))
    workers = []
    for index in range(count):
        own = slice(index * each, (index + 1) * each)
        workers.append(
            {**Stand().state(), "pieces": 0, "steps": steps[own], "begun": begun[own], **_NO_EPISODES}
        )
    # The first one tells of all that are broken off.
    workers[0]["running"] = whole["running"]
    return {"workers": workers, "gone": Stand.of(whole).state(), "pieces": whole["pieces"]}


_NO_EPISODES: Mapping[str, Any] = {"episodes": [], "rows": [], "seats": ([], [])}
