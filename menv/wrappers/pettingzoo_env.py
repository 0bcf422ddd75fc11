"""`PettingZooEnv`: a game of PettingZoo's AEC interface, in which one agent acts at a time.

Users wrap their game in it and pass it on like any `MultiAgentEnv`. `pettingzoo_base` has the spaces and
masks. Nothing here knows the parallel interface; such a game goes into `ParallelPettingZooEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from menv.base_env import ALL, AgentId
from menv.errors import CallOrderError, ContractError
from menv.multi_agent_env import AgentDict, StepDicts
from menv.spaces import how_many
from menv.wrappers.pettingzoo_base import (
    MASK,
    PettingZooBase,
    check_answers,
    inside_order_checks,
    observer,
    parallel_stepper,
    state_holder,
)

_MOST_DEAD_STEPS = 100_000


class _Turn(NamedTuple):
    """The selected agent's view, as returned by PettingZoo's `last`."""

    obs: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: Any


class PettingZooEnv(PettingZooBase):
    """A turn-based PettingZoo environment (`AECEnv`) as a `MultiAgentEnv`.

        register_env("tictactoe", lambda context: PettingZooEnv(tictactoe_v3.env()))

    - `obs` holds the one agent whose turn it is, and its reward is what it earned since its own last turn.
      PettingZoo keeps that sum until the turn comes; what it still keeps when a running episode is cut short by
      `reset` is paid to nobody.
    - Dead steps are hidden. A dead agent gets its final observation, reward and flags in the env step in which
      PettingZoo gives it its dead turn: most games do so at once. One that is gone without a turn gets no
      observation, and counts as terminated if no flag says otherwise.
    - `"__all__"` is set in the step after which no agent is left: truncated if one that ended in it was, otherwise
      terminated.
    - Who dies and is back in the same step begins its new life in an empty env step (`step({})`).
    - A mask stays in the observation where the game puts it. Masks in `infos` are put beside the observation:
      `{"observation": ..., "action_mask": ...}`. Whether there are any is seen at the first reset; an agent that
      has none at some turn may do anything then.

    Args:
        env: The PettingZoo environment. Its own dicts are never changed.
        action_mask_from_infos: True takes masks from `infos` from the start, False leaves them there; by default
            the first reset decides, and a mask that turns up later is an error.

    Raises:
        ConfigError: `env` is of the other kind, or no PettingZoo environment.

    Attributes:
        env: The PettingZoo environment.
    """

    interface = "AEC"

    def __init__(self, env: Any, action_mask_from_infos: bool | None = None) -> None:
        super().__init__(env, action_mask_from_infos)
        self._state = state_holder(env)
        self._step = inside_order_checks(env).step
        self._observe = observer(env)
        # The wrappers around the state have nothing to check in the step of a dead agent.
        self._dead_step = self._step if self._state is None else self._state.step
        # Who acts next: None before the first reset and after the end.
        self._selected: AgentId | None = None
        self._running = False
        # The game's agents at the last look, and the agents whose end was reported and who did not return.
        self._roll: list[AgentId] = []
        self._ended: set[AgentId] = set()

    @property
    def agents(self) -> list[Any]:  # type: ignore[override]
        """The agents that are alive, in PettingZoo's order."""
        if not self._running:
            return []
        game = self._state or self.env
        return [agent for agent in game.agents if not _is_dead(game, agent)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode; the agent that acts first is observed.

        Raises:
            ContractError: The game takes no seed or no options, has infos that are no dicts, or is of an older
                PettingZoo.
        """
        self._reset_game(seed, options)
        game = self._state or self.env
        if not hasattr(game, "terminations"):
            raise ContractError(
                f"PettingZooEnv.reset: {self._game} has no `terminations`, expected PettingZoo 1.24 or later; split "
                "its `dones` into terminations and truncations"
            )
        self._running, self._selected = True, None
        self._roll = list(game.agents)
        self._ended.clear()
        self._check_infos("reset", game.infos)
        self._look_for_masks(game.infos.values())
        obs, _, terminateds, _, infos = self._go_on()
        # An agent that is dead from the start never lived; an episode that is over from the start ends in `step({})`.
        self._running = True
        return {agent: value for agent, value in obs.items() if agent not in terminateds}, infos

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Let the selected agent act.

        Args:
            action_dict: `{agent: action}` of the agent that the last `obs` named; empty if it named none.

        Raises:
            CallOrderError: The episode is over, or never began.
            ContractError: Somebody else was answered, or the game broke PettingZoo's rules.
        """
        agent = self._selected
        if agent is None or len(action_dict) != 1 or agent not in action_dict:
            self._check_answer(action_dict)
            return self._go_on()
        self._step(action_dict[agent])
        state = self._state
        if state is None or state.agents != self._roll:
            return self._go_on()
        try:
            agent = state.agent_selection
            if state.terminations[agent] or state.truncations[agent]:
                return self._go_on()
            reward, info = state._cumulative_rewards[agent], state.infos[agent]
        except (KeyError, AttributeError):
            return self._go_on()
        if self._ended:
            self._ended.discard(agent)
        self._selected = agent
        obs = self._observe(agent)
        if self._masked or MASK in info:
            obs = self._masked_obs(agent, obs, info)
        return {agent: obs}, {agent: reward}, {ALL: False}, {ALL: False}, {agent: dict(info)}

    def _go_on(self) -> StepDicts:
        """Take the dead agents' turns until a living one is selected, and tell what happened."""
        told: StepDicts = ({}, {}, {}, {}, {})
        game = self._state or self.env
        for _ in range(_MOST_DEAD_STEPS):
            if all(agent in self._ended and _is_dead(game, agent) for agent in game.agents):
                break
            agent = game.agent_selection
            turn = self._turn_of(agent)
            if not (turn.terminated or turn.truncated):
                self._select(agent, turn, told)
                return told
            if agent not in self._ended:
                self._note(agent, turn, told)
                self._end(agent, turn.terminated, turn.truncated, told)
            self._dead_step(None)
        else:
            raise ContractError(self._says(f"only dead agents were selected in {_MOST_DEAD_STEPS} steps"))
        self._take_leave(told)
        self._running, self._selected = False, None
        truncated = any(told[3].values())
        told[2][ALL], told[3][ALL] = not truncated, truncated
        return told

    def _select(self, agent: AgentId, turn: _Turn, told: StepDicts) -> None:
        """Record that a living agent acts next; in the next step if it ended in this one."""
        self._take_leave(told)
        self._ended.discard(agent)
        if agent in told[2]:
            self._selected = None
        else:
            self._selected = agent
            self._note(agent, turn, told)
        told[2][ALL] = told[3][ALL] = False

    def _turn_of(self, agent: AgentId) -> _Turn:
        state = self._state
        try:
            if state is None:
                return _Turn(*self.env.last())
            dead = state.terminations[agent], state.truncations[agent]
            reward, info = state._cumulative_rewards[agent], state.infos[agent]
        except KeyError as error:
            raise ContractError(self._says(f"selected {agent!r}, of which it has no record")) from error
        return _Turn(self._observe(agent), reward, *dead, info)

    def _note(self, agent: AgentId, turn: _Turn, told: StepDicts) -> None:
        obs = turn.obs
        if self._masked or MASK in turn.info:
            obs = self._masked_obs(agent, obs, turn.info)
        told[0][agent], told[1][agent], told[4][agent] = obs, turn.reward, dict(turn.info)

    def _end(self, agent: AgentId, terminated: Any, truncated: Any, told: StepDicts) -> None:
        self._ended.add(agent)
        told[2][agent] = bool(terminated)
        told[3][agent] = bool(truncated)

    def _take_leave(self, told: StepDicts) -> None:
        """End the agents that the game has dropped without a dead turn, and look at the roll again."""
        game = self._state or self.env
        agents = list(game.agents)
        for agent in self._roll:
            if agent in agents or agent in self._ended:
                continue
            reward = getattr(game, "_cumulative_rewards", {}).get(agent, 0.0)
            if reward:
                told[1][agent] = reward
            truncated = bool(game.truncations.get(agent))
            self._end(agent, game.terminations.get(agent) or not truncated, truncated, told)
        self._roll = agents

    def _check_answer(self, action_dict: AgentDict) -> None:
        if not self._running:
            raise CallOrderError(
                "PettingZooEnv.step: no episode is running, expected reset first and again after "
                '"__all__"; call reset'
            )
        check_answers("PettingZooEnv.step", [] if self._selected is None else [self._selected], action_dict)

    def _says(self, what: str) -> str:
        return (
            f"PettingZooEnv.step: {self._game} {what}, expected a living agent in agent_selection or an empty "
            "`agents`; run PettingZoo's api_test on it"
        )


def _is_dead(game: Any, agent: AgentId) -> bool:
    return bool(game.terminations.get(agent) or game.truncations.get(agent))


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
        # New agents may be dead before they act; reported ends are not reported again.
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
