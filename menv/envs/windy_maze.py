"""A windy maze with a sparse reward, for one agent and for hierarchies of two and three levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

UP, RIGHT, DOWN, LEFT = range(4)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))

MAZE = (
    "S...#...",
    "###.#.#.",
    "G.#...#.",
    "#.#####.",
    "#.......",
)
"""Rows of the default maze: S start, G goal, # wall, everything else can be walked on."""


class WindyMaze(gym.Env[Any, Any]):
    """A walker looks for the goal of a maze; moves against the wind fail.

    - Observation: Dict of `"position"`, MultiDiscrete (row, column), and `"wind"`, Discrete(4), the
      direction into which it blows; with several goals also `"goal"`, the one that counts.
    - Action: Discrete(4), up, right, down, left. A step into a wall or against the wind stays in place.
    - Wind: before each move it turns into a random direction with probability 1/4, seen by the walker.
    - Reward: 1.0 at the goal, -0.01 for each move.
    - End: terminated at the goal, truncated after `max_steps` moves.

    Args:
        config: `"maze"`, rows of the map (default `MAZE`); a map with several G samples one for each
            episode. `"max_steps"` (default 200).

    Raises:
        ConfigError: The map has rows of different lengths, not exactly one S, or no G.
    """

    observation_space: gym.spaces.Dict

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        settings = config or {}
        self.maze = tuple(settings.get("maze", MAZE))
        self.max_steps = int(settings.get("max_steps", 200))
        if len({len(row) for row in self.maze}) != 1 or not self._find("G") or len(self._find("S")) != 1:
            raise ConfigError(
                "WindyMaze: the maze has ragged rows, no goal, or not exactly one start, expected equally long rows "
                "with one S and a G or more; fix config['maze']"
            )
        self.start, self.goals = self._find("S")[0], self._find("G")
        spaces: dict[str, gym.Space[Any]] = {
            "position": gym.spaces.MultiDiscrete([len(self.maze), len(self.maze[0])]),
            "wind": gym.spaces.Discrete(4),
        }
        if len(self.goals) > 1:
            spaces["goal"] = gym.spaces.Discrete(len(self.goals))
        self.observation_space = gym.spaces.Dict(spaces)
        self.action_space = gym.spaces.Discrete(4)
        self.position, self.goal, self.wind = self.start, 0, UP
        self._moves_left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Move the walker to the start."""
        super().reset(seed=seed)
        self.position = self.start
        self.goal = int(self.np_random.integers(len(self.goals)))
        self.wind = int(self.np_random.integers(4))
        self._moves_left = self.max_steps
        return self.observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Walk one cell.

        Raises:
            CallOrderError: The episode has ended, or never began.
            ContractError: The action is none of the four directions.
        """
        if not self._moves_left:
            raise CallOrderError("WindyMaze.step: no episode is running, expected reset first; call reset")
        if action not in range(4):
            raise ContractError(
                f"WindyMaze.step: got {action!s:.40}, expected 0 to 3 (up, right, down, left); answer with one"
            )
        down, right = MOVES[int(action)]
        there = (self.position[0] + down, self.position[1] + right)
        if int(action) != (self.wind + 2) % 4 and self._is_free(*there):
            self.position = there
        if self.np_random.random() < 0.25:
            self.wind = int(self.np_random.integers(4))
        self._moves_left -= 1
        solved = self.position == self.goals[self.goal]
        late = not solved and not self._moves_left
        if solved:
            self._moves_left = 0
        return self.observe(), float(solved) - 0.01, solved, late, {}

    def observe(self) -> dict[str, Any]:
        """Return what the walker sees."""
        seen: dict[str, Any] = {"position": np.array(self.position), "wind": self.wind}
        return {**seen, "goal": self.goal} if len(self.goals) > 1 else seen

    def distance(self, goal: int) -> int:
        """Return the Manhattan distance of the walker to a goal."""
        return sum(abs(here - there) for here, there in zip(self.position, self.goals[goal], strict=True))

    def _find(self, mark: str) -> list[tuple[int, int]]:
        cells = [(row, column) for row, line in enumerate(self.maze) for column in range(len(line))]
        return [cell for cell in cells if self.maze[cell[0]][cell[1]] == mark]

    def _is_free(self, row: int, column: int) -> bool:
        inside = 0 <= row < len(self.maze) and 0 <= column < len(self.maze[0])
        return inside and self.maze[row][column] != "#"


HIGH = "high_level_agent"
LOW_PREFIX = "low_level_"


class HierarchicalWindyMaze(MultiAgentEnv):
    """A high level picks directions, and each pick opens a low level that walks for some moves.

    - `"high_level_agent"` sees what the walker of `WindyMaze` sees, and answers with a direction,
      Discrete(4). It gets the rewards of the maze, at the same moves.
    - `"low_level_<n>"` sees that and `"direction"` and `"moves_left"`, and answers with a move, Discrete(4).
      It earns 1.0 for a cell walked in that direction, -1.0 for one back, and -0.5 for one aside.
      After `option_moves` moves it is terminated, and the high level is asked again in the same step.
    - Each pick takes one env step without a move, and opens an agent with a new id; numbers begin again in the
      next episode. With `new_ids=False` all are trajectories of one agent, `"low_level_0"`.
    - End: that of the maze, for all agents.

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
        """Move the walker to the start and ask the high level."""
        obs, _ = self.maze.reset(seed=seed, options=options)
        self.agents = [HIGH]
        self._asked, self._opened = HIGH, 0
        return {HIGH: obs}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Open a low level, or let it walk.

        Raises:
            ContractError: The actions are not one of the agent of the last obs.
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


TOP, MID_PREFIX = "top_level", "mid_level_"

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


def walked(before: tuple[int, int], after: tuple[int, int], direction: int) -> float:
    """Return 1.0 for a cell walked in a direction, -1.0 for one back, -0.5 for one aside, 0.0 for none."""
    along = sum((b - a) * step for a, b, step in zip(before, after, MOVES[direction], strict=True))
    return float(along) if along or before == after else -0.5
