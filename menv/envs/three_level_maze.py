"""A hierarchical environment on three levels: corner, direction, move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from menv.base_env import ALL
from menv.envs.windy_maze import WindyMaze, walked
from menv.errors import ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

TOP, MID_PREFIX, LOW_PREFIX = "top_level", "mid_level_", "low_level_"

FIELD = (
    "G.....G",
    ".......",
    ".......",
    "...S...",
    ".......",
    ".......",
    "G.....G",
)
"""Rows of the default field, in the form of `MAZE`."""


class ThreeLevelMaze(MultiAgentEnv):
    """A walker in an open field: the top level picks a corner, the mid level directions, the low level moves.

    One step of the top level is several of a mid level, and each of these several of a low level. A
    level that ends is terminated in the step in which the one above it is asked again.

    - `"top_level"` sees what the walker of `WindyMaze` sees, the corner that counts included, and answers
      with a corner. It gets the rewards of the maze.
    - `"mid_level_<n>"` sees position, wind, `"target"` (the corner that the top level picked) and
      `"picks_left"`, and answers with a direction. It earns 1.0 for each cell nearer to its target, and
      -1.0 for each farther from it.
    - `"low_level_<n>"` sees position, wind, `"direction"` and `"moves_left"`, and answers with a move. It
      earns what the low level of `HierarchicalWindyMaze` does.
    - Every pick takes one env step without a move. Numbers begin again in the next episode.
    - End: that of the maze, for all agents.

    Args:
        config: `"picks"` of a mid level (default 3), `"moves"` of a low level (default 3), and what
            `WindyMaze` reads, `"max_steps"` being 40 by default.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings = {"maze": FIELD, "max_steps": 40, **(config or {})}
        self.maze = WindyMaze(settings)
        self.picks, self.moves = int(settings.get("picks", 3)), int(settings.get("moves", 3))
        lows = -(-self.maze.max_steps // self.moves)
        mids = -(-lows // self.picks)
        levels = {
            MID_PREFIX: [f"{MID_PREFIX}{number}" for number in range(mids)],
            LOW_PREFIX: [f"{LOW_PREFIX}{number}" for number in range(lows)],
        }
        self.possible_agents = [TOP, *levels[MID_PREFIX], *levels[LOW_PREFIX]]
        seen = self.maze.observation_space.spaces
        place = {"position": seen["position"], "wind": seen["wind"]}
        corners, four = gym.spaces.Discrete(len(self.maze.goals)), gym.spaces.Discrete(4)
        counts = gym.spaces.Discrete(self.picks + 1), gym.spaces.Discrete(self.moves + 1)
        mid_space = gym.spaces.Dict({**place, "target": corners, "picks_left": counts[0]})
        low_space = gym.spaces.Dict({**place, "direction": four, "moves_left": counts[1]})
        self.observation_spaces = {
            TOP: gym.spaces.Dict({**place, "goal": corners}),
            **dict.fromkeys(levels[MID_PREFIX], mid_space),
            **dict.fromkeys(levels[LOW_PREFIX], low_space),
        }
        self.action_spaces = {TOP: corners, **dict.fromkeys(self.possible_agents[1:], four)}
        self._asked = self._mid = self._low = ""
        self._opened = {MID_PREFIX: 0, LOW_PREFIX: 0}
        self._target = self._direction = self._picks_left = self._moves_left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Move the walker to the start and ask the top level."""
        self.maze.reset(seed=seed, options=options)
        self._opened = dict.fromkeys(self._opened, 0)
        self._asked, self.agents = TOP, [TOP]
        return {TOP: self._observe(TOP)}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Open a lower level, or let the lowest one walk.

        Raises:
            ContractError: The actions are not one of the agent of the last obs.
        """
        if list(action_dict) != [self._asked]:
            raise ContractError(
                f"ThreeLevelMaze.step: got actions for {list(action_dict)!r:.80}, expected one for {self._asked!r}; "
                "answer the agent of the last obs"
            )
        action = int(action_dict[self._asked])
        if self._asked == self._low:
            return self._walk(action)
        if self._asked == TOP:
            self._target, self._picks_left = action, self.picks
            self._asked = self._mid = self._open(MID_PREFIX)
        else:
            self._direction, self._moves_left = action, self.moves
            self._picks_left -= 1
            self._asked = self._low = self._open(LOW_PREFIX)
        self.agents.append(self._asked)
        return {self._asked: self._observe(self._asked)}, {}, {ALL: False}, {ALL: False}, {}

    def _open(self, level: str) -> str:
        self._opened[level] += 1
        return f"{level}{self._opened[level] - 1}"

    def _walk(self, move: int) -> StepDicts:
        before, distance = self.maze.position, self.maze.distance(self._target)
        _, reward, solved, late, _ = self.maze.step(move)
        self._moves_left -= 1
        rewards = {
            TOP: reward,
            self._mid: float(distance - self.maze.distance(self._target)),
            self._low: walked(before, self.maze.position, self._direction),
        }
        done = {self._low: not self._moves_left, self._mid: not (self._moves_left or self._picks_left)}
        ended = [agent for agent, flag in done.items() if flag]
        self.agents = [] if solved or late else [agent for agent in self.agents if agent not in ended]
        shown = [TOP, self._mid, self._low] if solved or late else [*ended, *self.agents[-1:]]
        self._asked = self.agents[-1] if self.agents else ""
        flags: AgentDict = {**dict.fromkeys(ended, True), ALL: solved}
        return {agent: self._observe(agent) for agent in shown}, rewards, flags, {ALL: late}, {}

    def _observe(self, agent: str) -> dict[str, Any]:
        """Return an agent's observation."""
        seen = self.maze.observe()
        goal = seen.pop("goal", 0)
        if agent == TOP:
            return {**seen, "goal": goal}
        if agent == self._mid:
            return {**seen, "target": self._target, "picks_left": self._picks_left}
        return {**seen, "direction": self._direction, "moves_left": self._moves_left}
