"""Games of PettingZoo are recorded through menv's wrappers of them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv, RecordEpisodes
from tests.wrappers_pettingzoo.games import AS_THEY_WARN

pytestmark = AS_THEY_WARN


def pictures_in(path: Path) -> int:
    """Return how many pictures a file holds; the same ones one after the other are one that is seen longer."""
    times = []
    with Image.open(path) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            times.append(image.info["duration"])
    return int(sum(times) // min(times))


def test_a_game_with_turns_is_recorded_to_its_last_move(tmp_path: Path) -> None:
    from pettingzoo.classic import tictactoe_v3

    env = RecordEpisodes(PettingZooEnv(tictactoe_v3.env(render_mode="rgb_array")), tmp_path)
    obs, _ = env.reset(seed=0)
    for move in (0, 3, 1, 4, 2):
        (player,) = obs
        obs = env.step({player: move})[0]
    assert pictures_in(tmp_path / "episode-000000.gif") == 6


def test_a_game_in_which_all_act_is_recorded(tmp_path: Path) -> None:
    from mpe2 import simple_spread_v3

    game = simple_spread_v3.parallel_env(max_cycles=5, render_mode="rgb_array")
    env = RecordEpisodes(ParallelPettingZooEnv(game), tmp_path)
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        obs = env.step({agent: 1 + place for place, agent in enumerate(obs)})[0]
    assert pictures_in(tmp_path / "episode-000000.gif") == 6
