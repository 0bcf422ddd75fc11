"""`PettingZooEnv` wraps turn-based (AEC) games of PettingZoo, `ParallelPettingZooEnv` parallel ones.

Each steps the game's own interface, without PettingZoo's conversions. `pettingzoo_base` has the spaces and masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from menv.base_env import ALL, AgentId
from menv.env_calls import returned
from menv.errors import ContractError
from menv.multi_agent_env import AgentDict, StepDicts
from menv.wrappers.pettingzoo_base import (
    MASK,
    PettingZooBase,
    observer,
    parallel_stepper,
    state_owner,
    without_order_checks,
)

_MAX_DEAD_STEPS = 100_000

_Turn: TypeAlias = tuple[Any, Any, bool, bool, Any]
"""What PettingZoo's `last` returns: observation, reward, terminated, truncated and info of the selected agent."""


class PettingZooEnv(PettingZooBase):
    """A turn-based PettingZoo environment (`AECEnv`) as a `MultiAgentEnv`.

        register_env("tictactoe", lambda context: PettingZooEnv(tictactoe_v3.env()))

    - `obs` holds the one agent whose turn it is. Its reward is the sum since its own last turn, which PettingZoo keeps
      until the turn. A `reset` of a running episode drops sums that are still kept.
    - Dead steps are hidden. A dead agent gets its final observation, reward and flags in the env step in which
      PettingZoo gives it its dead turn: most games do so at once. An agent that the game drops without a turn gets no
      observation, and is terminated unless its truncation flag is set.
    - `"__all__"` is set in the step after which no agent is left: truncated if one that ended in it was, otherwise
      terminated.
    - An agent that dies and returns in the same step starts again in an empty env step (`step({})`).
    - A mask in the observation stays there. Masks in `infos` are added to the observation:
      `{"observation": ..., "action_mask": ...}`. The first reset shows whether there are any; without a mask at some
      turn, an agent may choose any action then.

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
        self._state = state_owner(env)
        self._step = without_order_checks(env).step
        self._observe = observer(env)
        # The wrappers around the state check nothing in the step of a dead agent.
        self._dead_step = self._step if self._state is None else self._state.step
        # The agent that acts next; None before the first reset and after the end.
        self._selected: AgentId | None = None
        # The game's agents after the last step, and the agents that were reported as ended and did not return.
        self._known_agents: list[AgentId] = []
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
        self._reset_env(seed, options)
        game = self._state or self.env
        if not hasattr(game, "terminations"):
            raise ContractError(
                f"PettingZooEnv.reset: {self._game} has no `terminations`, expected PettingZoo 1.24 or later; split "
                "its `dones` into terminations and truncations"
            )
        self._running, self._selected = True, None
        self._known_agents = list(game.agents)
        self._ended.clear()
        self._check_infos("reset", game.infos)
        self._find_masks(game.infos.values())
        obs, _, terminateds, _, infos = self._advance()
        # Agents that are dead from the start are left out; an episode that is over from the start ends in `step({})`.
        self._running = True
        return {agent: value for agent, value in obs.items() if agent not in terminateds}, infos

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Let the selected agent act.

        Args:
            action_dict: `{agent: action}` of the agent that the last `obs` named; empty if it named none.

        Raises:
            CallOrderError: No episode is running.
            ContractError: The action is another agent's, or the game broke PettingZoo's rules.
        """
        agent = self._selected
        if agent is None or len(action_dict) != 1 or agent not in action_dict:
            self._check_answers([] if agent is None else [agent], action_dict)
        if agent is not None:
            self._step(action_dict[agent])
        return self._advance()

    def _advance(self) -> StepDicts:
        """Take the dead agents' turns until a living agent is selected, and return the five dicts."""
        out: StepDicts = ({}, {}, {}, {}, {})
        game = self._state or self.env
        for _ in range(_MAX_DEAD_STEPS):
            if not game.agents or (
                self._ended and all(agent in self._ended and _is_dead(game, agent) for agent in game.agents)
            ):
                break
            agent = game.agent_selection
            turn = self._turn_of(agent)
            _, _, terminated, truncated, _ = turn
            if not (terminated or truncated):
                self._end_dropped_agents(out)
                self._ended.discard(agent)
                # An agent that ended in this step acts after an empty one.
                self._selected = None if agent in out[2] else agent
                if self._selected is not None:
                    self._record(agent, turn, out)
                out[2][ALL] = out[3][ALL] = False
                return out
            if agent not in self._ended:
                self._record(agent, turn, out)
                self._set_ended(agent, terminated, truncated, out)
            self._dead_step(None)
        else:
            raise ContractError(
                self._error_text(f"only dead agents were selected in {_MAX_DEAD_STEPS} steps")
            )
        self._end_dropped_agents(out)
        self._running, self._selected = False, None
        truncated = any(out[3].values())
        out[2][ALL], out[3][ALL] = not truncated, truncated
        return out

    def _turn_of(self, agent: AgentId) -> _Turn:
        state = self._state
        try:
            if state is None:
                obs, reward, terminated, truncated, info = self.env.last()
                return obs, reward, terminated, truncated, info
            terminated, truncated = state.terminations[agent], state.truncations[agent]
            reward, info = state._cumulative_rewards[agent], state.infos[agent]
        except KeyError as error:
            raise ContractError(self._error_text(f"selected {agent!r}, which is not in its dicts")) from error
        return self._observe(agent), reward, terminated, truncated, info

    def _record(self, agent: AgentId, turn: _Turn, out: StepDicts) -> None:
        obs, reward, _, _, info = turn
        if self._uses_masks or MASK in info:
            obs = self._masked_obs(agent, obs, info)
        out[0][agent], out[1][agent], out[4][agent] = obs, reward, dict(info)

    def _set_ended(self, agent: AgentId, terminated: object, truncated: object, out: StepDicts) -> None:
        self._ended.add(agent)
        out[2][agent] = bool(terminated)
        out[3][agent] = bool(truncated)

    def _end_dropped_agents(self, out: StepDicts) -> None:
        """End the agents that the game has dropped without a dead turn."""
        game = self._state or self.env
        if game.agents == self._known_agents:
            return
        agents = list(game.agents)
        for agent in self._known_agents:
            if agent in agents or agent in self._ended:
                continue
            reward = getattr(game, "_cumulative_rewards", {}).get(agent, 0.0)
            if reward:
                out[1][agent] = reward
            truncated = bool(game.truncations.get(agent))
            self._set_ended(agent, game.terminations.get(agent) or not truncated, truncated, out)
        self._known_agents = agents

    def _error_text(self, what: str) -> str:
        return (
            f"PettingZooEnv.step: {self._game} {what}, expected a living agent in agent_selection or an empty "
            "`agents`; run PettingZoo's api_test on it"
        )


def _is_dead(game: Any, agent: AgentId) -> bool:
    return bool(game.terminations.get(agent) or game.truncations.get(agent))


_PARTS = ("obs", "rewards", "terminations", "truncations", "infos")
_FIX = "return them keyed by agent, as PettingZoo 1.24 and later do"


class ParallelPettingZooEnv(PettingZooBase):
    """A PettingZoo environment whose agents act at the same time (`ParallelEnv`) as a `MultiAgentEnv`.

        register_env("spread", lambda context: ParallelPettingZooEnv(simple_spread_v3.parallel_env()))

    - `obs` holds the living agents and, with their flags set, the agents that died in this step.
    - A dead agent never acts again, also if the game keeps it among its agents. Agents that the game drops without a
      flag are terminated.
    - `"__all__"` is set in the step after which no agent is left: truncated if one that ended in it was, otherwise
      terminated.
    - A mask in the observation stays there. Masks in `infos` are added to the observation:
      `{"observation": ..., "action_mask": ...}`. The first reset shows whether there are any; without a mask at some
      step, an agent may choose any action then.

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
        self._acting: AgentDict = {}
        self._ended: set[AgentId] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode; all living agents are observed.

        Raises:
            ContractError: The game takes no seed or no options, or is of an older PettingZoo.
        """
        given, infos = returned(
            self._reset_env(seed, options), 2, f"ParallelPettingZooEnv.reset: {self._game}", "(obs, infos)",
            "return both, as PettingZoo 1.24 and later do",
        )  # fmt: skip
        self._running = True
        self._ended.clear()
        self.agents = list(self.env.agents)
        self._check_infos("reset", infos)
        self._find_masks(infos.values())
        obs = {agent: given[agent] for agent in self.agents if agent in given}
        self._acting = dict(obs)
        return self._with_masks(obs, infos), _infos_of(obs, infos)

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Let all living agents act.

        Args:
            action_dict: One action for each living agent in the last `obs`.

        Raises:
            CallOrderError: No episode is running.
            ContractError: The actions are not exactly the ones of these agents, or the game broke PettingZoo's rules.
        """
        if not self._running or action_dict.keys() != self._acting.keys():
            self._check_answers(self._acting, action_dict)
        if not self.agents:
            return self._end_episode(({}, {}, {}, {}, {}))
        where, expected = f"ParallelPettingZooEnv.step: {self._game}", f"five dicts ({', '.join(_PARTS)})"
        result = returned(self._step(dict(action_dict)), 5, where, expected, _FIX)
        obs, rewards, terminations, truncations, infos = result
        try:
            died = any(terminations.values()) or any(truncations.values())
            if None in infos.values():
                self._check_infos("step", infos)
        except AttributeError as error:
            kinds = ", ".join(
                f"{name} is {type(part).__name__}" for name, part in zip(_PARTS, result, strict=True)
            )
            raise ContractError(f"{where}: {kinds}, expected {expected}; {_FIX}") from error
        if died or obs.keys() != self._acting.keys() or len(self.env.agents) != len(self.agents):
            return self._step_with_changes(obs, rewards, terminations, truncations, infos)
        return (
            self._with_masks({**obs}, infos),
            {**rewards},
            {**terminations, ALL: False},
            {**truncations, ALL: False},
            _infos_of(obs, infos),
        )

    def _step_with_changes(
        self, given: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any
    ) -> StepDicts:
        flagged = dict.fromkeys(
            agent for flags in (terminations, truncations) for agent, flag in flags.items() if flag
        )
        living = [agent for agent in self.env.agents if agent not in flagged]
        alive = set(living)
        self._ended -= alive
        gone = [agent for agent in self.agents if agent not in alive]
        # New agents may be dead before they act; reported ends are not reported again.
        gone += [agent for agent in flagged if agent not in self.agents and agent not in self._ended]
        self._ended.update(gone)
        order = [agent for agent in given if agent in alive or agent in gone]
        obs = {agent: given[agent] for agent in order}
        terminateds = {agent: bool(terminations.get(agent)) for agent in [*living, *gone]}
        truncateds = {agent: bool(truncations.get(agent)) for agent in [*living, *gone]}
        for agent in gone:
            # Dropped without a flag.
            terminateds[agent] = terminateds[agent] or not truncateds[agent]
        self.agents = living
        self._acting = {agent: value for agent, value in obs.items() if agent in alive}
        out = (self._with_masks(obs, infos), {**rewards}, terminateds, truncateds, _infos_of(obs, infos))
        if not living:
            return self._end_episode(out)
        terminateds[ALL] = truncateds[ALL] = False
        return out

    def _end_episode(self, out: StepDicts) -> StepDicts:
        self._running = False
        self._acting = {}
        out[3][ALL] = any(out[3].values())
        out[2][ALL] = not out[3][ALL]
        return out

    def _with_masks(self, obs: AgentDict, infos: Mapping[Any, Any]) -> AgentDict:
        if self._uses_masks or any(MASK in info for info in infos.values() if info):
            return {
                agent: self._masked_obs(agent, value, infos.get(agent) or {}) for agent, value in obs.items()
            }
        return obs


def _infos_of(obs: AgentDict, infos: Mapping[Any, Any]) -> AgentDict:
    return {agent: dict(infos[agent]) for agent in obs if agent in infos}
