"""A `menv.VectorEnv` as a stage: every sub-environment waits at every turn.

`menv.checking.subject` makes one for each copy that is played.
"""

from __future__ import annotations

from typing import Any

from menv.base_env import SINGLE_AGENT
from menv.checking.report import Broken, Report
from menv.checking.stage import Key, SpacePair, Stage, Turn, check_pair, number_of
from menv.checking.values import check_flag, check_info, check_mask, check_mask_space, check_obs, check_reward
from menv.env_calls import how_many


class VectorStage(Stage):
    """Plays one VectorEnv; the keys of its turns are `(index, "agent0")`."""

    def __init__(self, env: Any, report: Report) -> None:
        super().__init__(env, report)
        self._keys: list[Key] = [(index, SINGLE_AGENT) for index in range(number_of(env))]

    def check_spaces(self) -> None:
        pair = self.read("observation_space"), self.read("action_space")
        check_pair(self.report, "", *pair)
        check_mask_space(self.report, "", *pair)
        if not self._keys:
            raise Broken(
                "ME097", f"num_envs is {self.read('num_envs')!r:.40}, expected an integer of at least 1"
            )

    def spaces(self, key: Key) -> SpacePair:
        return self.env.observation_space, self.env.action_space

    def reset(self, seed: int | None) -> Turn:
        seeds = {} if seed is None else {"seeds": [seed + key[0] for key in self._keys]}  # type: ignore[operator]
        result = self.require_pair(self.call("vector_reset", code="ME091", **seeds), "vector_reset")
        obs, infos = self._one_each("vector_reset", ("obs", "infos"), result)
        return self._turn(obs, infos)

    def step(self, actions: dict[Key, Any]) -> Turn:
        self.env_steps += 1
        result = self.call("vector_step", [actions[key] for key in self._keys], code="ME090")
        parts = self.require_five(result, "vector_step")
        names = ("obs", "rewards", "terminateds", "truncateds", "infos")
        obs, rewards, terminateds, truncateds, infos = self._one_each("vector_step", names, parts)
        done, flags = [], []
        for index, values in enumerate(zip(rewards, terminateds, truncateds, strict=True)):
            who = f"env {index}: "
            check_reward(self.report, self.env_steps, who, values[0])
            pair = [
                check_flag(self.report, self.env_steps, f"{who}{name} ", flag)
                for name, flag in zip(("terminated", "truncated"), values[1:], strict=True)
            ]
            flags.append(tuple(pair))
            if any(pair):
                done.append(index)
        self.episodes += len(done)
        last = {index: obs[index] for index in done}
        for index in done:
            self._check(index, last[index], infos[index], acting=False)
            obs[index], infos[index] = self.require_pair(
                self.call("reset_at", index, code="ME091"), "reset_at"
            )
        turn = self._turn(obs, infos)
        turn.shown.update({(index, "final"): value for index, value in last.items()})
        turn.rewards, turn.flags = list(rewards), flags
        return turn

    def _turn(self, obs: list[Any], infos: list[Any]) -> Turn:
        for index in range(len(self._keys)):
            self._check(index, obs[index], infos[index], acting=True)
        shown = dict(zip(self._keys, obs, strict=True))
        return Turn(shown, dict(shown), infos=dict(zip(self._keys, infos, strict=True)))

    def _check(self, index: int, obs: Any, info: Any, acting: bool) -> None:
        who = f"env {index}: "
        check_obs(self.report, self.env_steps, who, self.env.observation_space, obs)
        if acting:
            check_mask(self.report, self.env_steps, who, obs, self.env.action_space)
        check_info(self.report, self.env_steps, who, info, obs)

    def _one_each(self, method: str, names: tuple[str, ...], parts: Any) -> list[list[Any]]:
        for name, part in zip(names, parts, strict=True):
            if not hasattr(part, "__len__") or isinstance(part, dict) or len(part) != len(self._keys):
                raise Broken(
                    "ME097",
                    f"{method}: {name} is {how_many(part)}, expected {len(self._keys)}, one for each sub-environment",
                    self.env_steps,
                )
        return [list(part) for part in parts]
