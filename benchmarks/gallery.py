"""`make gallery`: runs each example, and puts its curves and a film of its game into docs/assets/gallery.

ARGS="cartpole shoal" runs these alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.playing import Game

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "assets" / "gallery"
SECONDS = {
    "adapt_policy": 5, "card_game": 30, "cartpole": 40, "centralized_critic": 8, "custom_env": 10, "frozen_server": 8,
    "hierarchical": 40, "leduc_poker": 40, "offline_logs": 20, "own_algorithm": 60, "pistonball": 40,
    "policy_mapping": 12, "ppo_and_dqn": 15, "rock_paper_scissors": 15, "self_play": 40, "shared_layers": 8,
    "shoal": 10, "sumo_traffic_lights": 150, "tictactoe": 40, "two_step_game": 8, "two_trainers": 15,
    "vmas_balance": 60, "workers": 15,
}  # fmt: skip
"""How long each example trains."""

FILMS: dict[str, tuple[str, dict[str, str], int]] = {
    "card_game": ("card_game", {"*": "learner"}, 1), "cartpole": ("CartPole-v1", {}, 6),
    "leduc_poker": ("openspiel:leduc_poker", {}, 1), "pistonball": ("small_pistonball", {}, 3),
    "self_play": ("connect_four:ConnectFour", {}, 1), "tictactoe": ("tictactoe", {}, 1),
}  # fmt: skip
"""Examples whose game is filmed: the environment, the policies of agents, and the env steps from picture to picture."""

FONT = "DejaVuSansMono.ttf"
WIDTH, MOST, TEXT = 360, 50, 7
"""Of a film: pixels, pictures, and lines of text."""
INK, PAGE = (29, 31, 36), (255, 255, 255)
DISCS = [(244, 246, 251), (216, 67, 47), (240, 188, 46)]
FRAME = (44, 95, 192)


def run(name: str, seconds: int) -> None:
    """Run an example in a folder of its own, copy the first picture that it writes, and film a game."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--seconds", str(seconds)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True)
        lines = done.stdout.splitlines()
        picture = Path(folder, next(line.split()[-1] for line in lines if line.startswith("wrote ")))
        shutil.copy(picture, PICTURES / f"{name}.png")
        if name in FILMS:
            film(name, picture.parent)
    print(f"{name}, {seconds} s: {lines[-1]}", flush=True)


def film(name: str, run_dir: Path) -> None:
    """Play games with the policies of a run, and write the longest one as an animated GIF."""
    env, policies, every = FILMS[name]
    # Some examples register their environment.
    __import__(name)
    with Game(
        run_dir,
        env=env,
        policies=policies,
        greedy=name not in ("card_game", "leduc_poker"),
        render_mode="rgb_array",
    ) as game:
        frames = max((played(game, every) for _ in range(10 if every == 1 else 1)), key=len)
    durations = [500 if every == 1 else 125] * (len(frames) - 1) + [2000]
    frames = [frame.quantize(32) for frame in frames]
    frames[0].save(
        PICTURES / f"{name}.gif",
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
        optimize=True,
    )


def played(game: Game, every: int) -> list[Any]:
    """Return the pictures of a game."""
    position = game.start()
    frames = [drawn(game, position.picture)]
    while not position.done and len(frames) < MOST:
        steps = position.steps
        position = game.advance(1)
        if position.done or (position.steps > steps and position.steps % every == 0):
            frames.append(drawn(game, position.picture))
    return frames


def drawn(game: Game, picture: str | npt.NDArray[np.uint8] | None) -> Any:
    """Return a position as a picture: the environment's own, its board, or its text."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    if isinstance(picture, np.ndarray):
        image = Image.fromarray(picture)
        return image.resize((WIDTH, round(image.height * WIDTH / image.width)))
    if "board" in game.env.metadata:
        rows, columns = game.env.metadata["board"]
        size = WIDTH // columns
        image = Image.new("RGB", (WIDTH, size * rows), FRAME)
        for at, owner in enumerate(game.env.board):
            left, top = size * (at % columns) + 4, size * (at // columns) + 4
            ImageDraw.Draw(image).ellipse((left, top, left + size - 8, top + size - 8), DISCS[owner])
        return image
    lines = str(picture).strip("\n")
    image = Image.new("RGB", (WIDTH, 30 + 20 * TEXT), PAGE)
    font = ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{FONT}", 13)
    ImageDraw.Draw(image).multiline_text((12, 12), lines, INK, font, spacing=5)
    return image


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "examples"))
    PICTURES.mkdir(parents=True, exist_ok=True)
    for one in sys.argv[1:] or SECONDS:
        run(one, SECONDS[one])
