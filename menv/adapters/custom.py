"""A user's own `BaseEnv`, which speaks in six nested dicts, as rows.

The same `Roster` as in `multi_agent` reads its dicts. It is never reset behind its back: after
`"__all__"` the adapter calls its `try_reset`, waits on "async_reset_return", and expects a new env
id where the answer is `(None, None)`. `menv.loop.convert` creates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from menv.adapters.multi_agent import MAX_EMPTY_STEPS, as_numbers, check_answers, possible_agents
from menv.adapters.report import Report
from menv.adapters.roster import Roster
from menv.adapters.slot_pool import SlotPool
from menv.base_env import ALL, AgentId, BaseEnv, EnvId, MultiEnvDict, Ready
from menv.errors import ContractError, EnvCrashError, MenvError

ASYNC_RESET = "async_reset_return"


class CustomEnvs(BaseEnv):
    """Reads the six dicts of another `BaseEnv`."""

    returns_table = True

    def __init__(self, inner: BaseEnv) -> None:
        """Wrap `inner`, which is not touched before the first poll."""
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self.possible_agents = getattr(inner, "possible_agents", None)
        self._pool = SlotPool()
        self._rosters: dict[EnvId, Roster] = {}
        self._env_steps = np.zeros(0, np.int64)
        # Sub-environments whose episode has begun, that is, whose obs were seen since their end.
        self._running: set[EnvId] = set()
        self._waiting: set[EnvId] = set()
        self._answers: MultiEnvDict = {}
        self._due: set[EnvId] = set()
        self._report = Report()

    def poll(self, timeout: float | None = None) -> Ready:
        """Send what was answered, poll the inner environment and return its rows."""
        if self._answers:
            answers, self._answers = self._answers, {}
            self._call("send_actions", answers)
        for _ in range(MAX_EMPTY_STEPS):
            silent = self._read(self._six_dicts())
            if self._due or not silent:
                break
            self._call("send_actions", {env_id: {} for env_id in silent})
        else:
            raise ContractError(
                f"poll: nobody waited for an action in {MAX_EMPTY_STEPS} env steps in a row, expected an observation "
                'for an agent that acts next; set "__all__" once all agents are gone'
            )
        return self._deliver()

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; see `BaseEnv.send_actions`."""
        by_env: dict[EnvId, dict[AgentId, Any]] = {}
        if actions is None:
            by_env = {env_id: dict(answers) for env_id, answers in slots.items()}
        else:
            for slot, action in zip(slots, actions, strict=True):
                env_id, agent = self._pool.seats[int(slot)]
                by_env.setdefault(env_id, {})[agent] = action
        for env_id, answers in by_env.items():
            agents = self._rosters[env_id].waiting.agents if env_id in self._waiting else []
            check_answers(env_id, agents, answers)
            self._answers[env_id] = answers
            self._waiting.discard(env_id)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Pass the call on; the obs that it returns begin a new episode."""
        obs, infos = self.inner.try_reset(env_id, seed=seed, options=options)
        if isinstance(obs, dict):
            for key, by_agent in obs.items():
                if isinstance(by_agent, dict):
                    self._begin(key, by_agent, (infos or {}).get(key, {}))
        return obs, infos

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the inner environment's own answer."""
        return self.inner.get_sub_environments(as_dict)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the inner environment lists and those seen so far."""
        return set(self.possible_agents or ()).union(*(roster.known for roster in self._rosters.values()))

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row."""
        return {env_id: dict(roster.held) for env_id, roster in self._rosters.items() if roster.held}

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render through the inner environment."""
        return self.inner.try_render(env_id)

    def stop(self) -> None:
        """Stop the inner environment."""
        self.inner.stop()

    def _call(self, method: str, *args: Any) -> Any:
        """Call the inner environment; what it raises is chained."""
        try:
            return getattr(self.inner, method)(*args)
        except MenvError:
            raise
        except Exception as error:
            raise EnvCrashError(
                f"{type(self.inner).__name__}.{method}: raised {type(error).__name__}: {error}; "
                "the environment's own traceback is above"
            ) from error

    def _six_dicts(self) -> tuple[MultiEnvDict, ...]:
        """Poll the inner environment and check the shape of its answer."""
        result = self._call("poll")
        name = type(self.inner).__name__
        if not isinstance(result, tuple | list) or len(result) != 6:
            count = f"{len(result)} values" if isinstance(result, tuple | list) else type(result).__name__
            raise ContractError(
                f"{name}.poll: returned {count}, expected six nested dicts (obs, rewards, terminateds, truncateds, "
                "infos, off_policy_actions); split the old `dones` into terminateds and truncateds"
            )
        for part in result:
            if not isinstance(part, Mapping) or not all(isinstance(value, Mapping) for value in part.values()):
                raise ContractError(
                    f"{name}.poll: one of the six values is not a dict of dicts, expected {{env_id: {{agent_id: value}}}}; "
                    "key by sub-environment first, then by agent"
                )
        return tuple(result)

    def _read(self, parts: tuple[MultiEnvDict, ...]) -> list[EnvId]:
        """Hand each sub-environment's dicts to its roster; return those in which nobody waits."""
        obs, rewards, terminateds, truncateds, infos, _ = parts
        touched = dict.fromkeys([*obs, *rewards, *terminateds, *truncateds])
        for env_id in touched:
            if env_id not in self._running:
                self._begin(env_id, obs.get(env_id, {}), infos.get(env_id, {}), rewards.get(env_id, {}))
                if not any(terminateds.get(env_id, {}).values()) and not any(truncateds.get(env_id, {}).values()):
                    continue
            step = [dict(part.get(env_id, {})) for part in (obs, rewards, terminateds, truncateds, infos)]
            for flags in step[2:4]:
                flags.setdefault(ALL, False)
            self._env_steps[self._rosters[env_id].env_index] += 1
            if self._rosters[env_id].step(step, self._report):
                self._running.discard(env_id)
                self._due.discard(env_id)
                self.try_reset(env_id)
            elif self._rosters[env_id].waiting.agents:
                self._due.add(env_id)
        return [env_id for env_id in touched if env_id in self._running and not self._rosters[env_id].waiting.agents]

    def _begin(self, env_id: EnvId, obs: dict[AgentId, Any], infos: Any, rewards: Mapping[AgentId, Any] = {}) -> None:
        """Begin an episode of a sub-environment, known or new."""
        roster = self._rosters.get(env_id)
        if roster is None:
            roster = Roster(env_id, len(self._rosters), self._pool, possible_agents(self))
            self._rosters[env_id] = roster
            self._env_steps = np.append(self._env_steps, 0)
        elif env_id in self._running:
            roster.abandon(self._report)
        roster.credit(rewards, self._report)
        roster.begin(obs, infos, self._report)
        self._running.add(env_id)
        if roster.waiting.agents:
            self._due.add(env_id)

    def _deliver(self) -> Ready:
        """Return the rows that are due."""
        due = [env_id for env_id in self._rosters if env_id in self._due]
        self._due.clear()
        self._waiting.update(due)
        rosters = [self._rosters[env_id] for env_id in due]
        slots = np.concatenate([roster.waiting.slots for roster in rosters]) if rosters else np.zeros(0, np.int64)
        report, self._report = self._report, Report()
        return Ready(
            slots, list(chain.from_iterable(roster.obs for roster in rosters)), as_numbers(rosters), self._env_steps,
            report.joined, report.ended, report.episodes, report.unclaimed,
            list(chain.from_iterable(roster.infos or [{}] * len(roster.obs) for roster in rosters)),
            {}, self._pool.seats,
        )  # fmt: skip
