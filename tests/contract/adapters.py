"""Every adapter under test, and a watcher that writes down what a `BaseEnv` hands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from menv import to_base_env
from menv.base_env import BaseEnv, Ready
from menv.vector_env import VectorEnv
from tests.contract.callers import CalledEnvs, without_own_truncations
from tests.contract.remote import FarGame, Make, remote
from tests.contract.scripted import (
    IRREGULAR,
    SOLO,
    TOGETHER,
    TURNS,
    Ended,
    Script,
    ScriptedEnv,
    Seen,
    SixDicts,
    SoloGym,
    seen,
)


def rotated(script: Script, world: int) -> Script:
    """Let every world begin with another episode, so that they do not march in step."""
    start = world % len(script)
    return [*script[start:], *script[:start]]


@dataclass(frozen=True)
class Adapter:
    """One kind of environment behind one adapter."""

    name: str
    script: Script
    kind: str
    on: Any = None
    """The engine of the processes of its sub-environments, None where they live here."""

    @property
    def lockstep(self) -> bool:
        """Whether one object steps all sub-environments at once."""
        return self.kind in ("vector", "NextStep", "SameStep", "Disabled")

    @property
    def solo(self) -> bool:
        """Whether each sub-environment has one agent, which has no id of its own."""
        return self.kind == "gym" or self.lockstep

    def build(self, num_envs: int = 3, seed: int | None = None) -> tuple[BaseEnv, list[ScriptedEnv]]:
        """Return the environment in table form, and the games that it plays."""
        scripts = [rotated(self.script, world) for world in range(num_envs)]
        if self.on is not None:
            make = Make(scripts, self.kind == "gym")
            base_env = remote(make, num_envs, seed=seed, on=self.on)
            return base_env, [FarGame(base_env, index) for index in range(num_envs)]  # type: ignore[misc]
        if self.kind == "gym":
            made = [SoloGym(script, world) for world, script in enumerate(scripts)]
            return to_base_env(made[0], made.__getitem__, num_envs, seed=seed), [one.game for one in made]
        if self.lockstep:
            # gymnasium keeps a reference to the last observation while it resets with SAME_STEP.
            copies = self.kind == "SameStep"
            made = [SoloGym(script, world, copies=copies) for world, script in enumerate(scripts)]
            env: Any = VectorEnv.vectorize_gym_envs(existing_envs=made, num_envs=num_envs)
            if self.kind != "vector":
                makers = [partial(made.__getitem__, world) for world in range(num_envs)]
                env = SyncVectorEnv(makers, copy=False, autoreset_mode=self.kind)
            return to_base_env(env, seed=seed), [one.game for one in made]
        if self.kind == "external":
            games = [
                ScriptedEnv(without_own_truncations(script), world) for world, script in enumerate(scripts)
            ]
            return CalledEnvs(games), games
        games = [ScriptedEnv(script, world) for world, script in enumerate(scripts)]
        if self.kind == "agents":
            return to_base_env(games[0], games.__getitem__, num_envs, seed=seed), games
        if self.kind == "table":
            return to_base_env(Tables(to_base_env(games[0], games.__getitem__, num_envs, seed=seed))), games
        return to_base_env(SixDicts(games, self.kind)), games


class Tables(BaseEnv):
    """A `BaseEnv` of one's own that returns tables: no seats, new arrays in each poll, slots and actions alone."""

    returns_table = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.observation_space, self.action_space = inner.observation_space, inner.action_space
        self.num_envs, self.possible_agents = inner.num_envs, inner.possible_agents

    def poll(self) -> Ready:  # type: ignore[override]
        ready: Ready = self.inner.poll()
        return replace(ready, slots=ready.slots.copy(), rewards=ready.rewards.tolist(), seats=())

    def send_actions(self, slots: Any, actions: Any) -> None:  # type: ignore[override]
        self.inner.send_actions(slots, actions)

    def try_reset(self, env_id: Any = None, **kwargs: Any) -> Any:
        return self.inner.try_reset(env_id, **kwargs)

    def try_restart(self, env_id: Any = None) -> None:
        self.inner.try_restart(env_id)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        return self.inner.get_sub_environments(as_dict)

    def held_rewards(self) -> Any:
        return self.inner.held_rewards()

    def stop(self) -> None:
        self.inner.stop()


_ENGINES = {"remote": "process", "ray": "ray"}
_WORLDS = {"turns": TURNS, "together": TOGETHER, "irregular": IRREGULAR}
ALL_ADAPTERS = [
    Adapter("gym", SOLO, "gym"),
    *[Adapter(kind, SOLO, kind) for kind in ("vector", "NextStep", "SameStep", "Disabled")],
    *[
        Adapter(f"{kind}-{world}", script, kind)
        for kind in ("agents", "now", "later", "new id", "external", "table")
        for world, script in _WORLDS.items()
    ],
]
LOCAL_ADAPTERS = [adapter for adapter in ALL_ADAPTERS if adapter.kind in ("gym", "agents")]
_QUICK = ("remote-gym", "remote-agents-irregular")
REMOTE_ADAPTERS: list[Any] = [
    pytest.param(
        Adapter(name, adapter.script, adapter.kind, on), marks=() if name in _QUICK else pytest.mark.slow
    )
    for start, on in _ENGINES.items()
    for adapter in LOCAL_ADAPTERS
    for name in [f"{start}-{adapter.name}"]
]
"""All step in lock step here: how far the others are when one is ready is a matter of luck."""


def name_of(adapter: Adapter) -> str:
    return adapter.name


@dataclass
class Watch:
    """What was handed out, checked for order on the way."""

    rows: list[Seen] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    income: Counter[str] = field(default_factory=Counter)
    unclaimed: Counter[str] = field(default_factory=Counter)
    lives: dict[int, Any] = field(default_factory=dict)
    finals: list[tuple[Any, Any]] = field(default_factory=list)
    episodes: int = 0

    def take(self, ready: Ready) -> None:
        for end in ready.ended:
            last = self.lives.pop(end.slot)
            assert last is not None, "a life ended that never had a row"
            self.income[_letter(end.agent_id)] += int(end.reward)
            final = None if end.obs is None else seen(end.obs).step
            self.ended.append(
                Ended(last.world, last.episode, last.agent, last.life, end.terminated, end.truncated, final)
            )
            self.finals.append((end.obs, None if end.obs is None else np.array(end.obs)))
        for unclaimed in ready.unclaimed:
            self.unclaimed[_letter(unclaimed.agent_id)] += int(unclaimed.reward)
        self.episodes += len(ready.episodes)
        for join in ready.joined:
            assert join.slot not in self.lives, "an agent joined on a slot that is in use"
            self.lives[join.slot] = None
        for row, slot in enumerate(ready.slots.tolist()):
            self._take_row(ready, row, slot)

    def _take_row(self, ready: Ready, row: int, slot: int) -> None:
        now = seen(ready.obs[row])
        last = self.lives[slot]
        assert last is None or last[:4] == now[:4], "a slot changed its life"
        assert _letter(ready.seats[slot][1]) == now.agent
        self.lives[slot] = now
        self.rows.append(now)
        self.income[now.agent] += int(ready.rewards[row])


def _letter(agent_id: Any) -> str:
    return "a" if agent_id == "agent0" else str(agent_id)


def run(base_env: BaseEnv, polls: int, answer: Callable[[BaseEnv, Ready], None] | None = None) -> Watch:
    """Poll and answer everybody, `polls` times; the last rows are left unanswered."""
    watch = Watch()
    for number in range(polls):
        ready = base_env.poll()
        watch.take(ready)
        if number < polls - 1:
            (answer or answer_all)(base_env, ready)
    return watch


def answer_all(base_env: BaseEnv, ready: Ready) -> None:
    base_env.send_actions(ready.slots, [1] * len(ready.slots))


def answer_as_dicts(base_env: BaseEnv, ready: Ready) -> None:
    base_env.send_actions(nested(ready))


def nested(ready: Ready, only: Sequence[Any] | None = None) -> dict[Any, dict[Any, int]]:
    """Return an action for each waiting agent as the nested dict."""
    actions: dict[Any, dict[Any, int]] = {}
    for slot in ready.slots.tolist():
        env_id, agent_id = ready.seats[slot]
        if only is None or env_id in only:
            actions.setdefault(env_id, {})[agent_id] = 1
    return actions


def held(base_env: BaseEnv) -> Counter[str]:
    total: Counter[str] = Counter()
    for by_agent in base_env.held_rewards().values():
        total.update({_letter(agent): int(reward) for agent, reward in by_agent.items()})
    return total
