"""`JaxMarlEnv`: an environment of JaxMARL, many worlds at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

from menv.base_env import AgentId
from menv.errors import ConfigError
from menv.wrappers.jax_worlds import JaxWorlds, Seen, Stepped, library

NAMES: Final = (
    "HeuristicEnemySMAX", "MPE_simple_adversary_v3", "MPE_simple_crypto_v3", "MPE_simple_facmac_3a_v1",
    "MPE_simple_facmac_6a_v1", "MPE_simple_facmac_9a_v1", "MPE_simple_facmac_v1", "MPE_simple_push_v3",
    "MPE_simple_reference_v3", "MPE_simple_speaker_listener_v4", "MPE_simple_spread_v3", "MPE_simple_tag_v3",
    "MPE_simple_v3", "MPE_simple_world_comm_v3", "SMAX", "coin_game", "hanabi", "jaxnav", "overcooked",
    "overcooked_v2", "switch_riddle",
)  # fmt: skip
"""The environments of `jaxmarl.make` that need no other package and return dicts by agent."""


class JaxMarlEnv(JaxWorlds):
    """Worlds of a JaxMARL environment, stepped together.

        register_env("spread", lambda context: JaxMarlEnv("MPE_simple_spread_v3", num_envs=1024))

    - Agents have their names in JaxMARL. Observations are float32.
    - Where JaxMARL says which actions are available, observations are `{"observation": ..., "action_mask": ...}`.
    - End: MPE ends by its limit of steps alone, which truncates. Other environments do not tell limits from ends: an
      agent that is done is terminated.
    - Agents with different spaces need different policies.

    Args:
        env: A name that `jaxmarl.make` takes, or an environment of JaxMARL.
        num_envs: Number of worlds.
        settings: Arguments of `jaxmarl.make`, such as `num_agents`.

    Raises:
        ConfigError: An action space has no counterpart in gymnasium.
        MissingExtraError: JaxMARL is not installed.

    Attributes:
        env: The environment of JaxMARL.
    """

    def __init__(self, env: Any, *, num_envs: int = 32, **settings: Any) -> None:
        jaxmarl = library("jaxmarl", "JaxMarlEnv")
        environments = library("jaxmarl.environments", "JaxMarlEnv")
        self.env = jaxmarl.make(env, **settings) if isinstance(env, str) else env
        self._is_limited = isinstance(self.env, environments.SimpleMPE)
        spaces = {agent: _space(self.env.action_space(agent)) for agent in self.env.agents}
        has_masks = type(self.env).get_avail_actions is not environments.MultiAgentEnv.get_avail_actions
        self._masked = {
            agent for agent in spaces if has_masks and isinstance(spaces[agent], gym.spaces.Discrete)
        }
        self._set_up(num_envs, self.env.agents, spaces, (env, settings))

    def _first(self, key: Any) -> tuple[Any, Seen]:
        obs, state = self.env.reset(key)
        return state, self._seen(obs, state)

    def _next(self, key: Any, state: Any, actions: Mapping[AgentId, Any]) -> Stepped:
        from jax import numpy as jnp

        obs, state, rewards, done, _ = self.env.step_env(key, state, actions)
        paid = {agent: rewards[agent] for agent in self.possible_agents}
        over = {agent: done[agent] | done["__all__"] for agent in self.possible_agents}
        never = dict.fromkeys(over, jnp.zeros((), bool))
        terminated, truncated = (never, over) if self._is_limited else (over, never)
        return state, self._seen(obs, state), paid, terminated, truncated

    def _seen(self, obs: Mapping[Any, Any], state: Any) -> Seen:
        seen = {agent: obs[agent] for agent in self.possible_agents}
        masks = self.env.get_avail_actions(state) if self._masked else {}
        with_masks = {
            agent: {"observation": seen[agent], "action_mask": masks[agent]} for agent in self._masked
        }
        return seen | with_masks, None


def _space(space: Any) -> gym.Space[Any]:
    """Return an action space of JaxMARL as one of gymnasium."""
    if hasattr(space, "n"):
        return gym.spaces.Discrete(int(space.n))
    if hasattr(space, "num_categories"):
        return gym.spaces.MultiDiscrete(np.asarray(space.num_categories))
    if hasattr(space, "low"):
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high)
        )
        return gym.spaces.Box(low, high, dtype=np.float32)
    raise ConfigError(
        f"JaxMarlEnv: an action space is a {type(space).__name__}, expected a Discrete, MultiDiscrete or Box; write "
        "a VectorMultiAgentEnv"
    )
