"""Runners of environments that hold many sub-environments: `gymnasium.vector.VectorEnv` and `BaseEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from menv.adapters.gym_vector import DISABLED, SAME_STEP, autoreset_mode, by_name
from menv.adapters.table import TableEnvs
from menv.base_env import ALL, SINGLE_AGENT, AgentId, EnvId, MultiEnvDict, Ready
from menv.checking.codes import Broken, FindingCollector
from menv.checking.env_runner import (
    EnvRunner,
    Key,
    RunnerStep,
    SpacePair,
    check_pair,
    listed_agents,
    number_of,
)
from menv.checking.multi_agent_runner import AgentLifecycles
from menv.checking.play import same, sample_action
from menv.checking.values import (
    check_info,
    check_mask,
    check_mask_space,
    check_obs,
    check_reward,
    usable_mask,
)
from menv.errors import ConfigError, ContractError
from menv.spaces import how_many, own_copy

_STEPS_BEFORE_RESET = 5


class GymVectorRunner(EnvRunner):
    """Plays one vectorised gymnasium environment; the keys of its timesteps are `(index, "agent0")`."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self._keys: list[Key] = [(index, SINGLE_AGENT) for index in range(number_of(env))]
        self._mode = ""
        # By sub-environment: the last final observation, and a copy of it.
        self._finals: dict[int, tuple[Any, Any]] = {}
        # By sub-environment: the first observation that was equal to the final one before it.
        self._firsts: dict[int, Any] = {}
        self._finals_differed = False
        self._tried_sub_env = False

    def check_spaces(self) -> None:
        pair = self.read("single_observation_space"), self.read("single_action_space")
        check_pair(self.collector, "single ", *pair)
        check_pair(self.collector, "batched ", self.read("observation_space"), self.read("action_space"))
        check_mask_space(self.collector, "", *pair)
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

    def reset(self, seed: int | None) -> RunnerStep:
        if not self._mode:
            self._mode = autoreset_mode(self.env)
        seeds = {} if seed is None or not self.takes_seed else {"seed": seed}
        obs, infos = self.require_pair(self.call("reset", code="ME091", **seeds))
        check_info(self.collector, self.env_steps, "reset: ", self._by_name(infos), None)
        return self._timestep(obs, infos)

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
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
        check_info(self.collector, self.env_steps, "", infos, None)
        done = terminated | truncated
        self.episodes += int(done.sum())
        kept = np.copy(rewards), terminated.copy(), truncated.copy()
        timestep = self._timestep(obs, infos, done if self._mode != SAME_STEP else None)
        if self._mode == SAME_STEP:
            self._check_finals(timestep, done, infos)
        elif self._mode == DISABLED and done.any():
            timestep = self._reset_some(done)
        timestep.rewards, timestep.flags = kept[0], kept[1:]
        return timestep

    def _check_finals(self, timestep: RunnerStep, done: Any, infos: Any) -> None:
        over, finals = (
            np.flatnonzero(done).tolist(),
            infos.get("final_obs") if isinstance(infos, dict) else None,
        )
        if over and finals is None:
            self.collector.add(
                "ME099",
                f"env {over[0]}: is done and infos has no 'final_obs', expected it with SAME_STEP",
                self.env_steps,
            )
        elif over and not self._tried_sub_env:
            self._tried_sub_env = True
            self._try_sub_env()
        # By sub-environment, as gymnasium has them; a batch of a nested space shares no buffer.
        known = over if isinstance(finals, np.ndarray | list | tuple) else ()
        self._compare_finals(finals, known, list(timestep.shown.values()))

    def _compare_finals(self, finals: Any, done: Sequence[int], rows: Sequence[Any]) -> None:
        """Report final observations that are overwritten later, or equal the next first ones, `rows`."""
        for index, (final, then) in self._finals.items():
            if not same(final, then):
                self._add_final(index, "changes with the next step")
        self._finals.clear()
        for index in done:
            self._finals[index] = finals[index], own_copy(finals[index])
            if not same(finals[index], rows[index]):
                self._finals_differed = True
                continue
            first = self._firsts.setdefault(index, own_copy(rows[index]))
            # Equal by chance is possible; equal at each end while first observations differ is not.
            if not self._finals_differed and not same(first, rows[index]):
                self._add_final(index, "is what the next episode begins with, at each end so far")

    def _add_final(self, index: int, what: str) -> None:
        self.collector.add(
            "ME101",
            f"env {index}: infos['final_obs'] {what}, expected the last observation of the episode",
            self.env_steps,
        )

    def _try_sub_env(self) -> None:
        """Report a sub-environment whose reset writes into the observation that its last step returned.

        `AsyncVectorEnv` sends final observations after the reset, too late to see the overwriting.
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
                        action = sample_action(env.action_space, rng, usable_mask(obs, env.action_space))
                        obs, _, terminated, truncated, _ = env.step(action)
                        done = terminated or truncated
                kept = own_copy(obs)
                env.reset()
            if not same(obs, kept):
                self.collector.add(
                    "ME101",
                    "env 0: infos['final_obs'] is overwritten by the reset, expected the last observation of the "
                    "episode, because reset and step of the sub-environment return the same array",
                    self.env_steps,
                )

    def _reset_some(self, done: Any) -> RunnerStep:
        options = {"reset_mask": done}
        obs, infos = self.require_pair(self.call("reset", options=options, code="ME091"))
        return self._timestep(obs, infos)

    def _by_name(self, infos: Any) -> Any:
        """Return infos as a dict of arrays, if there is one dict for each sub-environment."""
        with suppress(ContractError):
            return by_name(infos, len(self._keys), "step") if isinstance(infos, list) and infos else infos
        return infos

    def _timestep(self, obs: Any, infos: Any, last: Any = None) -> RunnerStep:
        rows = self._rows(obs)
        for key, row in zip(self._keys, rows, strict=True):
            who = f"env {key[0]}: "
            check_obs(self.collector, self.env_steps, who, self.env.single_observation_space, row)
            if last is None or not last[key[0]]:
                check_mask(self.collector, self.env_steps, who, row, self.env.single_action_space)
        shown = dict(zip(self._keys, rows, strict=True))
        return RunnerStep(shown, dict(shown))

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
            check_reward(self.collector, self.env_steps, f"env {key[0]}: ", reward)

    def _flags(self, name: str, flags: Any) -> Any:
        """Return [E] flags."""
        self._require_length(name, flags)
        array = np.asarray(flags)
        if array.dtype.kind != "b":
            code = "ME023" if array.dtype.kind in "iuf" else "ME024"
            self.collector.add(code, f"{name} are {array.dtype}, expected bool", self.env_steps)
        return array != 0

    def _require_length(self, name: str, part: Any) -> None:
        if np.ndim(part) != 1 or len(part) != len(self._keys):
            got = f"an array of shape {part.shape}" if isinstance(part, np.ndarray) else how_many(part)
            raise Broken("ME097", f"{name} is {got}, expected shape ({len(self._keys)},)", self.env_steps)


_ASYNC_RESET = "async_reset_return"
_PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos", "off_policy_actions")
_MAX_EMPTY_POLLS = 1000
_WRONG_RESET = "no dict of observations, expected {env_id: {agent_id: obs}}, or a marker that they come later"


class BaseEnvRunner(EnvRunner):
    """Plays one `BaseEnv`; the keys of its timesteps are `(env_id, agent_id)`."""

    repeats = False

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        if getattr(env, "returns_table", False):
            self.env = TableEnvs(env)
        self._possible = frozenset(listed_agents(env))
        self._lifecycles: dict[EnvId, AgentLifecycles] = {}
        self._known: dict[AgentId, SpacePair] = {}
        self._waiting: dict[Key, Any] = {}
        self._without_agents: set[EnvId] = set()
        self._table: Ready | None = None
        self._empty_polls = 0

    @property
    def idle(self) -> bool:
        return (bool(self._without_agents) or self._empty_polls > 0) and not self._waiting

    def check_spaces(self) -> None:
        pair = self.read("observation_space"), self.read("action_space")
        check_pair(self.collector, "", *pair)
        check_mask_space(self.collector, "", *pair)

    def spaces(self, key: Key) -> SpacePair:
        return self._space_of(key[1])

    def _space_of(self, agent: AgentId) -> SpacePair:
        if agent not in self._known:
            obs_space, action_space = (
                space.spaces[agent] if isinstance(space, gym.spaces.Dict) and agent in space.spaces else space
                for space in (self.env.observation_space, self.env.action_space)
            )
            self._known[agent] = (obs_space, action_space)
        return self._known[agent]

    def reset(self, seed: int | None) -> RunnerStep:
        # A `BaseEnv` starts its episodes at the first poll.
        return self._poll()

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        self._waiting = {}
        if self._table is not None:
            answers = [actions[self._table.seats[slot]] for slot in self._table.slots.tolist()]
            self.call("send_actions", self._table.slots, answers, code="ME090")
            return self._poll()
        nested: MultiEnvDict = {env_id: {} for env_id in self._without_agents}
        for (env_id, agent), action in actions.items():
            nested.setdefault(env_id, {})[agent] = action
        if nested:
            self.call("send_actions", nested, code="ME090")
        return self._poll()

    def close(self) -> None:
        self.env.stop()

    def _crash(self, method: str, error: BaseException, code: str) -> Broken:
        if not isinstance(self.env, TableEnvs) or not isinstance(error, ContractError):
            return super()._crash(method, error, code)
        message, _, fix = str(error).rpartition("; ")
        return Broken("ME100", message, self.env_steps, fix)

    def _poll(self) -> RunnerStep:
        result = self.call("poll", code="ME090")
        return self._read_table(result) if isinstance(result, Ready) else self._read_dicts(result)

    def _read_table(self, ready: Ready) -> RunnerStep:
        self._table = ready
        self._count_empty_polls(is_empty=not len(ready.slots))
        keys = [ready.seats[slot] for slot in ready.slots.tolist()]
        for row, (env_id, agent) in enumerate(keys):
            who = f"env {env_id!r}: agent {agent!r}: "
            check_obs(self.collector, self.env_steps, who, self._space_of(agent)[0], ready.obs[row])
            check_reward(self.collector, self.env_steps, who, float(ready.rewards[row]))
        for end in ready.ended:
            if end.obs is None:
                code = "ME041" if end.terminated else "ME040"
                who = f"env {end.env_id!r}: agent {end.agent_id!r}: "
                self.collector.add(code, f"{who}ended without an observation", self.env_steps)
        self.episodes += len(ready.episodes)
        shown = {key: ready.obs[row] for row, key in enumerate(keys)}
        return RunnerStep(shown, dict(shown))

    def _read_dicts(self, result: Any) -> RunnerStep:
        parts = self._require_six_dicts(result)
        self._count_empty_polls(is_empty=not any(parts[:4]))
        obs, rewards, terminateds, truncateds, infos, _ = parts
        for env_id in dict.fromkeys([*obs, *rewards, *terminateds, *truncateds]):
            step = tuple(
                dict(part.get(env_id, {})) for part in (obs, rewards, terminateds, truncateds, infos)
            )
            self._record_env(env_id, step)
        shown = {
            (env_id, agent): value for env_id, by_agent in obs.items() for agent, value in by_agent.items()
        }
        return RunnerStep(dict(self._waiting), shown)

    def _record_env(self, env_id: EnvId, step: tuple[dict[AgentId, Any], ...]) -> None:
        obs, _, terminateds, truncateds, infos = step
        still_waits = any(key[0] == env_id for key in self._waiting)
        if still_waits and not (obs or any(terminateds.values()) or any(truncateds.values())):
            return
        lifecycles = self._lifecycles.get(env_id)
        if lifecycles is None:
            self._begin(env_id, obs, infos)
            return
        for flags in (terminateds, truncateds):
            if flags and ALL not in flags:
                raise Broken("ME022", f"env {env_id!r}: flags without {ALL!r}, expected it", self.env_steps)
            flags.setdefault(ALL, False)
        waiting, over = lifecycles.step(step, self.env_steps)
        if over:
            self.episodes += 1
            self._restart(env_id)
        else:
            self._set_waiting(env_id, waiting)

    def _begin(self, env_id: EnvId, obs: Any, infos: Any) -> None:
        where = f"env {env_id!r}: "
        lifecycles = AgentLifecycles(self.collector, self._space_of, self._possible, where)
        self._lifecycles[env_id] = lifecycles
        self._set_waiting(env_id, lifecycles.begin(obs, infos, self.env_steps))

    def _set_waiting(self, env_id: EnvId, waiting: dict[AgentId, Any]) -> None:
        self._waiting.update({(env_id, agent): value for agent, value in waiting.items()})
        if waiting:
            self._without_agents.discard(env_id)
        else:
            self._without_agents.add(env_id)

    def _restart(self, env_id: EnvId) -> None:
        self._lifecycles.pop(env_id).finish()
        self._without_agents.discard(env_id)
        obs, infos = self.require_pair(self.call("try_reset", env_id, code="ME091"), "try_reset")
        if obs is None or obs == _ASYNC_RESET:
            return
        if not isinstance(obs, Mapping):
            raise Broken("ME012", f"try_reset returned {_WRONG_RESET}", self.env_steps)
        for key, by_agent in obs.items():
            if by_agent == _ASYNC_RESET:
                continue
            if not isinstance(by_agent, Mapping):
                raise Broken("ME012", f"try_reset: env {key!r} has {_WRONG_RESET}", self.env_steps)
            self._begin(key, dict(by_agent), dict((infos or {}).get(key, {})))

    def _count_empty_polls(self, is_empty: bool) -> None:
        self._empty_polls = self._empty_polls + 1 if is_empty else 0
        if self._empty_polls >= _MAX_EMPTY_POLLS and not self._waiting:
            raise Broken("ME045", f"{_MAX_EMPTY_POLLS} polls in a row brought nothing", self.env_steps)

    def _require_six_dicts(self, result: Any) -> tuple[MultiEnvDict, ...]:
        if not isinstance(result, tuple | list) or len(result) != 6:
            raise Broken(
                "ME020", f"poll returned {how_many(result)}, expected six nested dicts ({', '.join(_PARTS)})",
                self.env_steps, "return six dicts; split the old `dones` into terminateds and truncateds",
            )  # fmt: skip
        for name, part in zip(_PARTS, result, strict=True):
            if not isinstance(part, Mapping) or not all(isinstance(one, Mapping) for one in part.values()):
                raise Broken(
                    "ME021", f"poll: {name} is no dict of dicts, expected {{env_id: {{agent_id: value}}}}",
                    self.env_steps,
                    "key by sub-environment first, then by agent",
                )  # fmt: skip
        return tuple(result)
