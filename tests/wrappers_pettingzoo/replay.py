"""The same episodes twice: through menv's adapter, and by PettingZoo's own loop with the same seeds and actions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from menv import to_base_env
from menv.base_env import BaseEnv, Ready
from menv.multi_agent_env import AgentDict, StepDicts
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv


@dataclass
class Life:
    """What one agent saw and earned from its first row to its end."""

    obs: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    end: tuple[float, bool, bool] | None = None
    final: Any = None


@dataclass
class Story:
    """An episode: the lives of its agents, and the rewards that belonged to nobody's action."""

    lives: dict[Any, list[Life]] = field(default_factory=dict)
    unclaimed: defaultdict[Any, float] = field(default_factory=lambda: defaultdict(float))
    flags: tuple[bool, bool] | None = None

    def income(self) -> dict[Any, float]:
        total = defaultdict(float, self.unclaimed)
        for agent, lives in self.lives.items():
            for life in lives:
                total[agent] += sum(life.rewards) + (life.end[0] if life.end else 0.0)
        return dict(total)


@dataclass
class Script:
    """What was done to a game in one episode."""

    seed: int | None
    actions: list[AgentDict] = field(default_factory=list)


class WrittenDown:
    """Keeps a script of each episode of the wrapper that it is mixed into."""

    scripts: list[Script]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        vars(self).setdefault("scripts", []).append(Script(seed))
        return super().reset(seed=seed, options=options)  # type: ignore[misc]

    def step(self, action_dict: AgentDict) -> StepDicts:
        self.scripts[-1].actions.append(dict(action_dict))
        return super().step(action_dict)  # type: ignore[misc, no-any-return]


class WrittenTurns(WrittenDown, PettingZooEnv):
    pass


class WrittenParallel(WrittenDown, ParallelPettingZooEnv):
    pass


def build(make: Callable[[], Any], num_envs: int, seed: int | None) -> tuple[BaseEnv, list[Any]]:
    """Return copies of a game as a `BaseEnv`, and their wrappers."""
    first = make()
    wrapper = WrittenTurns if hasattr(first, "agent_iter") else WrittenParallel
    envs = [wrapper(game) for game in (first, *(make() for _ in range(num_envs - 1)))]
    return to_base_env(envs[0], envs.__getitem__, num_envs, seed=seed), envs


def play(base_env: BaseEnv, envs: list[Any], polls: int, seed: int = 0) -> list[list[Story]]:
    """Play random legal actions and return the stories of each sub-environment, the last one unfinished.

    Checks on the way that nobody is asked who has no life, and that every life joins and ends once.
    """
    rng = np.random.default_rng(seed)
    stories: list[list[Story]] = [[Story()] for _ in envs]
    open_lives: dict[int, Life] = {}
    for number in range(polls):
        ready = base_env.poll()
        _take(ready, stories, open_lives)
        if number == polls - 1:
            break
        actions = []
        for slot, obs in zip(ready.slots.tolist(), ready.obs, strict=True):
            env_id, agent = ready.seats[slot]
            env = envs[int(str(env_id))]
            assert agent in env.agents, "somebody was asked who is not alive"
            actions.append(legal_action(env.get_action_space(agent), obs, rng))
        base_env.send_actions(ready.slots, actions)
    return stories


def _take(ready: Ready, stories: list[list[Story]], open_lives: dict[int, Life]) -> None:
    def story(env_index: int) -> Story:
        return stories[env_index][-1]

    for end in ready.ended:
        life = open_lives.pop(end.slot)
        assert life.obs, "a life ended that never had a row"
        life.end = (end.reward, end.terminated, end.truncated)
        life.final = end.obs
    booked = 0
    for episode in ready.episodes:
        for entry in ready.unclaimed[booked : episode.unclaimed]:
            story(entry.env_index).unclaimed[entry.agent_id] += entry.reward
        booked = episode.unclaimed
        story(episode.env_index).flags = (episode.terminated, episode.truncated)
        stories[episode.env_index].append(Story())
    for entry in ready.unclaimed[booked:]:
        story(entry.env_index).unclaimed[entry.agent_id] += entry.reward
    for join in ready.joined:
        assert join.slot not in open_lives, "an agent joined on a slot that is in use"
        life = open_lives[join.slot] = Life()
        story(join.env_index).lives.setdefault(join.agent_id, []).append(life)
    assert len(set(ready.slots.tolist())) == len(ready.slots), "a row was delivered twice"
    for row, slot in enumerate(ready.slots.tolist()):
        open_lives[slot].obs.append(copied(ready.obs[row]))
        open_lives[slot].rewards.append(float(ready.rewards[row]))


def legal_action(space: gym.Space[Any], obs: Any, rng: np.random.Generator) -> Any:
    """Draw an action that the mask of `obs` allows, in the form in which policies send it."""
    if isinstance(space, gym.spaces.Discrete):
        if isinstance(obs, dict) and "action_mask" in obs:
            return np.int64(rng.choice(np.flatnonzero(obs["action_mask"])))
        return np.int64(rng.integers(space.n))
    assert isinstance(space, gym.spaces.Box)
    action = rng.uniform(space.low, space.high).astype(space.dtype)
    action.flags.writeable = False
    return action


def copied(obs: Any) -> Any:
    if isinstance(obs, Mapping):
        return {key: copied(value) for key, value in obs.items()}
    return np.array(obs)


def replay(game: Any, script: Script) -> tuple[Story, dict[Any, float]]:
    """Play a script by PettingZoo's own loop; return its story and the sums of `env.rewards`."""
    return (_replay_turns if hasattr(game, "agent_iter") else _replay_parallel)(game, script)


def _replay_turns(game: Any, script: Script) -> tuple[Story, dict[Any, float]]:
    story, paid = Story(), defaultdict[Any, float](float)
    game.reset(seed=script.seed)
    actions = iter(script.actions)
    for agent in game.agent_iter():
        obs, reward, terminated, truncated, info = game.last()
        life = story.lives.setdefault(agent, [Life()])[0]
        if terminated or truncated:
            life.end, life.final = (float(reward), bool(terminated), bool(truncated)), copied(obs)
            game.step(None)
            continue
        life.obs.append(_with_mask(obs, info))
        life.rewards.append(float(reward))
        answers = next(actions, None)
        if answers is None:
            break
        game.step(answers[agent])
        for earner, amount in game.rewards.items():
            paid[earner] += float(amount)
    return story, paid


def _replay_parallel(game: Any, script: Script) -> tuple[Story, dict[Any, float]]:
    story, paid = Story(), defaultdict[Any, float](float)
    obs, infos = game.reset(seed=script.seed)
    for agent in game.agents:
        story.lives[agent] = [Life([_with_mask(obs[agent], infos[agent])], [0.0])]
    for actions in script.actions:
        obs, rewards, terminations, truncations, infos = game.step(dict(actions))
        for earner, amount in rewards.items():
            paid[earner] += float(amount)
        for agent in obs:
            life = story.lives.setdefault(agent, [Life()])[0]
            if terminations[agent] or truncations[agent]:
                life.end = (float(rewards[agent]), bool(terminations[agent]), bool(truncations[agent]))
                life.final = copied(obs[agent])
            else:
                life.obs.append(_with_mask(obs[agent], infos[agent]))
                life.rewards.append(float(rewards.get(agent, 0.0)))
    return story, paid


def _with_mask(obs: Any, info: Mapping[str, Any]) -> Any:
    obs = copied(obs)
    if "action_mask" in info and not (isinstance(obs, dict) and "action_mask" in obs):
        return {"observation": obs, "action_mask": np.array(info["action_mask"])}
    return obs


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Compare two observations, which may be nested."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    else:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=where)
