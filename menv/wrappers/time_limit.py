"""`TimeLimit`: episodes that end as truncated after a number of env steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.base_env import ALL
from menv.errors import ConfigError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import wrapped_if_foreign
from menv.wrappers.multi_agent_wrapper import MultiAgentWrapper


class TimeLimit(MultiAgentWrapper):
    """Truncates the episodes of an environment with many agents after `max_episode_steps` env steps.

        register_env("short", lambda context: TimeLimit(simple_tag_v3.parallel_env(), max_episode_steps=100))

    The last step returns what the environment returned, with `truncateds["__all__"]` set as well, unless the
    environment terminated the episode in that step. An agent without an observation in it, such as a player whose turn
    it is not, ends with its newest one. A step in which no agent acts counts, too.

    Args:
        env: A `MultiAgentEnv`, or an environment of PettingZoo or OpenSpiel, which is put into its wrapper. For a
            `gymnasium.Env` the result is gymnasium's own `TimeLimit`.
        max_episode_steps: The length of the longest episode, at least 1.

    Raises:
        ConfigError: `env` is of another kind, or the limit is no such number.

    Attributes:
        env: The `MultiAgentEnv` inside.
    """

    def __new__(cls, env: Any, max_episode_steps: int) -> Any:
        if isinstance(env, gym.Env) and wrapped_if_foreign(env) is env:
            return gym.wrappers.TimeLimit(env, max_episode_steps)
        return super().__new__(cls)

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        wrapped = wrapped_if_foreign(env)
        if not isinstance(wrapped, MultiAgentEnv):
            raise ConfigError(
                f"TimeLimit: env is a {type(env).__name__}, expected a MultiAgentEnv, a gymnasium.Env or a game of "
                "PettingZoo; wrap each environment before it is vectorized"
            )
        if (
            isinstance(max_episode_steps, bool)
            or not isinstance(max_episode_steps, int)
            or max_episode_steps < 1
        ):
            raise ConfigError(
                f"TimeLimit: max_episode_steps={max_episode_steps!r:.60}, expected at least 1; pass a whole number"
            )
        super().__init__(wrapped)
        self._max_episode_steps = max_episode_steps
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        self._steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action_dict: AgentDict) -> StepDicts:
        result = self.env.step(action_dict)
        self._steps += 1
        if self._steps < self._max_episode_steps or not _is_running(result):
            return result
        obs, rewards, terminateds, truncateds, infos = result
        return obs, rewards, terminateds, {**truncateds, ALL: True}, infos


def _is_running(result: object) -> bool:
    """Return whether a step is valid and did not terminate the episode; the adapter names what is not valid."""
    parts = result if isinstance(result, tuple | list) and len(result) == 5 else (None, None, None, None)
    terminateds, truncateds = parts[2:4]
    return isinstance(terminateds, dict) and isinstance(truncateds, dict) and terminateds.get(ALL) is not True
