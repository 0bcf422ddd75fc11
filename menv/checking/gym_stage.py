"""A `gymnasium.Env` as a stage: one agent, who always waits.

`menv.checking.subject` makes one for each copy that is played.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.base_env import SINGLE_AGENT
from menv.checking.report import Broken, Report
from menv.checking.stage import Key, SpacePair, Stage, Turn, check_pair
from menv.checking.values import check_flag, check_info, check_mask, check_mask_space, check_obs, check_reward
from menv.env_calls import many_agents

ONLY: Key = (0, SINGLE_AGENT)


class GymStage(Stage):
    """Plays one gymnasium environment."""

    def __init__(self, env: Any, report: Report) -> None:
        super().__init__(env, report)
        self._removed: list[tuple[Any, Any]] = []
        if _is_passive(self.env):
            self.env = env.env
        layer: Any = self.env
        while isinstance(layer, gym.Wrapper):
            if _is_passive(layer.env):
                checker: Any = layer.env
                self._removed.append((layer, checker))
                layer.env = checker.env
            layer = layer.env

    def release(self) -> None:
        for layer, checker in self._removed:
            layer.env = checker

    def check_spaces(self) -> None:
        self._check_one_agent()
        self.find_spaces(lambda: self.read("observation_space") is None or self.read("action_space") is None)
        obs_space, action_space = self.read("observation_space"), self.read("action_space")
        check_pair(self.report, "", obs_space, action_space)
        check_mask_space(self.report, "", obs_space, action_space)
        self.check_signature(self.env.reset)
        if self.takes_seed:
            self.check_signature(self.env.unwrapped.reset)

    def spaces(self, key: Key) -> SpacePair:
        return self.env.observation_space, self.env.action_space

    def reset(self, seed: int | None) -> Turn:
        result = self.call(
            "reset", code="ME091", **({"seed": seed, "options": None} if self.takes_seed else {})
        )
        obs, info = self.require_pair(result)
        self._check_one_agent(obs)
        check_info(self.report, self.env_steps, "reset: ", info, obs)
        return self._turn(obs, info, False)

    def step(self, actions: dict[Key, Any]) -> Turn:
        self.env_steps += 1
        obs, reward, terminated, truncated, info = self.require_five(
            self.call("step", actions[ONLY], code="ME090")
        )
        check_reward(self.report, self.env_steps, "", reward)
        flags = (
            check_flag(self.report, self.env_steps, "terminated ", terminated),
            check_flag(self.report, self.env_steps, "truncated ", truncated),
        )
        check_info(self.report, self.env_steps, "", info, obs)
        over = any(flags)
        self.episodes += over
        turn = self._turn(obs, info, over)
        turn.rewards, turn.flags, turn.over = reward, flags, over
        return turn

    def _check_one_agent(self, obs: Any = None) -> None:
        """Refuse a class of several agents.

        Raises:
            Broken: It is one.
        """
        why = many_agents(self.env, obs)
        if why is not None:
            raise Broken("ME016", f"{why}, expected one agent", self.env_steps)

    def _turn(self, obs: Any, info: Any, over: bool) -> Turn:
        obs_space, action_space = self.spaces(ONLY)
        check_obs(self.report, self.env_steps, "", obs_space, obs)
        if not over:
            check_mask(self.report, self.env_steps, "", obs, action_space)
        return Turn({} if over else {ONLY: obs}, {ONLY: obs}, infos={ONLY: info})


def _is_passive(env: Any) -> bool:
    """Return whether a layer is gymnasium's own checker, which would say some of the same again."""
    return isinstance(env, gym.Wrapper) and type(env).__name__ == "PassiveEnvChecker"
