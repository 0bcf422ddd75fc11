"""The windy maze on two levels: one agent says where to go, short-lived ones walk there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from menv.base_env import ALL
from menv.envs.windy_maze import MOVES, WindyMaze
from menv.errors import ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

HIGH = "high_level_agent"
LOW_PREFIX = "low_level_"


class HierarchicalWindyMaze(MultiAgentEnv):
    """A high level picks directions, and each pick opens a low level that walks for some moves.

    - `"high_level_agent"` sees what the walker of `WindyMaze` sees, and answers with a direction,
      Discrete(4). It gets the rewards of the maze, at the moves at which they are paid.
    - `"low_level_<n>"` sees that and `"direction"` and `"moves_left"`, and answers with a move, Discrete(4).
      It earns 1.0 for a cell walked in that direction, -1.0 for one back, and -0.5 for one aside.
      After `option_moves` moves it is terminated, and the high level is asked again in the same step.
    - Each pick takes one env step in which nobody walks, and opens an agent with a new id; numbers begin
      again in the next episode. With `new_ids=False` all are lives of one agent, `"low_level_0"`.
    - End: that of the maze, for everybody.

    A mapping by prefix fits: `lambda agent_id: "low" if agent_id.startswith("low_level_") else "high"`.

    Args:
        config: `"option_moves"` (default 4), `"new_ids"` (default True), and what `WindyMaze` reads.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings = config or {}
        self.maze = WindyMaze(settings)
        self.option_moves = int(settings.get("option_moves", 4))
        self.new_ids = bool(settings.get("new_ids", True))
        most = -(-self.maze.max_steps // self.option_moves) if self.new_ids else 1
        self.possible_agents = [HIGH, *[f"{LOW_PREFIX}{number}" for number in range(most)]]
        self.action_space = gym.spaces.Discrete(4)
        low_space = gym.spaces.Dict({
            **self.maze.observation_space.spaces,
            "direction": gym.spaces.Discrete(4),
            "moves_left": gym.spaces.Discrete(self.option_moves + 1),
        })  # fmt: skip
        self.observation_spaces = {
            HIGH: self.maze.observation_space,
            **dict.fromkeys(self.possible_agents[1:], low_space),
        }
        self._asked = ""
        self._opened = self._direction = self._moves_left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Put the walker back to the start and ask the high level."""
        obs, _ = self.maze.reset(seed=seed, options=options)
        self.agents = [HIGH]
        self._asked, self._opened = HIGH, 0
        return {HIGH: obs}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Open a low level, or let it walk.

        Raises:
            ContractError: Somebody else than the agent of the last obs acts.
        """
        if list(action_dict) != [self._asked]:
            raise ContractError(
                f"HierarchicalWindyMaze.step: got actions for {list(action_dict)!r:.80}, expected one for "
                f"{self._asked!r}; answer the agent of the last obs"
            )
        action = int(action_dict[self._asked])
        if self._asked != HIGH:
            return self._walk(self._asked, action)
        self._asked = f"{LOW_PREFIX}{self._opened if self.new_ids else 0}"
        self._opened += 1
        self._direction, self._moves_left = action, self.option_moves
        self.agents = [HIGH, self._asked]
        return {self._asked: self._low_obs()}, {}, {ALL: False}, {ALL: False}, {}

    def _walk(self, low: str, move: int) -> StepDicts:
        before = self.maze.position
        obs, reward, solved, late, _ = self.maze.step(move)
        self._moves_left -= 1
        rewards = {HIGH: reward, low: walked(before, self.maze.position, self._direction)}
        shown: AgentDict = {low: self._low_obs()}
        done = not self._moves_left
        if solved or late:
            self.agents, self._asked = [], ""
        elif done:
            self.agents, self._asked = [HIGH], HIGH
        if solved or late or done:
            shown[HIGH] = obs
        return shown, rewards, {low: done or solved, ALL: solved}, {ALL: late}, {}

    def _low_obs(self) -> dict[str, Any]:
        return {**self.maze.observe(), "direction": self._direction, "moves_left": self._moves_left}


def walked(before: tuple[int, int], after: tuple[int, int], direction: int) -> float:
    """Return 1.0 for a cell walked in a direction, -1.0 for one back, -0.5 for one aside, 0.0 for none."""
    along = sum((b - a) * step for a, b, step in zip(before, after, MOVES[direction], strict=True))
    return float(along) if along or before == after else -0.5
