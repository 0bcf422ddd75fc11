"""A game of PettingZoo that plays what a few lines say."""

from __future__ import annotations

from typing import Any

from pettingzoo import ParallelEnv


class Parallel(ParallelEnv):  # type: ignore[misc]
    """Plays `game`, a `MultiAgentEnv` whose agents act together and live to the end."""

    def __init__(self, game: Any) -> None:
        self.game = game
        self.metadata: dict[str, Any] = {"name": "game"}
        self.render_mode = None
        self.possible_agents = list(game.possible_agents)

    def __getattr__(self, name: str) -> Any:
        if name in ("game", "agents"):
            raise AttributeError(name)
        return getattr(self.game, name)

    def observation_space(self, agent: str) -> Any:
        return self.game.get_observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self.game.get_action_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        obs, infos = self.game.reset(seed=seed)
        return obs, {agent: infos.get(agent, {}) for agent in obs}

    def step(self, actions: Any) -> Any:
        obs, paid, ends, cuts, infos = self.game.step(actions)
        over, cut = ends["__all__"], cuts["__all__"]
        self.agents = [] if over or cut else self.agents
        told = {agent: infos.get(agent, {}) for agent in obs}
        return obs, paid, dict.fromkeys(obs, over), dict.fromkeys(obs, cut), told
