"""Environments that do what a few lines say: a test derives one and writes down only what matters to it.

`Alone` is gymnasium's, `InStep` several of it that step together, `InDicts` a user's own `BaseEnv`. The agents of
`Several` act together, in turns, or come and go; those of `Sharing` play a game of one agent together, and those of
`InArrays` are in several worlds at once. `Calling` is an application that plays a game of several agents. The env steps
of an episode are in `at`, and most count episodes in `episode`; `config` is what they were created with. A step counts,
pays, and then shows.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv import (
    BaseEnv,
    DefaultCallbacks,
    ExternalMultiAgentEnv,
    MultiAgentEnv,
    VectorEnv,
    VectorMultiAgentEnv,
)

LINE: Any = gym.spaces.Box(-1000.0, 1000.0, (1,), np.float32)
TWO: Any = gym.spaces.Discrete(2)


def like(base: Any, **members: Any) -> Any:
    """Return a class that is as `base` but for some members; functions among them are its methods."""
    return type(base.__name__, (base,), members)


def raising(error: BaseException | type[BaseException]) -> Any:
    """Return a method that raises an error."""

    def method(*args: Any, **kwargs: Any) -> Any:
        raise error

    return method


def noting(hook: str, told: Any) -> tuple[Any, list[Any]]:
    """Return callbacks that keep what `told` makes of the keywords of each call of a hook, and the list of that."""
    seen: list[Any] = []
    return like(DefaultCallbacks, **{hook: lambda self, **given: seen.append(told(**given))}), seen


class Alone(gym.Env[Any, Any]):
    """One agent that sees the env step and is paid 1 in each of `length`; with `cut`, episodes are truncated."""

    observation_space, action_space = LINE, TWO
    length = 7
    cut = False

    def __init__(self, config: Any = None, length: int | None = None) -> None:
        self.config: Any = {} if config is None else config
        self.length = self.length if length is None else length
        self.episode, self.at = -1, 0

    def see(self) -> Any:
        return np.full(self.observation_space.shape, self.at, self.observation_space.dtype)

    def pay(self, action: Any) -> float:
        return 1.0

    def info(self) -> Any:
        return {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self.see(), self.info()

    def step(self, action: Any) -> Any:
        self.at += 1
        paid, over = self.pay(action), self.at == self.length
        return self.see(), paid, over and not self.cut, over and self.cut, self.info()


class InStep(VectorEnv):
    """Environments of `Alone`, stepped together."""

    def __init__(self, envs: list[Any]) -> None:
        super().__init__(envs[0].observation_space, envs[0].action_space, len(envs))
        self.envs = envs

    def vector_reset(self, *, seeds: Any = None, options: Any = None) -> Any:
        return tuple(map(list, zip(*[env.reset() for env in self.envs], strict=True)))

    def reset_at(self, index: int | None = None, *, seed: Any = None, options: Any = None) -> Any:
        return self.envs[index or 0].reset()

    def vector_step(self, actions: Any) -> Any:
        steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        return tuple(map(list, zip(*steps, strict=True)))

    def get_sub_environments(self) -> Any:
        return self.envs


class Several(MultiAgentEnv):
    """Agents that see the env step; all who are `shown` are paid 1, and nobody dies before the end."""

    possible_agents: Any = ("a", "b")
    observation_space: Any = LINE
    action_space: Any = TWO
    length = 7
    cut = False

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = list(self.possible_agents)
        self.config: Any = {} if config is None else config
        self.episode, self.at = -1, 0
        self.rng = np.random.default_rng(0)

    def shown(self) -> Any:
        return self.possible_agents

    def dead(self, actions: Any) -> Any:
        return ()

    def see(self, agent: Any) -> Any:
        space: Any = self.get_observation_space(agent)
        return np.full(space.shape, self.at, space.dtype)

    def pay(self, actions: Any) -> Any:
        return dict.fromkeys(self.shown(), 1.0)

    def observe(self) -> Any:
        return {agent: self.see(agent) for agent in self.shown()}

    def infos(self) -> Any:
        return {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.episode, self.at = self.episode + 1, 0
        return self.observe(), self.infos()

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        paid, over = self.pay(action_dict), self.at == self.length
        ends = {"__all__": over and not self.cut, **dict.fromkeys(self.dead(action_dict), True)}
        return self.observe(), paid, ends, {"__all__": over and self.cut}, self.infos()


class Sharing(Several):
    """Agents that play a game of `kind` together: the first one's action counts, all see it, and they share its pay."""

    kind: Any = Alone

    def __init__(self, *given: Any) -> None:
        super().__init__(*given[:1])
        self.game = self.kind(*given)
        self.observation_space, self.action_space = self.game.observation_space, self.game.action_space

    def see(self, agent: Any) -> Any:
        return self.seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seen = self.game.reset(seed=seed)[0]
        return super().reset(seed=seed)

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        self.seen, paid, over, cut, _ = self.game.step(next(iter(action_dict.values()), None))
        each = dict.fromkeys(self.possible_agents, paid / len(self.possible_agents))
        return self.observe(), each, {"__all__": over}, {"__all__": cut}, self.infos()


class InArrays(VectorMultiAgentEnv):
    """Worlds of several agents that step together, in arrays of worlds by agents, or in dicts of them by agent.

    Each agent is paid 1 a step, and all worlds end after `length` of them; with `cut`, they are truncated.
    """

    num_envs: Any = 2
    possible_agents: Any = ("a", "b")
    length = 2
    cut = False

    def __init__(self, config: Any = None) -> None:
        self.possible_agents = list(self.possible_agents)
        self.config: Any = {} if config is None else config
        self.at = 0

    def observe(self) -> Any:
        raise NotImplementedError

    def pay(self, actions: Any) -> Any:
        return np.ones((self.num_envs, len(self.possible_agents)))

    def done(self) -> Any:
        return np.full((self.num_envs, len(self.possible_agents)), self.at == self.length)

    def infos(self) -> Any:
        over = self.at == self.length
        return {"final_obs": self.observe(), "_final_obs": np.ones(self.num_envs)} if over else {}

    def reset(self, *, seed: int | None = None) -> Any:
        self.at = 0
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        self.at += 1
        paid, done, infos = self.pay(actions), self.done(), self.infos()
        none = {agent: 0 * flags for agent, flags in done.items()} if isinstance(done, dict) else 0 * done
        self.at %= self.length
        return self.observe(), paid, none if self.cut else done, done if self.cut else none, infos


class InDicts(BaseEnv):
    """Sub-environments of one agent, "a", that sees the env step: a `BaseEnv` in six dicts."""

    observation_space: Any = LINE
    action_space: Any = TWO
    ids: Any = (0, 1)
    length = 4

    def __init__(self, config: Any = None) -> None:
        self.config: Any = {} if config is None else config
        self.at: Any = dict.fromkeys(self.ids, 0)
        self.due = list(self.ids)

    def see(self, env_id: Any) -> Any:
        return {"a": np.full(1, self.at[env_id], np.float32)}

    def poll(self, timeout: float | None = None) -> Any:
        due, self.due = self.due, []
        obs = {env_id: self.see(env_id) for env_id in due}
        paid = {env_id: {"a": float(self.at[env_id] > 0)} for env_id in due}
        over = {env_id: {"__all__": self.at[env_id] == self.length} for env_id in due}
        return obs, paid, over, {env_id: {"__all__": False} for env_id in due}, {}, {}

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        for env_id in slots:
            self.at[env_id] += 1
            self.due.append(env_id)

    def try_reset(self, env_id: Any = None, *, seed: Any = None, options: Any = None) -> Any:
        self.at[env_id] = 0
        return {env_id: self.see(env_id)}, {env_id: {}}


class Calling(ExternalMultiAgentEnv):
    """Plays `game` and asks for each action."""

    def __init__(self, game: Any) -> None:
        super().__init__(
            game.action_spaces or game.action_space, game.observation_spaces or game.observation_space
        )
        self.possible_agents = game.possible_agents
        self.game = game

    def run(self) -> None:
        while True:
            episode, over = self.start_episode(), False
            obs, infos = self.game.reset()
            self.log_returns(episode, {}, infos)
            while not over:
                obs, paid, ends, cuts, infos = self.game.step(self.get_action(episode, obs))
                over = ends["__all__"] or cuts["__all__"]
                self.log_returns(episode, paid, infos, {**ends, "__all__": False})
            self.end_episode(episode, obs)
