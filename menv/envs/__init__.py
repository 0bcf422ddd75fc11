"""Small environments for examples, tests and benchmarks.

Begin with `two_step_game` or `tictactoe`. Each name is imported when it is first used, so that importing the package
stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.envs.independent_copies import make_multi_agent as make_multi_agent
    from menv.envs.random_multi_agent import RandomMultiAgentEnv as RandomMultiAgentEnv
    from menv.envs.rock_paper_scissors import AlwaysSame as AlwaysSame
    from menv.envs.rock_paper_scissors import BeatLastMove as BeatLastMove
    from menv.envs.rock_paper_scissors import RockPaperScissors as RockPaperScissors
    from menv.envs.tictactoe import TicTacToe as TicTacToe
    from menv.envs.traffic import MultiAgentTrafficEnv as MultiAgentTrafficEnv
    from menv.envs.two_step_game import TwoStepGame as TwoStepGame

__all__, __getattr__, __dir__ = lazy_names(__name__)
