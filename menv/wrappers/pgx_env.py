"""`PgxEnv`: a game of Pgx, many worlds at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym

from menv.base_env import AgentId
from menv.wrappers.jax_worlds import JaxWorlds, Seen, Stepped, library

NAMES: Final = (
    "2048", "animal_shogi", "backgammon", "chess", "connect_four", "gardner_chess", "go_19x19", "go_9x9", "hex",
    "kuhn_poker", "leduc_holdem", "minatar-asterix", "minatar-breakout", "minatar-freeway", "minatar-seaquest",
    "minatar-space_invaders", "othello", "shogi", "sparrow_mahjong", "tic_tac_toe",
)  # fmt: skip
"""The games of `pgx.make`."""


class PgxEnv(JaxWorlds):
    """Worlds of a Pgx game, stepped together.

        register_env("connect_four", lambda context: PgxEnv("connect_four", num_envs=1024))

    - Agents: `player_0`, `player_1` and so on, numbered as Pgx numbers its players. Pgx draws who begins.
    - The player whose turn it is acts. An observation is `{"observation": ..., "action_mask": ...}`: the state as that
      player sees it, float32, and the legal actions. Final observations are each player's own.
    - A move may pay any player.

    Args:
        env: A name that `pgx.make` takes, or an environment of Pgx.
        num_envs: Number of worlds.

    Raises:
        MissingExtraError: Pgx is not installed.

    Attributes:
        env: The environment of Pgx.
    """

    def __init__(self, env: Any, *, num_envs: int = 32) -> None:
        pgx = library("pgx", "PgxEnv")
        self.env = pgx.make(env) if isinstance(env, str) else env
        agents = [f"player_{number}" for number in range(self.env.num_players)]
        self._set_up(
            num_envs, agents, dict.fromkeys(agents, gym.spaces.Discrete(self.env.num_actions)), (env,)
        )

    def _first(self, key: Any) -> tuple[Any, Seen]:
        state = self.env.init(key)
        return state, self._seen(state)

    def _next(self, key: Any, state: Any, actions: Mapping[AgentId, Any]) -> Stepped:
        from jax import numpy as jnp

        chosen = jnp.stack([actions[agent] for agent in self.possible_agents])
        state = self.env.step(state, chosen[state.current_player], key)
        rewards = dict(zip(self.possible_agents, state.rewards, strict=True))
        each = dict.fromkeys
        terminated = each(self.possible_agents, state.terminated)
        truncated = each(self.possible_agents, state.truncated & ~state.terminated)
        return state, self._seen(state), rewards, terminated, truncated

    def seen_in(self, state: Any) -> tuple[Any, Any, Any, Any]:
        """Return what the next player observes in a state of Pgx, who that is, whether it is the end, and rewards."""
        obs = {"observation": self.env._observe(state, state.current_player).astype("float32"),
               "action_mask": state.legal_action_mask.astype("int8")}  # fmt: skip
        return obs, state.current_player, state.terminated | state.truncated, state.rewards

    def _seen(self, state: Any) -> Seen:
        # `env.observe` with a player does the same, and warns.
        obs = {
            agent: {
                "observation": self.env._observe(state, number),
                "action_mask": state.legal_action_mask,
            }
            for number, agent in enumerate(self.possible_agents)
        }
        return obs, {agent: state.current_player == n for n, agent in enumerate(self.possible_agents)}
