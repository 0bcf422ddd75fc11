"""A walker in a windy maze with a sparse reward, led by levels of agents; `hierarchical.py` trains them.

    menv train examples/windy_maze.py:WindyMaze --policy 'top_*=top' --policy 'low_*=low' --stop time_total_s=60

An action of a level is a command: it starts an agent of the level below, with a new id, which acts `length` times.
The lowest level walks. With `levels=3` the maze is an open field with four goals, and the mid level is sent to one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiDiscrete

from menv import MultiAgentEnv

UP, RIGHT, DOWN, LEFT = range(4)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
# S start, G goal, # wall, everything else can be walked on.
MAZE = ("S...#...", "###.#.#.", "G.#...#.", "#.#####.", "#.......")
FIELD = ("G.....G", ".......", ".......", "...S...", ".......", ".......", "G.....G")
NAMES = {1: ("top_level",), 2: ("top_level", "low_level"), 3: ("top_level", "mid_level", "low_level")}


class WindyMaze(MultiAgentEnv):
    """The top level pays 0.01 for each move and gets 1.0 at the goal. Moves against the wind fail.

    The low level earns 1.0 for a cell walked as commanded, the mid level 1.0 for a cell nearer to its goal. A level
    that ends is terminated in the step in which the one above is asked again. A command takes a step without a move.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        settings = {"levels": 2, **(config or {})}
        self.names = NAMES[settings["levels"]]
        three = len(self.names) == 3
        self.map = np.array([list(row) for row in settings.get("map", FIELD if three else MAZE)])
        self.max_moves = settings.get("max_moves", 40 if three else 200)
        self.length = settings.get("length", 3 if three else 4)
        self.start, self.goals = self.find("S")[0], self.find("G")
        goal = Discrete(len(self.goals))
        place = {"position": MultiDiscrete(list(self.map.shape)), "wind": Discrete(4)}
        seen = {**place, "goal": goal} if len(self.goals) > 1 else place
        self.observation_spaces = {"top_level": Dict(seen)}
        actions = self.action_spaces = {"top_level": goal if three else Discrete(4)}
        for level, name in enumerate(self.names[1:], start=1):
            seen = {**place, "command": list(actions.values())[-1], "left": Discrete(self.length + 1)}
            moves = self.length ** (len(self.names) - level)
            ids = [f"{name}_{number}" for number in range(-(-self.max_moves // moves))]
            self.observation_spaces |= dict.fromkeys(ids, Dict(seen))
            self.action_spaces |= dict.fromkeys(ids, Discrete(4))
        self.possible_agents = list(self.action_spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position, self.moved = self.start, 0
        self.goal, self.wind = (int(self.np_random.integers(many)) for many in (len(self.goals), 4))
        # Of each level; the top level has no command and acts to the end.
        self.opened, self.commands, self.left = [0, 0, 0], [0, 0, 0], [self.max_moves + 1, 0, 0]
        self.agents = ["top_level"]
        return {"top_level": self.observe(0)}, {}

    def step(self, action_dict: Any) -> Any:
        level, action = len(self.agents) - 1, int(action_dict[self.agents[-1]])
        self.left[level] -= 1
        if level == len(self.names) - 1:
            return self.walk(action)
        level += 1
        self.agents.append(f"{self.names[level]}_{self.opened[level]}")
        self.opened[level] += 1
        self.commands[level], self.left[level] = action, self.length
        return {self.agents[-1]: self.observe(level)}, {}, {"__all__": False}, {"__all__": False}, {}

    def walk(self, action: int) -> Any:
        before, level = self.position, len(self.agents) - 1
        self.move(action)
        solved = self.position == self.goals[self.goal]
        late = not solved and self.moved == self.max_moves
        rewards = {"top_level": float(solved) - 0.01}
        if level == 2:
            goal = self.goals[self.commands[1]]
            rewards[self.agents[1]] = float(distance(before, goal) - distance(self.position, goal))
        if level:
            rewards[self.agents[level]] = walked(before, self.position, self.commands[level])
        obs = {self.agents[one]: self.observe(one) for one in range(level, -1, -1)}
        ended = []
        while not self.left[len(self.agents) - 1]:
            ended.append(self.agents.pop())
        if solved or late:
            self.agents = []
        else:
            obs = {agent: obs[agent] for agent in (*ended, self.agents[-1])}
        return obs, rewards, {**dict.fromkeys(ended, True), "__all__": solved}, {"__all__": late}, {}

    def move(self, action: int) -> None:
        row, column = (here + step for here, step in zip(self.position, MOVES[action], strict=True))
        inside = 0 <= row < self.map.shape[0] and 0 <= column < self.map.shape[1]
        if action != (self.wind + 2) % 4 and inside and self.map[row, column] != "#":
            self.position = row, column
        self.moved += 1
        if self.np_random.random() < 0.25:
            self.wind = int(self.np_random.integers(4))

    def observe(self, level: int) -> dict[str, Any]:
        seen: dict[str, Any] = {"position": np.array(self.position), "wind": self.wind}
        if level:
            return {**seen, "command": self.commands[level], "left": self.left[level]}
        return {**seen, "goal": self.goal} if len(self.goals) > 1 else seen

    def find(self, mark: str) -> list[tuple[int, int]]:
        return [(row, column) for row, column in np.argwhere(self.map == mark).tolist()]


def distance(here: tuple[int, int], there: tuple[int, int]) -> int:
    return abs(here[0] - there[0]) + abs(here[1] - there[1])


def walked(before: tuple[int, int], after: tuple[int, int], direction: int) -> float:
    """Return 1.0 for a cell walked in a direction, -1.0 for one back, -0.5 for one aside, 0.0 for none."""
    along = sum((b - a) * step for a, b, step in zip(before, after, MOVES[direction], strict=True))
    return float(along) if along or before == after else -0.5
