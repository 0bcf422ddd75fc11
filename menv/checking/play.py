"""Playing on a stage: once at length with every check on, and in short repeatable pieces.

`menv.checking.check` plays at length, the probes of seeds and ownership play pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from menv.adapters.silence import MAX_EMPTY_STEPS
from menv.checking.actions import Actor
from menv.checking.buffers import Buffers
from menv.checking.report import Broken
from menv.checking.stage import Stage, Turn
from menv.checking.transcript import Entry, entry_of
from menv.checking.values import usable_mask

During: TypeAlias = Callable[[Turn], AbstractContextManager[Any]]
"""Does something to a turn, and undoes it after the step that answers it."""

EPISODES = 3
EPISODE_STEPS = 40
"""Usual length of a piece: so many episodes, each cut after so many env steps."""


def play_at_length(stage: Stage, actor: Actor, seed: int, env_steps: int) -> None:
    """Play for `env_steps` env steps, episode after episode; only the first reset is given a seed.

    Raises:
        Broken: It cannot be played on.
    """
    buffers = Buffers(stage.report)
    turn = stage.reset(seed)
    # Env steps without an action are counted to their end: the count is what is checked.
    while stage.env_steps < env_steps or (stage.idle and stage.env_steps <= env_steps + MAX_EMPTY_STEPS):
        buffers.keep(turn)
        turn = stage.reset(None) if turn.over else step(stage, actor, turn)
        buffers.compare(stage.env_steps)
    stage.finish()
    if not stage.episodes:
        stage.report.add("ME049", f"no episode ended within {stage.env_steps} env steps")


def step(stage: Stage, actor: Actor, turn: Turn) -> Turn:
    """Answer all who wait.

    Raises:
        Broken: The environment cannot be played on.
    """
    try:
        return stage.step(actor.answer(stage, turn))
    except Broken as broken:
        masked = any(usable_mask(obs, stage.spaces(key)[1]) is not None for key, obs in turn.waiting.items())
        if broken.code == "ME090" and masked and actor.is_random:
            broken.code = "ME053"
            broken.message = f"an action that the mask allows was taken and {broken.message}"
        raise


def undisturbed(turn: Turn) -> AbstractContextManager[Any]:
    """Do nothing to a turn."""
    return nullcontext()


def piece(
    stage: Stage,
    actor: Actor,
    seed: int | None,
    length: tuple[int, int],
    during: During = undisturbed,
) -> Iterator[Entry]:
    """Yield what is seen in a few short episodes; a crash ends the piece with a last entry.

    Args:
        stage: The environment.
        actor: Answers.
        seed: Of the first episode, the next one gets the next; None gives none.
        length: How many episodes, and after how many env steps each is cut.
        during: Surrounds each step with something done to the turn that is answered.
    """
    start = stage.env_steps
    episodes, steps = length
    try:
        for episode in range(episodes):
            turn = stage.reset(None if seed is None else seed + episode)
            begin = stage.env_steps
            yield entry_of(turn, stage.env_steps - start)
            while not turn.over and stage.env_steps - begin < steps:
                answers = actor.answer(stage, turn)
                with during(turn):
                    turn = stage.step(answers)
                    entry = entry_of(turn, stage.env_steps - start)
                yield entry
    except Broken as broken:
        yield Entry(stage.env_steps - start, None, None, broken=broken)
