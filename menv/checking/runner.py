"""`Runner` plays an environment of any kind through the adapter of training, and checks what the adapter delivers.

What the adapter refuses ends the play: its error names the code of the finding. What it accepts, the runner looks at
row by row. Actions and the length of a play are the caller's choice (`play.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.convert import to_local_base_env
from menv.adapters.gym_vector import SAME_STEP, autoreset_mode
from menv.adapters.validation import MAX_EMPTY_STEPS, possible_agents
from menv.base_env import AgentId, End, EnvId, Ready, Unclaimed
from menv.checking.codes import Broken, FindingCollector
from menv.checking.values import (
    MASK_KEY,
    check_info,
    check_mask,
    check_mask_space,
    check_obs,
    check_pair,
    same,
    sample_action,
    state_of_generators,
    usable_mask,
    used_since,
)
from menv.errors import ConfigError, ContractError, EnvCrashError, message_of
from menv.registry import env_kind
from menv.spaces import own_copy
from menv.wrappers import PettingZooEnv

Key: TypeAlias = tuple[EnvId, AgentId]
"""A sub-environment and an agent in it."""
SpacePair: TypeAlias = tuple[gym.Space[Any], gym.Space[Any]]
# Their adapters have a Dict of the agents' spaces.
_BY_AGENT = ("base_env", "vector_agents")


@dataclass(slots=True)
class RunnerStep:
    """What one reset or step delivered.

    Attributes:
        waiting: Observations of the agents that act next.
        shown: All observations, final ones included.
        outcome: Rewards, and the ends with their flags.
        over: Whether an episode of a single environment ended.
        env_steps: Of a copy: env steps since the beginning of the play.
        broken: The error that ended the play, in place of a timestep.
    """

    waiting: dict[Key, Any]
    shown: dict[Any, Any]
    outcome: Any = None
    over: bool = False
    env_steps: int = 0
    broken: Broken | None = None

    def copied(self, env_steps: int) -> RunnerStep:
        """Return a copy of what plays are compared by; without the next episode, whose reset had no seed."""
        if not self.over:
            return RunnerStep(
                dict.fromkeys(self.waiting), own_copy(self.shown), own_copy(self.outcome), env_steps=env_steps
            )
        finals = {key: obs for key, obs in self.shown.items() if key not in self.waiting}
        return RunnerStep({}, own_copy(finals), own_copy(self.outcome[1]), env_steps=env_steps)


class Runner:
    """One environment, stepped and checked. Methods raise `Broken` where it cannot be stepped further.

    Attributes:
        env: The environment.
        repeats: Whether a reset starts all episodes again, as the comparison of seeds needs.
        env_steps: So far.
        episodes: Number of ended episodes.
        idle: Whether no agent acts and empty polls are being counted.
        seconds: Duration of each env step.
        possible: The agents that the environment lists.
    """

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        self.env, self.collector = env, collector
        self.env_steps = self.episodes = self._empty_polls = 0
        self.seconds: list[float] = []
        self._kind = env_kind(env)
        self.repeats = self._kind != "base_env"
        self.possible = self._listed_agents()
        self.declared()
        self._adapter = self._made()
        self._known: dict[AgentId, SpacePair] = {}
        self._ready: Ready | None = None
        # Agents that were asked for an action in a running episode.
        self._asked: set[Key] = set()
        self._paid = False
        is_gym = self._kind == "gym_vector"
        self._same_step = self._kind == "vector_agents" or (is_gym and autoreset_mode(env) == SAME_STEP)
        # Last observations that equalled the first one of the next episode, by sub-environment; None once one did not.
        self._alike: dict[EnvId, Any] | None = {}

    def _listed_agents(self) -> frozenset[AgentId]:
        try:
            return possible_agents(self.env) or frozenset()
        except ContractError as error:
            raise Broken.of(error) from error
        except Exception as error:
            raise Broken("ME014", f"possible_agents raised {describe(error)}") from error

    def _made(self) -> Adapter:
        number = self.read("num_envs") if self._kind in ("vector", "gym_vector", "vector_agents") else 1
        if not isinstance(number, int | np.integer) or number < 1:
            raise Broken("ME097", f"num_envs is {number!r:.40}, expected an integer of at least 1")
        try:
            if self._kind == "external":
                raise ConfigError(
                    f"{type(self.env).__name__} calls menv itself, expected an environment that menv steps; check the "
                    "environment that it plays"
                )
            return to_local_base_env(self.env, restart_failed_sub_environments=False, strict=True)
        except ContractError as error:
            raise Broken.of(error) from error
        except ConfigError as error:
            message, _, fix = str(error).rpartition("; ")
            raise Broken("ME007", message, fix=fix) from error
        except Exception as error:
            raise Broken("ME007", f"{type(self.env).__name__} raised {describe(error)}") from error

    @property
    def idle(self) -> bool:
        return self._empty_polls > 0

    def declared(self) -> list[Any]:
        """Return the spaces that a copy must declare too."""
        single = "single_" if self._kind == "gym_vector" else ""
        names = ("observation_space", "action_space", "observation_spaces", "action_spaces")
        found = [self.read(single + name) for name in names]
        return [None if callable(space) else space for space in found]

    def read(self, name: str) -> Any:
        """Return an attribute of the environment, None if it has none."""
        try:
            return getattr(self.env, name, None)
        except Exception as error:
            raise Broken("ME001", f"{name} raised {describe(error)}") from error

    def report(self, code: str, message: str, about: str = "", fix: str | None = None) -> None:
        """Report a fault that showed in this env step."""
        self.collector.add(code, message, self.env_steps, about=about, fix=fix)

    def spaces(self, key: Key) -> SpacePair:
        """Return the spaces of an agent; they are checked when it is seen first."""
        agent, who = key[1], self._who(key)
        if agent not in self._known:
            try:
                pair: Any = self._spaces_of(agent)
            except Exception as error:
                raise Broken("ME003", f"{who}has no space ({describe(error)})", self.env_steps) from error
            check_pair(self.collector, who, *pair)
            check_mask_space(self.collector, who, *pair)
            self._known[agent] = pair
        return self._known[agent]

    def _spaces_of(self, agent: AgentId) -> Any:
        if self._kind == "multi_agent" and any(self._declares(kind) for kind in ("observation", "action")):
            return self.env.get_observation_space(agent), self.env.get_action_space(agent)
        base_env = self._adapter
        return [
            space.spaces[agent] if self._kind in _BY_AGENT and isinstance(space, gym.spaces.Dict)
            and agent in space.spaces else space
            for space in (base_env.observation_space, base_env.action_space)
        ]  # fmt: skip

    def _declares(self, kind: str) -> bool:
        method = getattr(type(self.env), f"get_{kind}_space", None)
        own = getattr(method, "__module__", "menv.multi_agent_env") != "menv.multi_agent_env"
        return own or any(self.read(f"{kind}_{name}") is not None for name in ("spaces", "space"))

    def _who(self, key: Key) -> str:
        env = "" if self._kind in ("single_agent", "multi_agent") else f"env {key[0]!r}: "
        return env + (f"agent {key[1]!r}: " if self._kind in ("multi_agent", *_BY_AGENT) else "")

    def begin(self, seed: int) -> RunnerStep:
        """Reset for the first time, and check the spaces of all listed agents."""
        declared = self.declared()
        step = self.reset(seed)
        for agent in sorted(self.possible, key=str) if self._kind == "multi_agent" else ():
            self.spaces((0, agent))
        if self._kind == "multi_agent" and not self.possible:
            self.collector.add("ME006", "possible_agents is empty, expected all agents that may ever appear")
        if any(space is not None for space in declared) and not same(declared, self.declared()):
            raise Broken(
                "ME004", "other spaces are declared now than before the first reset, expected the same"
            )
        return step

    def reset(self, seed: int | None) -> RunnerStep:
        """Start new episodes; a `BaseEnv` starts its own."""
        if self.repeats:
            self._call("try_reset", seed=seed)
        step = self._poll()
        if self.repeats:
            # What the reset cut off does not belong to the new episodes.
            step.shown, step.outcome, step.over = dict(step.waiting), None, False
        return step

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        """Take an env step with the actions of all waiting agents."""
        assert self._ready is not None
        self.env_steps += 1
        slots, seats = self._ready.slots, self._ready.seats
        if len(slots):
            self._call("send_actions", slots, [actions[seats[slot]] for slot in slots.tolist()])
        return self._poll()

    def close(self) -> None:
        """Close the environment."""
        close = getattr(self.env, "stop" if self._kind == "base_env" else "close", None)
        if close is not None:
            close()

    def finish(self) -> None:
        """Report what shows only at the end."""
        if isinstance(self.env, PettingZooEnv) and not self._paid and self._forgets_rewards(self.env.env):
            self.report(
                "ME103", "`rewards` are not 0 and `_cumulative_rewards` are, in each step of an episode"
            )

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the adapter; its errors become findings."""
        before = state_of_generators()
        try:
            result = getattr(self._adapter, method)(*args, **kwargs)
        except ContractError as error:
            raise Broken.of(error, self.env_steps) from error
        except (Exception, SystemExit) as error:
            raise self._crash(method, error) from error
        if used := used_since(before):
            self.report("ME061", f"it draws from {used}, which the whole process shares")
        return result

    def _crash(self, method: str, error: BaseException) -> Broken:
        if isinstance(error, EnvCrashError) and error.__cause__ is not None:
            # The adapter's error names the method that it called, such as "env 0 step" or "Game.vector_reset".
            called = message_of(error).partition(":")[0].partition(",")[0]
            method, error = called.replace(".", " ").rpartition(" ")[2], error.__cause__
        code = "ME091" if "reset" in method else "ME090"
        return Broken(code, f"{method} raised {describe(error)}", self.env_steps)

    def _poll(self) -> RunnerStep:
        start = time.perf_counter()
        ready: Ready = self._call("poll")
        self.seconds.append(time.perf_counter() - start)
        self._ready = ready
        self.env_steps = max(self.env_steps, int(np.max(ready.env_steps, initial=0)))
        self.episodes += len(ready.episodes)
        keys = [ready.seats[slot] for slot in ready.slots.tolist()]
        self._empty_polls = 0 if keys or ready.ended else self._empty_polls + 1
        if self._empty_polls >= MAX_EMPTY_STEPS:
            raise Broken("ME045", f"{MAX_EMPTY_STEPS} polls in a row brought nothing", self.env_steps)
        shown: dict[Any, Any] = dict(zip(keys, ready.obs, strict=True))
        self._check_ends(ready.ended, shown)
        self._check_unclaimed(ready.unclaimed)
        over = {episode.env_id for episode in ready.episodes}
        self._asked = {key for key in self._asked if key[0] not in over} | set(keys)
        self._paid = self._paid or any(ready.rewards) or any(end.reward for end in ready.ended)
        for row, key in enumerate(keys):
            self._check_row(key, ready.obs[row], None if ready.infos is None else ready.infos[row])
        waiting = dict(shown)
        shown.update({(end.env_id, end.agent_id, "final"): end.obs for end in ready.ended})
        outcome = (
            list(ready.rewards),
            # The order of ends depends on earlier episodes.
            sorted(((end[1:3], end.reward, end.terminated, end.truncated) for end in ready.ended), key=str),
        )
        alone = self._kind in ("single_agent", "multi_agent")
        return RunnerStep(waiting, shown, outcome, alone and bool(over))

    def _check_row(self, key: Key, obs: Any, info: Any) -> None:
        who, (obs_space, action_space) = self._who(key), self.spaces(key)
        if self.possible and key[1] not in self.possible:
            known = ", ".join(sorted(map(repr, self.possible))[:8])
            self.report("ME047", f"{who}is not in possible_agents ({known})")
        check_obs(self.report, who, obs_space, obs)
        check_mask(self.report, who, obs, action_space)
        check_info(self.report, who, info, obs)

    def _check_ends(self, ended: Iterable[End], rows: dict[Any, Any]) -> None:
        for end in ended:
            key = end.env_id, end.agent_id
            if end.obs is not None:
                check_obs(self.report, self._who(key), self.spaces(key)[0], end.obs)
                if self._same_step and key in rows:
                    self._check_final(end.env_id, end.obs, rows[key])
            elif not end.terminated:
                self.report("ME040", f"{self._who(key)}is truncated without an observation")

    def _check_unclaimed(self, unclaimed: Iterable[Unclaimed]) -> None:
        for one in unclaimed:
            key = one.env_id, one.agent_id
            if one.reward and one.agent_id in self.possible and key not in self._asked:
                self.report("ME102", f"{self._who(key)}is paid {one.reward} and never acted")

    def _check_final(self, env_id: EnvId, final: Any, first: Any) -> None:
        """Report last observations that equal the first ones of the next episodes, which differ from each other."""
        rule = f"env {env_id}: infos['final_obs'] is what the next episode begins with, at each end so far"
        if self._alike is None or not same(final, first):
            self._alike = None
            return
        before = self._alike.setdefault(env_id, own_copy(first))
        if not same(before, first):
            self.report("ME101", f"{rule}, expected the last observation of the episode")

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


def describe(error: BaseException) -> str:
    """Return the type of an exception, the first line of its message, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_name})" if trace is not None else ""
    first = next(iter(message_of(error).splitlines()), "")[:200]
    return f"{type(error).__name__}: {first}{place}"
