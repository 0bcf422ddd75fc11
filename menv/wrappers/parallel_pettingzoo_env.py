"""`ParallelPettingZooEnv`: a game of PettingZoo's parallel interface, in which all agents act at once.

Users wrap their game in it and pass it on like any `MultiAgentEnv`. `pettingzoo_base` has the spaces and
masks. Nothing here knows turns; a game of the AEC interface goes into `PettingZooEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from menv.base_env import ALL, AgentId
from menv.env_calls import how_many
from menv.errors import CallOrderError, ContractError
from menv.multi_agent_env import AgentDict, StepDicts
from menv.wrappers.pettingzoo_base import MASK, PettingZooBase, check_answers
from menv.wrappers.pettingzoo_state import parallel_stepper

_PARTS = ("obs", "rewards", "terminations", "truncations", "infos")


class ParallelPettingZooEnv(PettingZooBase):
    """A PettingZoo environment whose agents act at the same time (`ParallelEnv`) as a `MultiAgentEnv`.

        register_env("spread", lambda context: ParallelPettingZooEnv(simple_spread_v3.parallel_env()))

    - `obs` holds the living agents and, with their flags set, those that died in this step.
    - A dead agent is never asked again, also if the game keeps it among its agents. One that the game drops without
      a flag counts as terminated, and so does everybody dropped that way when the last ones go.
    - `"__all__"` is set in the step after which no agent is left: truncated if one that ended in it was, otherwise
      terminated.
    - A mask stays in the observation where the game puts it. Masks in `infos` are put beside the observation:
      `{"observation": ..., "action_mask": ...}`. Whether there are any is seen at the first reset; an agent that
      has none at some step may do anything then.

    Args:
        env: The PettingZoo environment. Its own dicts are never changed.
        action_mask_from_infos: True takes masks from `infos` from the start, False leaves them there; by default
            the first reset decides, and a mask that turns up later is an error.

    Raises:
        ConfigError: `env` is of the other kind, or no PettingZoo environment.

    Attributes:
        env: The PettingZoo environment.
        agents: The agents that are alive, in PettingZoo's order.
    """

    interface = "parallel"

    def __init__(self, env: Any, action_mask_from_infos: bool | None = None) -> None:
        super().__init__(env, action_mask_from_infos)
        self._step = parallel_stepper(env)
        self._asked: AgentDict = {}
        self._running = False
        self._ended: set[AgentId] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode; all living agents are observed.

        Raises:
            ContractError: The game takes no seed or no options, or is of an older PettingZoo.
        """
        result = self._reset_game(seed, options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ContractError(
                f"ParallelPettingZooEnv.reset: {self._game} returned {how_many(result)}, expected (obs, infos); return "
                "both, as PettingZoo 1.24 and later do"
            )
        self._running = True
        self._ended.clear()
        self.agents = list(self.env.agents)
        given, infos = result
        self._check_infos("reset", infos)
        self._look_for_masks(infos.values())
        obs = {agent: given[agent] for agent in self.agents if agent in given}
        self._asked = dict(obs)
        return self._with_masks(obs, infos), _infos_of(obs, infos)

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Let all living agents act.

        Args:
            action_dict: One action for each agent that the last `obs` asked.

        Raises:
            CallOrderError: The episode is over, or never began.
            ContractError: Other agents were answered, or the game broke PettingZoo's rules.
        """
        if not self._running or action_dict.keys() != self._asked.keys():
            self._check_answers(action_dict)
        if not self.agents:
            return self._over(({}, {}, {}, {}, {}))
        result = self._step(dict(action_dict))
        try:
            obs, rewards, terminations, truncations, infos = result
            died = any(terminations.values()) or any(truncations.values())
            if None in infos.values():
                self._check_infos("step", infos)
        except (TypeError, ValueError, AttributeError) as error:
            raise ContractError(self._why_unusable(result)) from error
        if died or obs.keys() != self._asked.keys() or len(self.env.agents) != len(self.agents):
            return self._sort_out(obs, rewards, terminations, truncations, infos)
        return (
            self._with_masks({**obs}, infos),
            {**rewards},
            {**terminations, ALL: False},
            {**truncations, ALL: False},
            _infos_of(obs, infos),
        )

    def _sort_out(
        self, given: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any
    ) -> StepDicts:
        flagged = dict.fromkeys(
            agent for flags in (terminations, truncations) for agent, flag in flags.items() if flag
        )
        living = [agent for agent in self.env.agents if agent not in flagged]
        there = set(living)
        self._ended -= there
        gone = [agent for agent in self.agents if agent not in there]
        # New ones may be dead before they ever acted; those told before stay dead however often they are flagged.
        gone += [agent for agent in flagged if agent not in self.agents and agent not in self._ended]
        self._ended.update(gone)
        order = [agent for agent in given if agent in there or agent in gone]
        obs = {agent: given[agent] for agent in order}
        terminateds = {agent: bool(terminations.get(agent)) for agent in [*living, *gone]}
        truncateds = {agent: bool(truncations.get(agent)) for agent in [*living, *gone]}
        for agent in gone:
            # Dropped without a word.
            terminateds[agent] = terminateds[agent] or not truncateds[agent]
        self.agents = living
        self._asked = {agent: value for agent, value in obs.items() if agent in there}
        told = (self._with_masks(obs, infos), {**rewards}, terminateds, truncateds, _infos_of(obs, infos))
        if not living:
            return self._over(told)
        terminateds[ALL] = truncateds[ALL] = False
        return told

    def _over(self, told: StepDicts) -> StepDicts:
        self._running = False
        self._asked = {}
        told[3][ALL] = any(told[3].values())
        told[2][ALL] = not told[3][ALL]
        return told

    def _with_masks(self, obs: AgentDict, infos: Mapping[Any, Any]) -> AgentDict:
        if self._masked or any(MASK in info for info in infos.values() if info):
            return {
                agent: self._masked_obs(agent, value, infos.get(agent) or {}) for agent, value in obs.items()
            }
        return obs

    def _check_answers(self, action_dict: AgentDict) -> None:
        if not self._running:
            raise CallOrderError(
                "ParallelPettingZooEnv.step: no episode is running, expected reset first and again after "
                '"__all__"; call reset'
            )
        check_answers("ParallelPettingZooEnv.step", self._asked, action_dict)

    def _why_unusable(self, result: Any) -> str:
        if not isinstance(result, tuple) or len(result) != 5:
            got = f"returned {how_many(result)}"
        else:
            kinds = [f"{name} is {type(part).__name__}" for name, part in zip(_PARTS, result, strict=True)]
            got = "returned " + ", ".join(kinds)
        return (
            f"ParallelPettingZooEnv.step: {self._game} {got}, expected five dicts ({', '.join(_PARTS)}); return them "
            "keyed by agent, as PettingZoo 1.24 and later do"
        )


def _infos_of(obs: AgentDict, infos: Mapping[Any, Any]) -> AgentDict:
    return {agent: dict(infos[agent]) for agent in obs if agent in infos}
