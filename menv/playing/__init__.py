"""Games of policies and people, one move at a time: what `menv watch` and `menv play` show.

Begin with `game.py`: a `Game` steps one environment and asks policies without torch.
"""

from menv.playing.game import Game as Game
from menv.playing.game import Position as Position
