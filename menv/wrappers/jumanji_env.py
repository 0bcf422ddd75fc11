"""`JumanjiEnv`: an environment of Jumanji with several agents, many worlds at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

from menv.base_env import AgentId
from menv.errors import ConfigError
from menv.wrappers.jax_worlds import JaxWorlds, Seen, Stepped, library

NAMES: Final = (
    "Cleaner-v0", "Connector-v3", "LevelBasedForaging-v0", "MMST-v0", "MultiCVRP-v0", "RobotWarehouse-v0",
    "SearchAndRescue-v0",
)  # fmt: skip
"""Jumanji's environments of several agents."""

_OF_THE_WORLD: Final = ("grid", "node_types", "adj_matrix")
"""Observations without a row for each agent, even if they have as many rows as there are agents."""


class JumanjiEnv(JaxWorlds):
    """Worlds of a Jumanji environment, stepped together.

        register_env("foraging", lambda context: JumanjiEnv("LevelBasedForaging-v0", num_envs=1024))

    - Agents: `agent_0` to `agent_{A-1}`.
    - An observation is a float32 vector: the agent's row of arrays with a row for each agent, then what all agents see,
      and the step count as a share of the time limit. Where no entry has a row for each agent, a one-hot number of
      the agent comes first. With a mask, observations are `{"observation": vector, "action_mask": mask}`.
    - Agents with a legal action act.
    - A reward of the team is paid to each agent.
    - End: a last time step with discount 0 terminates, one with another discount truncates.

    Args:
        env: A name of Jumanji's registry, or an environment of Jumanji.
        num_envs: Number of worlds.
        settings: Arguments of `jumanji.make`, such as `time_limit`.

    Raises:
        ConfigError: `env` has one agent.
        MissingExtraError: Jumanji is not installed.

    Attributes:
        env: The environment of Jumanji.
    """

    def __init__(self, env: Any, *, num_envs: int = 32, **settings: Any) -> None:
        jumanji = library("jumanji", "JumanjiEnv")
        self.env = jumanji.make(env, **settings) if isinstance(env, str) else env
        count = getattr(self.env, "num_agents", getattr(self.env, "_num_vehicles", None))
        if count is None:
            raise ConfigError(
                f"JumanjiEnv: {env!r} has one agent, expected several; for one agent, Jumanji has JumanjiToGymWrapper"
            )
        agents = [f"agent_{number}" for number in range(count)]
        self._set_up(num_envs, agents, dict(zip(agents, self._spaces(count), strict=True)), (env, settings))

    def _spaces(self, count: int) -> list[gym.Space[Any]]:
        """Return the action spaces of all agents."""
        spec = self.env.action_spec
        if np.issubdtype(spec.dtype, np.floating):
            low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
            return [gym.spaces.Box(low[row], high[row], dtype=np.float32) for row in range(count)]
        mask = getattr(self.env.observation_spec, "action_mask", None)
        sizes = np.asarray(spec.num_values) if mask is None else [mask.shape[1]] * count
        return [gym.spaces.Discrete(int(size)) for size in sizes]

    def _first(self, key: Any) -> tuple[Any, Seen]:
        state, step = self.env.reset(key)
        return state, self._seen(step.observation)

    def _next(self, key: Any, state: Any, actions: Mapping[AgentId, Any]) -> Stepped:
        from jax import numpy as jnp

        chosen = jnp.stack([actions[agent] for agent in self.possible_agents])
        state, step = self.env.step(state, chosen.astype(self.env.action_spec.dtype))
        over, kept = step.last(), step.discount > 0
        seen = self._seen(step.observation)
        return state, seen, self._each(step.reward), self._each(over & ~kept), self._each(over & kept)

    def _seen(self, obs: Any) -> Seen:
        import jax
        from jax import numpy as jnp

        count, own, shared = len(self.possible_agents), [], []
        for path, entry in jax.tree_util.tree_flatten_with_path(obs)[0]:
            name, value = jax.tree_util.keystr(path[-1:], simple=True), jnp.asarray(entry)
            if name in ("step", "step_count"):
                shared.append(value / self.env.time_limit)
            elif value.shape[:1] != (count,) or name in _OF_THE_WORLD:
                shared.append(value)
            elif name != "action_mask":
                own.append(value)
        rows = [value.reshape(count, -1) for value in own or [jnp.eye(count)]]
        rows += [jnp.broadcast_to(value.reshape(1, -1), (count, value.size)) for value in shared]
        vectors = self._each(jnp.concatenate([part.astype("float32") for part in rows], axis=1))
        if not hasattr(obs, "action_mask"):
            return vectors, None
        masks, acting = self._each(obs.action_mask), self._each(obs.action_mask.any(axis=1))
        both = {agent: {"observation": vectors[agent], "action_mask": masks[agent]} for agent in vectors}
        return both, acting

    def _each(self, values: Any) -> dict[AgentId, Any]:
        """Return what each agent has, or one value for all."""
        if not values.shape:
            return dict.fromkeys(self.possible_agents, values)
        return dict(zip(self.possible_agents, values, strict=True))
