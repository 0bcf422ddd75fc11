"""Runners of environments with agent ids, `MultiAgentEnv` and `BaseEnv`, and the lifecycles of their agents.

What these may return, and when an agent lives, is stated by `menv.adapters`: `AgentLifecycles` is an `AgentTracker`,
and a `BaseEnv` is played through its adapter. An error that they raise names the code of its finding.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv.adapters.agent_tracker import AgentTracker, SlotAllocator
from menv.adapters.custom import CustomEnvs
from menv.adapters.poll_events import PollEvents
from menv.adapters.validation import (
    MAX_EMPTY_STEPS,
    count_empty,
    possible_agents,
    validate_reset,
    validate_step,
)
from menv.base_env import ALL, COMMON, AgentId, End, EnvId, Ready
from menv.checking.codes import Broken, FindingCollector
from menv.checking.runners import EnvRunner, Key, RunnerStep, SpacePair, describe
from menv.checking.values import (
    MASK_KEY,
    check_flag,
    check_info,
    check_reward,
    reported,
    sample_action,
    usable_mask,
)
from menv.errors import ContractError, EnvCrashError
from menv.wrappers import PettingZooEnv


class AgentLifecycles(AgentTracker):
    """The agents of one sub-environment, tracked as in training; reports what the tracker accepts and drops.

    Attributes:
        empty_steps: Env steps and resets in a row in which no agent acted; episodes may end in between.
    """

    def __init__(self, runner: EnvRunner, env_id: EnvId = 0, where: str = "") -> None:
        super().__init__(env_id, 0, SlotAllocator(), runner.possible or None)
        self.empty_steps = 0
        self._runner = runner
        self._where = where
        # Two ids with the same text are meant to be one agent.
        self._ids: dict[str, AgentId] = {str(agent): agent for agent in runner.possible}
        # Agents that ended in this episode and have not come back.
        self._gone: set[AgentId] = set()
        # Agents that were asked for an action in this episode.
        self._asked: set[AgentId] = set()

    def check_reset(self, obs: Any, infos: Any) -> dict[AgentId, Any]:
        """Check a reset and return the observations of the agents that act first."""
        validate_reset(obs, infos, self._wrong)
        self.finish()
        self._gone.clear()
        self._asked.clear()
        self.begin(obs, self._checked_infos(infos, obs, obs), PollEvents())
        self._check_obs(obs)
        return self._count_empty()

    def check_step(self, result: Any) -> tuple[dict[AgentId, Any], bool]:
        """Check five dicts; return the observations of agents that act next, and whether the episode is over."""
        obs, rewards, terminateds, truncateds, infos = validate_step(result, self._wrong)
        paid = {
            agent: check_reward(self._report, f"agent {agent!r}: ", reward)
            for agent, reward in rewards.items()
        }
        flags = [
            {agent: check_flag(self._report, f"{name}[{agent!r}]", flag) for agent, flag in by_agent.items()}
            for name, by_agent in (("terminateds", terminateds), ("truncateds", truncateds))
        ]
        flagged = {agent for by_agent in flags for agent, flag in by_agent.items() if flag}
        last = {*flagged, *(self.alive() if ALL in flagged else ())}
        infos = self._checked_infos(infos, obs, {*obs, *last})
        events, none_left = PollEvents(), self.all_ended
        over = self.step((obs, paid, *flags, infos), events)
        self._check_obs(obs)
        self._gone.update(end.agent_id for end in events.ended)
        report_ends(self._runner, events.ended)
        for unclaimed in events.unclaimed:
            if unclaimed.reward and unclaimed.agent_id in self._runner.possible - self._asked:
                self._report(
                    "ME102", f"agent {unclaimed.agent_id!r}: is paid {unclaimed.reward} and never acted"
                )
        if over and none_left and self.empty_steps:
            self._report("ME046", f"{ALL!r} came {self.empty_steps} env steps after the last agent's end")
        return {} if over else self._count_empty(), over

    def finish(self) -> None:
        """End the episode, and report rewards for agents that never appeared in it."""
        self.truncate(PollEvents())

    def where(self, method: str) -> str:
        return self._where + method

    def _report(self, code: str, message: str, about: str = "", fix: str | None = None) -> None:
        self._runner.report(code, self._where + message, about, fix)

    def _refuse_unknown(self, agent: AgentId, what: str) -> None:
        reported(self._runner.report, super()._refuse_unknown, agent, what)

    def _check_obs(self, obs: Mapping[AgentId, Any]) -> None:
        """Check observations; the ones of agents that do not wait are final."""
        waiting = set(self.waiting.agents)
        self._asked |= waiting
        for agent, value in obs.items():
            self._check_id(agent)
            self._runner.check_row((self.env_id, agent), value, acting=agent in waiting)
            if agent in self._gone and agent in waiting:
                self._report("ME042", f"agent {agent!r}: is asked again after its end")
            elif agent in self._gone:
                self._report("ME043", f"agent {agent!r}: is shown with its flag set after its end")
        self._gone -= waiting

    def _check_id(self, agent: AgentId) -> None:
        possible = self._runner.possible
        who, first = f"agent {agent!r}: ", self._ids.setdefault(str(agent), agent)
        if first != agent:
            kinds = f"is {type(agent).__name__} here and {type(first).__name__} elsewhere"
            self._report("ME048", f"{who}{kinds}, expected one type")
        elif possible and agent not in possible:
            known = ", ".join(sorted(map(repr, possible))[:8])
            self._report("ME047", f"{who}is not in possible_agents ({known})")

    def _checked_infos(
        self, infos: Mapping[AgentId, Any], obs: Mapping[AgentId, Any], read: Container[AgentId]
    ) -> dict[AgentId, Any]:
        """Check infos, of which the ones of `read` are delivered; return the valid ones."""
        for agent, info in infos.items():
            if agent not in read and agent != COMMON:
                self._report("ME028", f"agent {agent!r}: has an info and no observation")
            check_info(self._report, f"agent {agent!r}: ", info, obs.get(agent))
        return {agent: info for agent, info in infos.items() if isinstance(info, dict)}

    def _count_empty(self) -> dict[AgentId, Any]:
        """Return the observations of the agents that wait, and count env steps without any."""
        waiting, _ = self.by_agent()
        try:
            self.empty_steps = (
                0 if waiting else count_empty(self.empty_steps, self.where("step"), self.all_ended)
            )
        except ContractError as error:
            raise Broken.of(error, self._runner.env_steps - self.empty_steps) from error
        return waiting


def report_ends(runner: EnvRunner, ends: Iterable[End]) -> None:
    """Report ends without a last observation."""
    for end in ends:
        if end.obs is None:
            code, how = ("ME041", "terminated") if end.terminated else ("ME040", "truncated")
            runner.report(code, f"{runner.who((end.env_id, end.agent_id))}is {how} without an observation")


class MultiAgentRunner(EnvRunner):
    """Plays one multi-agent environment; the keys of its timesteps are `(0, agent_id)`."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self._known: dict[AgentId, SpacePair] = {}
        self._lifecycles = self._listed()
        self._paid = False

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
        shown = _keyed(self.stated(self._lifecycles.check_reset, obs, infos))
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
        waiting, over = self.stated(self._lifecycles.check_step, result)
        self.episodes += over
        obs, rewards, *flags, infos = result
        self._paid = self._paid or any(rewards.values())
        return RunnerStep(_keyed(waiting), _keyed(obs), rewards, flags, infos, over)

    def finish(self) -> None:
        self._lifecycles.finish()
        if isinstance(self.env, PettingZooEnv) and not self._paid and self._forgets_rewards(self.env.env):
            self.report(
                "ME103", "`rewards` are not 0 and `_cumulative_rewards` are, in each step of an episode"
            )

    def _forgets_rewards(self, game: Any) -> bool:
        """Play an episode by PettingZoo's own methods; return whether rewards were set and none was accumulated."""
        rng, paid = np.random.default_rng(0), False
        game.reset(seed=0)
        for agent in game.agent_iter(MAX_EMPTY_STEPS):
            obs, reward, terminated, truncated, info = game.last()
            if reward:
                return False
            action = None
            if not (terminated or truncated):
                masked = obs if isinstance(obs, dict) and MASK_KEY in obs else info
                space = game.action_space(agent)
                action = sample_action(space, rng, usable_mask(masked, space))
            game.step(action)
            paid = paid or any(game.rewards.values())
        return paid


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
        self._lifecycles[env_id].check_reset(obs, infos)

    def stepped(self, env_id: EnvId, result: Any) -> None:
        """Check the five dicts of a sub-environment's step, before the adapter reads them."""
        _, over = self._lifecycles[env_id].check_step(result)
        if over:
            del self._lifecycles[env_id]

    def _crash(self, method: str, error: BaseException, code: str) -> Broken:
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
        report_ends(self, ready.ended)
        self.episodes += len(ready.episodes)
        self._empty_polls = 0 if keys else self._empty_polls + 1
        if self._empty_polls >= MAX_EMPTY_STEPS:
            raise self.broken("ME045", f"{MAX_EMPTY_STEPS} polls in a row brought nothing")
        shown = {key: ready.obs[row] for row, key in enumerate(keys)}
        return RunnerStep(shown, dict(shown))
