"""A `gymnasium.vector.VectorEnv` as a stage: batches in, batches out.

`menv.checking.subject` makes one for each copy that is played.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from menv.adapters.gym_vector import DISABLED, SAME_STEP, autoreset_mode
from menv.adapters.vector_infos import by_name
from menv.base_env import SINGLE_AGENT
from menv.checking.actions import draw
from menv.checking.last_obs import LastObs
from menv.checking.report import Broken, Report
from menv.checking.stage import Key, SpacePair, Stage, Turn, check_pair, number_of
from menv.checking.transcript import same
from menv.checking.values import (
    check_info,
    check_mask,
    check_mask_space,
    check_obs,
    check_reward,
    usable_mask,
)
from menv.env_calls import how_many
from menv.errors import ConfigError, ContractError
from menv.nested import own_copy

_STEPS_BEFORE_RESET = 5


class GymVectorStage(Stage):
    """Plays one vectorised gymnasium environment; the keys of its turns are `(index, "agent0")`."""

    def __init__(self, env: Any, report: Report) -> None:
        super().__init__(env, report)
        self._keys: list[Key] = [(index, SINGLE_AGENT) for index in range(number_of(env))]
        self._mode = ""
        self._last_obs = LastObs(report)
        self._tried_sub_env = False

    def check_spaces(self) -> None:
        pair = self.read("single_observation_space"), self.read("single_action_space")
        check_pair(self.report, "single ", *pair)
        check_pair(self.report, "batched ", self.read("observation_space"), self.read("action_space"))
        check_mask_space(self.report, "", *pair)
        if not self._keys:
            raise Broken(
                "ME097", f"num_envs is {self.read('num_envs')!r:.40}, expected an integer of at least 1"
            )
        if not isinstance(self.read("metadata"), dict):
            raise Broken("ME098", "metadata is no dict, expected one with 'autoreset_mode'")
        try:
            self._mode = autoreset_mode(self.env)
        except ConfigError as error:
            raise Broken("ME098", str(error).partition(";")[0]) from error
        self.check_signature(self.env.reset)

    def declared(self) -> Any:
        return [self.read("single_observation_space"), self.read("single_action_space"), len(self._keys)]

    def spaces(self, key: Key) -> SpacePair:
        return self.env.single_observation_space, self.env.single_action_space

    def reset(self, seed: int | None) -> Turn:
        if not self._mode:
            self._mode = autoreset_mode(self.env)
        seeds = {} if seed is None or not self.takes_seed else {"seed": seed}
        obs, infos = self.require_pair(self.call("reset", code="ME091", **seeds))
        check_info(self.report, self.env_steps, "reset: ", self._by_name(infos), None)
        return self._turn(obs, infos)

    def step(self, actions: dict[Key, Any]) -> Turn:
        self.env_steps += 1
        space = self.env.single_action_space
        empty: Any = create_empty_array(space, len(self._keys))
        batch = concatenate(space, [actions[key] for key in self._keys], empty)
        result = self.require_five(self.call("step", batch, code="ME090"))
        obs, rewards, terminations, truncations, infos = result
        self._check_rewards(rewards)
        terminated = self._flags("terminations", terminations)
        truncated = self._flags("truncations", truncations)
        infos = self._by_name(infos)
        check_info(self.report, self.env_steps, "", infos, None)
        done = terminated | truncated
        self.episodes += int(done.sum())
        kept = np.copy(rewards), terminated.copy(), truncated.copy()
        turn = self._turn(obs, infos, done if self._mode != SAME_STEP else None)
        if self._mode == SAME_STEP:
            self._check_finals(turn, done, infos)
        elif self._mode == DISABLED and done.any():
            turn = self._reset_some(done)
        turn.rewards, turn.flags = kept[0], kept[1:]
        return turn

    def _check_finals(self, turn: Turn, done: Any, infos: Any) -> None:
        over, finals = (
            np.flatnonzero(done).tolist(),
            infos.get("final_obs") if isinstance(infos, dict) else None,
        )
        if over and finals is None:
            self.report.add(
                "ME099",
                f"env {over[0]}: is done and infos has no 'final_obs', expected it with SAME_STEP",
                self.env_steps,
            )
        elif over and not self._tried_sub_env:
            self._tried_sub_env = True
            self._try_sub_env()
        # By sub-environment, as gymnasium has them; a batch of a nested space is nobody's buffer.
        known = over if isinstance(finals, np.ndarray | list | tuple) else ()
        self._last_obs.take(self.env_steps, finals, known, list(turn.shown.values()))

    def _try_sub_env(self) -> None:
        """Look for a sub-environment whose reset writes into the observation that its last step returned.

        Where sub-environments live in other processes, as in `AsyncVectorEnv`, each sends the last observation of an
        episode after the reset: it is too late to see what was overwritten.
        """
        inner = self.env.unwrapped
        if getattr(inner, "envs", None) or not getattr(inner, "env_fns", None):
            return
        with suppress(Exception):  # The play itself finds what raises.
            env = inner.env_fns[0]()
            with closing(env):
                rng = np.random.default_rng(0)
                obs, done = env.reset(seed=0)[0], False
                for _ in range(_STEPS_BEFORE_RESET):
                    if not done:
                        action = draw(env.action_space, rng, usable_mask(obs, env.action_space))
                        obs, _, terminated, truncated, _ = env.step(action)
                        done = terminated or truncated
                kept = own_copy(obs)
                env.reset()
            if not same(obs, kept):
                self.report.add(
                    "ME101",
                    "env 0: infos['final_obs'] is overwritten by the reset, expected the last observation of the "
                    "episode, because reset and step of the sub-environment return the same array",
                    self.env_steps,
                )

    def _reset_some(self, done: Any) -> Turn:
        options = {"reset_mask": done}
        obs, infos = self.require_pair(self.call("reset", options=options, code="ME091"))
        return self._turn(obs, infos)

    def _by_name(self, infos: Any) -> Any:
        """Return infos as a dict of arrays, if there is one dict for each sub-environment."""
        with suppress(ContractError):
            return by_name(infos, len(self._keys), "step") if isinstance(infos, list) and infos else infos
        return infos

    def _turn(self, obs: Any, infos: Any, last: Any = None) -> Turn:
        rows = self._rows(obs)
        for key, row in zip(self._keys, rows, strict=True):
            who = f"env {key[0]}: "
            check_obs(self.report, self.env_steps, who, self.env.single_observation_space, row)
            if last is None or not last[key[0]]:
                check_mask(self.report, self.env_steps, who, row, self.env.single_action_space)
        shown = dict(zip(self._keys, rows, strict=True))
        return Turn(shown, dict(shown))

    def _rows(self, obs: Any) -> list[Any]:
        if isinstance(obs, np.ndarray) and isinstance(self.env.single_observation_space, gym.spaces.Box):
            rows = list(obs) if obs.ndim else []
        else:
            try:
                rows = list(iterate(self.env.observation_space, obs))
            except Exception as error:
                raise Broken(
                    "ME097", f"the observations cannot be taken apart: {error}", self.env_steps
                ) from error
        if len(rows) != len(self._keys):
            raise Broken(
                "ME097", f"obs holds {len(rows)} observations, expected {len(self._keys)}", self.env_steps
            )
        return rows

    def _check_rewards(self, rewards: Any) -> None:
        self._require_length("rewards", rewards)
        for key, reward in zip(self._keys, rewards, strict=True):
            check_reward(self.report, self.env_steps, f"env {key[0]}: ", reward)

    def _flags(self, name: str, flags: Any) -> Any:
        """Return [E] flags."""
        self._require_length(name, flags)
        array = np.asarray(flags)
        if array.dtype.kind != "b":
            code = "ME023" if array.dtype.kind in "iuf" else "ME024"
            self.report.add(code, f"{name} are {array.dtype}, expected bool", self.env_steps)
        return array != 0

    def _require_length(self, name: str, part: Any) -> None:
        if np.ndim(part) != 1 or len(part) != len(self._keys):
            got = f"an array of shape {part.shape}" if isinstance(part, np.ndarray) else how_many(part)
            raise Broken("ME097", f"{name} is {got}, expected shape ({len(self._keys)},)", self.env_steps)
