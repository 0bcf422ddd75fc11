"""A round: questions that were handed in together, of episodes in which one agent goes on; what they show are rows.

A serving input makes one of what came with one look at its sockets, `menv.round_board` hands it to the sampler, and
`menv.adapters.round_envs` delivers it as it is. It stands for a turn of each episode, and costs a fraction of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt

from menv.base_env import SINGLE_AGENT, FloatArray
from menv.line import Answer, Line, Turn

Actions: TypeAlias = Sequence[Any] | npt.NDArray[Any]
Together: TypeAlias = Callable[[Sequence[Any], Actions | BaseException], None]
"""Takes the questions of a round and an action for each, or why there are none; called in the sampler's thread."""


@dataclass(slots=True, eq=False)
class Round:
    """R questions.

    Attributes:
        episode_ids: R different ones.
        obs: [R, ...] what the agents observe.
        rewards: [R] paid since their last observations, finite.
        questions: R, each of which takes its answer by itself where they are not answered together.
        together: Takes the answers.
        lines: The episodes, once the round has been handed in.
    """

    episode_ids: Sequence[str]
    obs: npt.NDArray[Any]
    rewards: FloatArray
    questions: Sequence[Answer]
    together: Together | None
    lines: list[Line] = field(default_factory=list)

    def tell(self, actions: Actions | BaseException) -> None:
        """Answer, once: where this environment is stopped meanwhile, whoever is first does."""
        together, self.together = self.together, None
        if together is not None:
            together(self.questions, actions)

    def turns(self) -> list[Turn]:
        """Return a turn for each episode, to be answered one by one."""
        self.together = None
        return [
            Turn({SINGLE_AGENT: obs}, {SINGLE_AGENT: reward} if reward else {}, answer=question)
            for obs, reward, question in zip(self.obs, self.rewards.tolist(), self.questions, strict=True)
        ]
