"""Small environments for examples, tests and benchmarks.

Begin with `two_step_game` or `tictactoe`. Each name is imported when it is first used, so that importing the package
stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from menv._lazy_names import names_on_demand

if TYPE_CHECKING:
    from menv.envs.connect_four import ConnectFour
    from menv.envs.independent_copies import make_multi_agent
    from menv.envs.rock_paper_scissors import AlwaysSame, BeatLastMove, RockPaperScissors
    from menv.envs.stub_envs import NullEnv, RandomMultiAgentEnv
    from menv.envs.three_level_maze import ThreeLevelMaze
    from menv.envs.tictactoe import TicTacToe
    from menv.envs.traffic import MultiAgentTrafficEnv
    from menv.envs.two_step_game import TwoStepGame
    from menv.envs.windy_maze import HierarchicalWindyMaze, WindyMaze

__all__ = [
    "AlwaysSame",
    "BeatLastMove",
    "ConnectFour",
    "HierarchicalWindyMaze",
    "MultiAgentTrafficEnv",
    "NullEnv",
    "RandomMultiAgentEnv",
    "RockPaperScissors",
    "ThreeLevelMaze",
    "TicTacToe",
    "TwoStepGame",
    "WindyMaze",
    "make_multi_agent",
]

_HOMES = {
    "AlwaysSame": "rock_paper_scissors",
    "BeatLastMove": "rock_paper_scissors",
    "ConnectFour": "connect_four",
    "HierarchicalWindyMaze": "windy_maze",
    "MultiAgentTrafficEnv": "traffic",
    "NullEnv": "stub_envs",
    "RandomMultiAgentEnv": "stub_envs",
    "RockPaperScissors": "rock_paper_scissors",
    "ThreeLevelMaze": "three_level_maze",
    "TicTacToe": "tictactoe",
    "TwoStepGame": "two_step_game",
    "WindyMaze": "windy_maze",
    "make_multi_agent": "independent_copies",
}

__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
