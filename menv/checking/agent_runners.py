"""Runners of environments with agent ids, `MultiAgentEnv` and `BaseEnv`, and the lifecycles of their agents.

What these may return is stated by `menv.adapters`: the runners call its functions, and play a `BaseEnv` through its
adapter. An error that they raise names the code of its finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from menv.adapters.custom import CustomEnvs
from menv.adapters.validation import MAX_EMPTY_STEPS, possible_agents, validate_reset, validate_step
from menv.base_env import ALL, COMMON, AgentId, EnvId, Ready
from menv.checking.codes import Broken, FindingCollector
from menv.checking.runners import EnvRunner, Key, RunnerStep, SpacePair, describe
from menv.checking.values import check_flag, check_info, check_reward
from menv.errors import ContractError, EnvCrashError


class AgentLifecycles:
    """Checks which agents of one sub-environment appear, act and end.

    Attributes:
        alive: Agents whose episode has begun and not ended.
        empty_steps: Env steps and resets in a row in which no agent acted; episodes may end in between.
    """

    def __init__(self, runner: EnvRunner, env_id: EnvId = 0, where: str = "") -> None:
        self._runner = runner
        self._env_id = env_id
        self._where = where
        # Two ids with the same text are meant to be one agent.
        self._ids: dict[str, AgentId] = {str(agent): agent for agent in runner.possible}
        self.alive: set[AgentId] = set()
        self.empty_steps = 0
        self._ended: set[AgentId] = set()
        self._unknown: dict[AgentId, tuple[str, int]] = {}

    @property
    def all_ended(self) -> bool:
        """Whether agents appeared in this episode and all have ended."""
        return bool(self._ended) and not self.alive

    def begin(self, obs: Any, infos: Any) -> dict[AgentId, Any]:
        """Check a reset and return the observations of the agents that act first."""
        validate_reset(obs, infos, self._wrong)
        self._no_common(obs)
        self.finish()
        self.alive, self._ended = set(), set()
        self._unknown.clear()
        self._check_obs(obs, set())
        self._check_infos(infos, obs, set())
        self._count_empty(obs)
        return dict(obs)

    def step(self, result: Any) -> tuple[dict[AgentId, Any], bool]:
        """Check five dicts; return the observations of agents that act next, and whether the episode is over."""
        obs, rewards, terminateds, truncateds, infos = validate_step(result, self._wrong)
        self._no_common(obs, rewards)
        terminated = self._flagged(terminateds, "terminateds")
        truncated = self._flagged(truncateds, "truncateds")
        over = ALL in terminated or ALL in truncated
        flagged = (terminated | truncated) - {ALL}
        for agent, reward in rewards.items():
            check_reward(self._report, f"agent {agent!r}: ", reward)
            if isinstance(reward, int | float) and reward:
                self._record_unknown(agent, f"a reward of {reward} is paid to")
        self._check_obs(obs, flagged if not over else set(obs) | flagged)
        self._check_infos(infos, obs, flagged if not over else self.alive | flagged)
        self._end_agents(terminated, truncated, obs)
        waiting = {} if over else {agent: value for agent, value in obs.items() if agent not in flagged}
        if not over:
            self._count_empty(waiting)
        elif self.empty_steps and self.all_ended:
            self._report("ME046", f"{ALL!r} came {self.empty_steps} env steps after the last agent's end")
        return waiting, over

    def finish(self) -> None:
        """Report rewards and flags for agents that never appeared in the episode."""
        for agent, (what, step) in self._unknown.items():
            known = f"expected one of {self._known}"
            message = f"{self._where}{what} {agent!r}, which never appeared in the episode, {known}"
            self._runner.collector.add("ME027", message, step)

    @property
    def _known(self) -> str:
        return ", ".join(sorted(map(repr, self._runner.possible))[:8])

    def _report(self, code: str, message: str, about: str = "") -> None:
        self._runner.report(code, self._where + message, about)

    def _wrong(self, method: str, got: str, expected: str, fix: str = "", finding: str = "") -> Broken:
        return self._runner.broken(finding, f"{self._where}{method}: {got}, expected {expected}", fix or None)

    def _no_common(self, *parts: Mapping[AgentId, Any]) -> None:
        if any(COMMON in part for part in parts):
            message = f"{self._where}{COMMON!r} is among obs or rewards, expected agent ids only"
            raise self._runner.broken("ME013", message)

    def _flagged(self, flags: dict[AgentId, Any], name: str) -> set[AgentId]:
        found = set()
        for agent, flag in flags.items():
            if check_flag(self._report, f"{name}[{agent!r}]", flag):
                found.add(agent)
                if agent != ALL:
                    self._record_unknown(agent, "a flag is set for")
        return found

    def _record_unknown(self, agent: AgentId, what: str) -> None:
        possible = self._runner.possible
        if possible and agent not in possible | self.alive | self._ended:
            self._unknown.setdefault(agent, (what, self._runner.env_steps))

    def _check_obs(self, obs: dict[AgentId, Any], last: set[AgentId]) -> None:
        """Check observations and start new agents; the observations of `last` are final."""
        for agent, value in obs.items():
            self._unknown.pop(agent, None)
            self._check_id(agent)
            self._runner.check_row((self._env_id, agent), value, acting=agent not in last)
            if agent in self._ended and agent in last:
                self._report("ME043", f"agent {agent!r}: is shown with its flag set after its end")
                continue
            if agent in self._ended:
                self._ended.discard(agent)
                self._report("ME042", f"agent {agent!r}: is asked again after its end")
            self.alive.add(agent)

    def _check_id(self, agent: AgentId) -> None:
        who, first = f"agent {agent!r}: ", self._ids.setdefault(str(agent), agent)
        if first != agent:
            kinds = f"is {type(agent).__name__} here and {type(first).__name__} elsewhere"
            self._report("ME048", f"{who}{kinds}, expected one type")
        elif self._runner.possible and agent not in self._runner.possible:
            self._report("ME047", f"{who}is not in possible_agents ({self._known})")

    def _check_infos(self, infos: Any, obs: dict[AgentId, Any], last: set[AgentId]) -> None:
        for agent, info in infos.items():
            if agent not in obs and agent not in last and agent != COMMON:
                self._report("ME028", f"agent {agent!r}: has an info and no observation")
            check_info(self._report, f"agent {agent!r}: ", info, obs.get(agent))

    def _end_agents(self, terminated: set[AgentId], truncated: set[AgentId], obs: dict[AgentId, Any]) -> None:
        over = ALL in terminated or ALL in truncated
        for agent in sorted(self.alive, key=str):
            own = agent in terminated or agent in truncated
            if not own and not over:
                continue
            for_good = agent in terminated if own else ALL in terminated
            if agent not in obs:
                code, how = ("ME041", "terminated") if for_good else ("ME040", "truncated")
                self._report(code, f"agent {agent!r}: is {how} without an observation")
            self.alive.discard(agent)
            self._ended.add(agent)

    def _count_empty(self, waiting: dict[AgentId, Any]) -> None:
        self.empty_steps = 0 if waiting else self.empty_steps + 1
        if self.empty_steps < MAX_EMPTY_STEPS:
            return
        code, why = ("ME044", f"all agents ended and {ALL!r} was not set") if self.all_ended else (
            "ME045", "no agent acted"
        )  # fmt: skip
        message = f"{why} for {MAX_EMPTY_STEPS} env steps in a row, expected an end or an agent that acts"
        raise Broken(code, self._where + message, max(0, self._runner.env_steps - MAX_EMPTY_STEPS + 1))


class MultiAgentRunner(EnvRunner):
    """Plays one multi-agent environment; the keys of its timesteps are `(0, agent_id)`."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self._known: dict[AgentId, SpacePair] = {}
        self._lifecycles = self._listed()

    def _listed(self) -> AgentLifecycles:
        self.possible = _listed_agents(self.env)
        return AgentLifecycles(self)

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self._lifecycles.empty_steps > 0

    def who(self, key: Key) -> str:
        return f"agent {key[1]!r}: "

    def check_spaces(self) -> None:
        self.find_spaces(lambda: any(self._undeclared(kind) for kind in ("observation", "action")))
        self._lifecycles = self._listed()
        self.late_spaces = self.late_spaces or not (self.possible or any(self.declared()))
        for kind in ("observation", "action"):
            self._check_declaration(kind)
        if not self.possible:
            self.collector.add("ME006", "possible_agents is empty, expected all agents that may ever appear")
        for agent in self.possible:
            self.spaces((0, agent))
        self.check_signature(self.env.reset)

    def _undeclared(self, kind: str) -> bool:
        method = getattr(type(self.env), f"get_{kind}_space", None)
        own_method = getattr(method, "__module__", "menv.multi_agent_env") != "menv.multi_agent_env"
        return not own_method and self.read(f"{kind}_spaces") is None and self.read(f"{kind}_space") is None

    def _check_declaration(self, kind: str) -> None:
        by_agent, shared = self.read(f"{kind}_spaces"), self.read(f"{kind}_space")
        if self._undeclared(kind):
            message = f"neither {kind}_spaces nor {kind}_space is declared, expected a space for every agent"
            raise Broken("ME001", message)
        if by_agent is None and not (shared is None or isinstance(shared, gym.Space) or callable(shared)):
            raise Broken("ME002", f"{kind}_space is a {type(shared).__name__}, expected a gymnasium.Space")

    def spaces(self, key: Key) -> SpacePair:
        agent = key[1]
        if agent not in self._known:
            try:
                pair = self.env.get_observation_space(agent), self.env.get_action_space(agent)
            except Exception as error:
                listed = next((known for known in self._known if str(known) == str(agent)), None)
                if listed is None:
                    raise self.broken("ME003", f"{self.who(key)}has no space ({describe(error)})") from error
                pair = self._known[listed]
            else:
                self.check_pair(self.who(key), *pair)
            self._known[agent] = pair
        return self._known[agent]

    def reset(self, seed: int | None) -> RunnerStep:
        obs, infos = self.call_reset(seed)
        shown = _keyed(self._lifecycles.begin(obs, infos))
        return RunnerStep(shown, dict(shown), infos=infos)

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        given = {agent: action for (_, agent), action in actions.items()}
        mine = dict(given)
        try:
            result = self.call("step", given, code="ME090")
        except Broken as broken:
            if self._lifecycles.all_ended and not mine:
                why = f"all agents ended, '__all__' was not set, and then step({{}}): {broken.message}"
                raise self.broken("ME044", why) from broken
            raise
        if list(given) != list(mine) or any(given[agent] is not mine[agent] for agent in mine):
            before, after = (sorted(map(repr, agents))[:8] for agents in (mine, given))
            self.report("ME071", f"step was given actions for {before} and left {after}")
        waiting, over = self._lifecycles.step(result)
        self.episodes += over
        obs, rewards, *flags, infos = result
        return RunnerStep(_keyed(waiting), _keyed(obs), rewards, flags, infos, over)

    def finish(self) -> None:
        self._lifecycles.finish()


def _keyed(by_agent: dict[AgentId, Any]) -> dict[Key, Any]:
    return {(0, agent): value for agent, value in by_agent.items()}


def _listed_agents(env: object) -> frozenset[AgentId]:
    """Return `possible_agents`, empty if there is no such attribute."""
    try:
        return possible_agents(env) or frozenset()
    except ContractError as error:
        raise Broken.of(error) from error
    except Exception as error:
        raise Broken("ME014", f"possible_agents raised {describe(error)}") from error


_MAX_EMPTY_POLLS = 1000


class BaseEnvRunner(EnvRunner):
    """Plays one `BaseEnv` through its adapter; the keys of its timesteps are `(env_id, agent_id)`."""

    repeats = False

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self.possible = _listed_agents(env)
        self.env = CustomEnvs(env, watcher=self)
        self._lifecycles: dict[EnvId, AgentLifecycles] = {}
        self._ready: Ready | None = None
        self._empty_polls = 0

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self._empty_polls > 0

    def who(self, key: Key) -> str:
        return f"env {key[0]!r}: agent {key[1]!r}: "

    def check_spaces(self) -> None:
        self.check_pair("", self.read("observation_space"), self.read("action_space"))

    def spaces(self, key: Key) -> SpacePair:
        obs_space, action_space = (
            space.spaces[key[1]] if isinstance(space, gym.spaces.Dict) and key[1] in space.spaces else space
            for space in (self.env.observation_space, self.env.action_space)
        )
        return obs_space, action_space

    def reset(self, seed: int | None) -> RunnerStep:
        # A `BaseEnv` starts its episodes at the first poll.
        return self._poll()

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        assert self._ready is not None
        slots, seats = self._ready.slots, self._ready.seats
        if len(slots):
            answers = [actions[seats[slot]] for slot in slots.tolist()]
            self.call("send_actions", slots, answers, code="ME090")
        return self._poll()

    def close(self) -> None:
        self.env.stop()

    def began(self, env_id: EnvId, obs: Any, infos: Any) -> None:
        """Check the begin of an episode, before the adapter reads it."""
        self._lifecycles[env_id] = AgentLifecycles(self, env_id, f"env {env_id!r}: ")
        self._lifecycles[env_id].begin(obs, infos)

    def stepped(self, env_id: EnvId, result: Any) -> None:
        """Check the five dicts of a sub-environment's step, before the adapter reads them."""
        _, over = self._lifecycles[env_id].step(result)
        if over:
            self._lifecycles.pop(env_id).finish()

    def _crash(self, method: str, error: BaseException, code: str) -> Broken:
        if isinstance(error, Broken):
            return error
        if isinstance(error, ContractError):
            return Broken.of(error, self.env_steps)
        if isinstance(error, EnvCrashError) and error.__cause__ is not None:
            # The adapter's error names the method that it called.
            method, error = str(error).partition(":")[0].rpartition(".")[2], error.__cause__
            code = "ME091" if method == "try_reset" else code
        return super()._crash(method, error, code)

    def _poll(self) -> RunnerStep:
        ready = self._ready = self.call("poll", code="ME090")
        keys = [ready.seats[slot] for slot in ready.slots.tolist()]
        for row, key in enumerate(keys):
            if key[0] not in self._lifecycles:
                self.check_row(key, ready.obs[row])
        for end in ready.ended:
            if end.obs is None:
                how = "terminated" if end.terminated else "truncated"
                code = "ME041" if end.terminated else "ME040"
                self.report(code, f"{self.who((end.env_id, end.agent_id))}is {how} without an observation")
        self.episodes += len(ready.episodes)
        self._empty_polls = 0 if keys else self._empty_polls + 1
        if self._empty_polls >= _MAX_EMPTY_POLLS:
            raise self.broken("ME045", f"{_MAX_EMPTY_POLLS} polls in a row brought nothing")
        shown = {key: ready.obs[row] for row, key in enumerate(keys)}
        return RunnerStep(shown, dict(shown))
