"""The runner of a `MultiAgentEnv`, and the agent lifecycles that it shares with the runner of a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from menv.adapters.validation import MAX_EMPTY_STEPS
from menv.base_env import ALL, COMMON, AgentId
from menv.checking.codes import Broken, FindingCollector
from menv.checking.env_runner import (
    EnvRunner,
    Key,
    RunnerStep,
    SpacePair,
    check_pair,
    describe,
    listed_agents,
)
from menv.checking.values import check_flag, check_info, check_mask, check_mask_space, check_obs, check_reward
from menv.spaces import how_many

_PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos")


class AgentLifecycles:
    """Checks which agents of one sub-environment appear, act and end.

    Attributes:
        alive: Agents whose episode has begun and not ended.
        empty_steps: Env steps and resets in a row in which no agent acted; episodes may end in between.
    """

    def __init__(
        self,
        collector: FindingCollector,
        space_of: Callable[[AgentId], SpacePair],
        possible: frozenset[AgentId],
        where: str = "",
    ) -> None:
        self._collector = collector
        self._space_of = space_of
        self._possible = possible
        self._where = where
        # Two ids with the same text are meant to be one agent.
        self._ids: dict[str, AgentId] = {str(agent): agent for agent in possible}
        self.alive: set[AgentId] = set()
        self.empty_steps = 0
        self._ended: set[AgentId] = set()
        self._unknown: dict[AgentId, tuple[str, int]] = {}

    @property
    def all_ended(self) -> bool:
        """Whether agents appeared in this episode and all have ended."""
        return bool(self._ended) and not self.alive

    def begin(self, obs: Any, infos: Any, step: int) -> dict[AgentId, Any]:
        """Check a reset and return the observations of the agents that act first."""
        self._require_dict("ME012", f"{self._where}the observations of reset are", obs, step)
        self._no_reserved_key(obs, "the observations of reset", step)
        self.finish()
        self.alive, self._ended = set(), set()
        self._unknown.clear()
        self._check_obs(obs, set(), step)
        self._check_infos(infos, obs, set(), step)
        self._count_empty(obs, step)
        return dict(obs)

    def step(self, result: Any, step: int) -> tuple[dict[AgentId, Any], bool]:
        """Check five dicts; return the observations of agents that act next, and whether the episode is over."""
        obs, rewards, terminateds, truncateds, infos = result
        for name, part in zip(_PARTS, result, strict=True):
            self._require_dict("ME021", f"{self._where}{name} is", part, step)
        self._no_reserved_key(obs, "obs", step)
        self._no_reserved_key(rewards, "rewards", step)
        terminated = self._flagged(terminateds, "terminateds", step)
        truncated = self._flagged(truncateds, "truncateds", step)
        over = ALL in terminated or ALL in truncated
        flagged = (terminated | truncated) - {ALL}
        self._check_rewards(rewards, step)
        self._check_obs(obs, flagged if not over else set(obs) | flagged, step)
        self._check_infos(infos, obs, flagged if not over else self.alive | flagged, step)
        self._end_agents(terminated, truncated, obs, step)
        waiting = {} if over else {agent: value for agent, value in obs.items() if agent not in flagged}
        if over:
            self._check_late_end(step)
        else:
            self._count_empty(waiting, step)
        return waiting, over

    def finish(self) -> None:
        """Report rewards and flags for agents that never appeared in the episode."""
        for agent, (what, step) in self._unknown.items():
            known = ", ".join(sorted(map(repr, self._possible))[:8])
            self._collector.add(
                "ME027",
                f"{self._where}{what} {agent!r}, which never appeared in the episode, expected one of {known}",
                step,
            )

    def _flagged(self, flags: dict[AgentId, Any], name: str, step: int) -> set[AgentId]:
        if ALL not in flags:
            raise Broken("ME022", f"{self._where}{name} has no {ALL!r}, expected it in every step", step)
        found = set()
        for agent, flag in flags.items():
            if check_flag(self._collector, step, f"{self._where}{name}[{agent!r}] ", flag):
                found.add(agent)
                if agent != ALL:
                    self._record_unknown(agent, "a flag is set for", step)
        return found

    def _check_rewards(self, rewards: dict[AgentId, Any], step: int) -> None:
        for agent, reward in rewards.items():
            check_reward(self._collector, step, f"{self._where}agent {agent!r}: ", reward)
            if isinstance(reward, int | float) and reward:
                self._record_unknown(agent, f"a reward of {reward} is paid to", step)

    def _record_unknown(self, agent: AgentId, what: str, step: int) -> None:
        if self._possible and agent not in self._possible | self.alive | self._ended:
            self._unknown.setdefault(agent, (what, step))

    def _check_obs(self, obs: dict[AgentId, Any], last: set[AgentId], step: int) -> None:
        """Check observations and start new agents; the observations of `last` are final."""
        for agent, value in obs.items():
            self._unknown.pop(agent, None)
            who = f"{self._where}agent {agent!r}: "
            obs_space, action_space = self._space_of(self._checked_id(agent, who, step))
            check_obs(self._collector, step, who, obs_space, value)
            if agent not in last:
                check_mask(self._collector, step, who, value, action_space)
            if agent in self._ended and agent in last:
                self._collector.add("ME043", f"{who}is shown with its flag set after its end", step)
            elif agent in self._ended:
                self._ended.discard(agent)
                self._collector.add("ME042", f"{who}is asked again after its end", step)
            if agent not in self._ended:
                self.alive.add(agent)

    def _checked_id(self, agent: AgentId, who: str, step: int) -> AgentId:
        first = self._ids.setdefault(str(agent), agent)
        if first != agent:
            message = (
                f"{who}is {type(agent).__name__} here and {type(first).__name__} elsewhere, expected one type"
            )
            self._collector.add("ME048", message, step)
        elif self._possible and agent not in self._possible:
            known = ", ".join(sorted(map(repr, self._possible))[:8])
            self._collector.add("ME047", f"{who}is not in possible_agents ({known})", step)
        return first

    def _check_infos(self, infos: Any, obs: dict[AgentId, Any], last: set[AgentId], step: int) -> None:
        if not isinstance(infos, dict):
            check_info(self._collector, step, f"{self._where}reset: ", infos, None)
            return
        for agent, info in infos.items():
            who = f"{self._where}agent {agent!r}: "
            if agent not in obs and agent not in last and agent != COMMON:
                self._collector.add("ME028", f"{who}has an info and no observation", step)
            check_info(self._collector, step, who, info, obs.get(agent))

    def _end_agents(
        self, terminated: set[AgentId], truncated: set[AgentId], obs: dict[AgentId, Any], step: int
    ) -> None:
        over = ALL in terminated or ALL in truncated
        for agent in sorted(self.alive, key=str):
            own = agent in terminated or agent in truncated
            if not own and not over:
                continue
            for_good = agent in terminated if own else ALL in terminated
            if agent not in obs:
                code, how = ("ME041", "terminated") if for_good else ("ME040", "truncated")
                self._collector.add(
                    code, f"{self._where}agent {agent!r}: is {how} without an observation", step
                )
            self.alive.discard(agent)
            self._ended.add(agent)

    def _check_late_end(self, step: int) -> None:
        if self.empty_steps and not self.alive and self._ended:
            self._collector.add(
                "ME046",
                f"{self._where}{ALL!r} came {self.empty_steps} env steps after the last agent's end",
                step,
            )

    def _count_empty(self, waiting: dict[AgentId, Any], step: int) -> None:
        self.empty_steps = 0 if waiting else self.empty_steps + 1
        if self.empty_steps >= MAX_EMPTY_STEPS:
            code, why = ("ME044", f"all agents ended and {ALL!r} was not set") if self.all_ended else (
                "ME045", "no agent acted"
            )  # fmt: skip
            raise Broken(
                code,
                f"{self._where}{why} for {MAX_EMPTY_STEPS} env steps in a row, expected an end or an agent that acts",
                step - MAX_EMPTY_STEPS + 1,
            )

    def _require_dict(self, code: str, what: str, part: Any, step: int) -> None:
        if not isinstance(part, dict):
            raise Broken(code, f"{what} {type(part).__name__}, expected a dict keyed by agent id", step)

    def _no_reserved_key(self, part: dict[AgentId, Any], name: str, step: int) -> None:
        for reserved in (ALL, COMMON):
            if reserved in part:
                raise Broken(
                    "ME013", f"{self._where}{reserved!r} is among {name}, expected agent ids only", step
                )


def _require_five_dicts(result: Any, step: int) -> Any:
    if isinstance(result, tuple | list) and len(result) == 5:
        return result
    raise Broken(
        "ME020",
        f"step returned {how_many(result)}, expected (obs, rewards, terminateds, truncateds, infos)",
        step,
        "return five dicts; split the old `dones` into terminateds and truncateds",
    )


class MultiAgentRunner(EnvRunner):
    """Plays one multi-agent environment; the keys of its timesteps are `(0, agent_id)`."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self._possible = listed_agents(env)
        self._known: dict[AgentId, SpacePair] = {}
        self._lifecycles = AgentLifecycles(collector, self._space_of, frozenset(self._possible))

    @property
    def idle(self) -> bool:
        return self._lifecycles.empty_steps > 0

    def check_spaces(self) -> None:
        self.find_spaces(lambda: any(self._undeclared(kind) for kind in ("observation", "action")))
        self._possible = listed_agents(self.env)
        self.late_spaces = self.late_spaces or not (self._possible or any(self.declared()))
        for kind in ("observation", "action"):
            self._check_declaration(kind)
        if not self._possible:
            self.collector.add("ME006", "possible_agents is empty, expected all agents that may ever appear")
        for agent in self._possible:
            self._space_of(agent)
        self.check_signature(self.env.reset)

    def _undeclared(self, kind: str) -> bool:
        none = self.read(f"{kind}_spaces") is None and self.read(f"{kind}_space") is None
        return none and not _has_own_method(self.env, kind)

    def _check_declaration(self, kind: str) -> None:
        by_agent, shared = self.read(f"{kind}_spaces"), self.read(f"{kind}_space")
        if self._undeclared(kind):
            raise Broken(
                "ME001",
                f"neither {kind}_spaces nor {kind}_space is declared, expected a space for every agent",
            )
        if (
            by_agent is None
            and shared is not None
            and not isinstance(shared, gym.Space)
            and not callable(shared)
        ):
            raise Broken("ME002", f"{kind}_space is a {type(shared).__name__}, expected a gymnasium.Space")

    def spaces(self, key: Key) -> SpacePair:
        return self._space_of(key[1])

    def _space_of(self, agent: AgentId) -> SpacePair:
        if agent not in self._known:
            who = f"agent {agent!r}: "
            try:
                pair = self.env.get_observation_space(agent), self.env.get_action_space(agent)
            except Exception as error:
                listed = next((known for known in self._known if str(known) == str(agent)), None)
                if listed is not None:
                    return self._known[listed]
                raise Broken("ME003", f"{who}has no space ({describe(error)})", self.env_steps) from error
            check_pair(self.collector, who, *pair)
            check_mask_space(self.collector, who, *pair)
            self._known[agent] = pair
        return self._known[agent]

    def reset(self, seed: int | None) -> RunnerStep:
        obs, infos = self.call_reset(seed)
        waiting = self._lifecycles.begin(obs, infos, self.env_steps)
        shown = _keyed(waiting)
        return RunnerStep(shown, dict(shown), infos=infos if isinstance(infos, dict) else {})

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        given = {agent: action for (_, agent), action in actions.items()}
        mine = dict(given)
        try:
            result = self.call("step", given, code="ME090")
        except Broken as broken:
            if self._lifecycles.all_ended and not mine:
                broken.code = "ME044"
                broken.message = (
                    f"all agents ended, '__all__' was not set, and then step({{}}): {broken.message}"
                )
            raise
        if list(given) != list(mine) or any(given[agent] is not mine[agent] for agent in mine):
            self.collector.add(
                "ME071",
                f"step was given actions for {sorted(map(repr, mine))[:8]} and left {sorted(map(repr, given))[:8]}",
                self.env_steps,
            )
        obs, rewards, terminateds, truncateds, infos = _require_five_dicts(result, self.env_steps)
        waiting, over = self._lifecycles.step((obs, rewards, terminateds, truncateds, infos), self.env_steps)
        self.episodes += over
        return RunnerStep(_keyed(waiting), _keyed(obs), rewards, (terminateds, truncateds), infos, over)

    def finish(self) -> None:
        self._lifecycles.finish()


def _keyed(by_agent: dict[AgentId, Any]) -> dict[Key, Any]:
    return {(0, agent): value for agent, value in by_agent.items()}


def _has_own_method(env: Any, kind: str) -> bool:
    method = getattr(type(env), f"get_{kind}_space", None)
    return getattr(method, "__module__", "menv.multi_agent_env") != "menv.multi_agent_env"
