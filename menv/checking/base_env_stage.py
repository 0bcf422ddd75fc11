"""A `BaseEnv` as a stage: many sub-environments that decide themselves when they show what.

`menv.checking.subject` makes one. Episodes of a `BaseEnv` cannot be repeated at will, so that the probes of seeds
leave it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from menv.adapters.table import TableEnvs
from menv.base_env import ALL, AgentId, EnvId, MultiEnvDict, Ready
from menv.checking.lives import Lives
from menv.checking.report import Broken, Report
from menv.checking.stage import Key, SpacePair, Stage, Turn, check_pair, listed_agents
from menv.checking.values import check_mask_space, check_obs, check_reward
from menv.env_calls import how_many
from menv.errors import ContractError

_LATER = "async_reset_return"
_NAMES = ("obs", "rewards", "terminateds", "truncateds", "infos", "off_policy_actions")
_QUIET_POLLS = 1000
_WRONG_RESET = "no dict of observations, expected {env_id: {agent_id: obs}}, or a marker that they come later"


class BaseEnvStage(Stage):
    """Plays one `BaseEnv`; the keys of its turns are `(env_id, agent_id)`."""

    repeats = False

    def __init__(self, env: Any, report: Report) -> None:
        super().__init__(env, report)
        if getattr(env, "returns_table", False):
            self.env = TableEnvs(env)
        self._possible = frozenset(listed_agents(env))
        self._lives: dict[EnvId, Lives] = {}
        self._known: dict[AgentId, SpacePair] = {}
        self._waiting: dict[Key, Any] = {}
        self._silent: set[EnvId] = set()
        self._table: Ready | None = None
        self._quiet = 0

    @property
    def idle(self) -> bool:
        return (bool(self._silent) or self._quiet > 0) and not self._waiting

    def check_spaces(self) -> None:
        pair = self.read("observation_space"), self.read("action_space")
        check_pair(self.report, "", *pair)
        check_mask_space(self.report, "", *pair)

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

    def reset(self, seed: int | None) -> Turn:
        """Return the agents that wait; a `BaseEnv` starts its episodes at the first poll."""
        return self._poll()

    def step(self, actions: dict[Key, Any]) -> Turn:
        self.env_steps += 1
        self._waiting = {}
        if self._table is not None:
            answers = [actions[self._table.seats[slot]] for slot in self._table.slots.tolist()]
            self.call("send_actions", self._table.slots, answers, code="ME090")
            return self._poll()
        nested: MultiEnvDict = {env_id: {} for env_id in self._silent}
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

    def _poll(self) -> Turn:
        result = self.call("poll", code="ME090")
        return self._read_table(result) if isinstance(result, Ready) else self._read_dicts(result)

    def _read_table(self, ready: Ready) -> Turn:
        self._table = ready
        if len(ready.slots):
            self._quiet = 0
        else:
            self._count_quiet()
        keys = [ready.seats[slot] for slot in ready.slots.tolist()]
        for row, (env_id, agent) in enumerate(keys):
            who = f"env {env_id!r}: agent {agent!r}: "
            check_obs(self.report, self.env_steps, who, self._space_of(agent)[0], ready.obs[row])
            check_reward(self.report, self.env_steps, who, float(ready.rewards[row]))
        for end in ready.ended:
            if end.obs is None:
                code = "ME041" if end.terminated else "ME040"
                who = f"env {end.env_id!r}: agent {end.agent_id!r}: "
                self.report.add(code, f"{who}ended without an observation", self.env_steps)
        self.episodes += len(ready.episodes)
        shown = {key: ready.obs[row] for row, key in enumerate(keys)}
        return Turn(shown, dict(shown))

    def _read_dicts(self, result: Any) -> Turn:
        parts = self._six(result)
        if not any(parts[:4]):
            self._count_quiet()
        else:
            self._quiet = 0
        obs, rewards, terminateds, truncateds, infos, _ = parts
        for env_id in dict.fromkeys([*obs, *rewards, *terminateds, *truncateds]):
            step = tuple(
                dict(part.get(env_id, {})) for part in (obs, rewards, terminateds, truncateds, infos)
            )
            self._one_env(env_id, step)
        shown = {
            (env_id, agent): value for env_id, by_agent in obs.items() for agent, value in by_agent.items()
        }
        return Turn(dict(self._waiting), shown)

    def _one_env(self, env_id: EnvId, step: tuple[dict[AgentId, Any], ...]) -> None:
        obs, _, terminateds, truncateds, infos = step
        still_waits = any(key[0] == env_id for key in self._waiting)
        if still_waits and not (obs or any(terminateds.values()) or any(truncateds.values())):
            return
        lives = self._lives.get(env_id)
        if lives is None:
            lives = self._lives[env_id] = Lives(
                self.report, self._space_of, self._possible, f"env {env_id!r}: "
            )
            self._note(env_id, lives.begin(obs, infos, self.env_steps))
            return
        for flags in (terminateds, truncateds):
            if flags and ALL not in flags:
                raise Broken("ME022", f"env {env_id!r}: flags without {ALL!r}, expected it", self.env_steps)
            flags.setdefault(ALL, False)
        waiting, over = lives.step(step, self.env_steps)
        if over:
            self.episodes += 1
            self._begin_again(env_id)
        else:
            self._note(env_id, waiting)

    def _note(self, env_id: EnvId, waiting: dict[AgentId, Any]) -> None:
        self._waiting.update({(env_id, agent): value for agent, value in waiting.items()})
        if waiting:
            self._silent.discard(env_id)
        else:
            self._silent.add(env_id)

    def _begin_again(self, env_id: EnvId) -> None:
        self._lives.pop(env_id).finish()
        self._silent.discard(env_id)
        obs, infos = self.require_pair(self.call("try_reset", env_id, code="ME091"), "try_reset")
        if obs is None or obs == _LATER:
            return
        if not isinstance(obs, Mapping):
            raise Broken("ME012", f"try_reset returned {_WRONG_RESET}", self.env_steps)
        for key, by_agent in obs.items():
            if by_agent == _LATER:
                continue
            if not isinstance(by_agent, Mapping):
                raise Broken("ME012", f"try_reset: env {key!r} has {_WRONG_RESET}", self.env_steps)
            lives = self._lives[key] = Lives(self.report, self._space_of, self._possible, f"env {key!r}: ")
            self._note(key, lives.begin(dict(by_agent), dict((infos or {}).get(key, {})), self.env_steps))

    def _count_quiet(self) -> None:
        self._quiet += 1
        if self._quiet >= _QUIET_POLLS and not self._waiting:
            raise Broken("ME045", f"{_QUIET_POLLS} polls in a row brought nothing", self.env_steps)

    def _six(self, result: Any) -> tuple[MultiEnvDict, ...]:
        """Return the six parts of a poll.

        Raises:
            Broken: They are not six dicts of dicts.
        """
        if not isinstance(result, tuple | list) or len(result) != 6:
            raise Broken(
                "ME020", f"poll returned {how_many(result)}, expected six nested dicts ({', '.join(_NAMES)})",
                self.env_steps, "return six dicts; split the old `dones` into terminateds and truncateds",
            )  # fmt: skip
        for name, part in zip(_NAMES, result, strict=True):
            if not isinstance(part, Mapping) or not all(isinstance(one, Mapping) for one in part.values()):
                raise Broken(
                    "ME021", f"poll: {name} is no dict of dicts, expected {{env_id: {{agent_id: value}}}}",
                    self.env_steps,
                    "key by sub-environment first, then by agent",
                )  # fmt: skip
        return tuple(result)
