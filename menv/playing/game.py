"""`Game`: the policies of a run and at most one person, in one copy of the run's environment, one move at a time.

    with Game("runs/tictactoe-PPO-001", human="player1") as game:
        position = game.start()
        while not position.done:
            position = game.advance()
            if not position.done:
                position = game.step(position.legal[0])

Policies come from `Policy.from_checkpoint`, so neither torch nor the sampler is needed. Agents that act at the same
time choose one after another, the person first, and the environment steps once all have chosen.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import rng
from menv.adapters.validation import count_empty, validate_step
from menv.algorithms.config.stored_config import NamedOnlyError, stored_setting
from menv.base_env import ALL, SINGLE_AGENT, AgentId
from menv.env_calls import as_flag, as_reward, close_env, close_unused, reset_env
from menv.env_context import EnvContext
from menv.episode import Episode
from menv.errors import CallOrderError, ConfigError, ContractError, MenvError
from menv.inference.checkpoint_folder import find_checkpoint, read_manifest
from menv.inference.network_policy import NetworkPolicy
from menv.policy import MASK_KEY, Policy
from menv.policy_map import adapt_mapping_fn
from menv.registry import env_kind, make_env
from menv.sampling.local_inference import local_policy_inference
from menv.spaces import flat_mask

Picture = str | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Position:
    """A moment of a game.

    Attributes:
        picture: What the environment renders: a text, or uint8 [height, width, 3]; None if it renders nothing. A person
            sees what its `render_for(agent)` returns, and the whole game at the end.
        agent: The agent that acts next; None at the end.
        legal: Its legal actions, as the mask says; () unless its action space is Discrete.
        names: The name of each of them.
        probabilities: Probability of each action under the agent's policy, also for the person's agent; None if the
            agent has no policy, or one whose probabilities depend on frames of past observations.
        last_actions: Last action of each agent that has acted, the latest ones last.
        returns: Sum of the rewards of each agent so far.
        steps: Env steps so far.
        done: Whether the episode is over.
        outcome: What the end means: the winner of a zero-sum game, else the returns; "" before.
    """

    picture: Picture | None
    agent: AgentId | None
    legal: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    probabilities: Mapping[int, float] | None = None
    last_actions: Mapping[AgentId, Any] = field(default_factory=dict)
    returns: Mapping[AgentId, float] = field(default_factory=dict)
    steps: int = 0
    done: bool = False
    outcome: str = ""


ENV = 0
"""What policies call the environment in which they play."""


class RunPolicies:
    """The policies of a run and of the snapshots that are chosen, and which of them an agent has.

    Args:
        run: A run folder, a checkpoint, or a folder of exported policies.
        stored: The run's settings.
        chosen: Ids of policies, or names of snapshots, by agent or by a pattern such as `"car_*"`.
        seed: Of sampled actions.

    Attributes:
        chosen: As given.
        own: The run's policies by id.
    """

    def __init__(
        self, run: str | PathLike[str], stored: Mapping[str, Any], chosen: Mapping[str, str], seed: int
    ) -> None:
        self._run, self._seed, self.chosen = run, seed, dict(chosen)
        self.own = self._loaded(None)
        if (stored.get("multiagent") or {}).get("observation_fn") is not None:
            raise ConfigError(
                f"run {run}: policies see what its observation_fn makes of the observations, expected none; use menv "
                "evaluate"
            )
        self._snapshots: dict[str, dict[str, NetworkPolicy]] = {}
        for name in self.chosen.values():
            if name not in self.own:
                self._snapshots[name] = self._loaded(name)
        self._unknown: NamedOnlyError | None = None
        self._mapping = None
        try:
            mapping = stored_setting(stored, "multiagent", "policy_mapping_fn")
            self._mapping = None if mapping is None else adapt_mapping_fn(mapping)
        except NamedOnlyError as error:
            # Only a problem if names do not say it.
            self._unknown = error

    def _loaded(self, snapshot: str | None) -> dict[str, NetworkPolicy]:
        try:
            found: Any = Policy.from_checkpoint(self._run, snapshot=snapshot)  # type: ignore[arg-type]
        except ConfigError as error:
            if snapshot is None:
                raise
            raise ConfigError(
                f"policy {snapshot!r}: not in the run, expected one of {sorted(self.own)[:20]} or a snapshot ({error})"
            ) from None
        policies: dict[str, NetworkPolicy] = found if isinstance(found, dict) else {found.policy_id: found}
        for name, policy in policies.items():
            # A snapshot must not draw the same numbers as the run.
            drawn_by = name if snapshot is None else f"{snapshot}:{name}"
            policy.set_draws_state([rng.key(self._seed, rng.stable_hash(drawn_by)), 0])
        return policies

    def begin(self) -> None:
        """Forget what the policies remember of the game before."""
        for policies in (self.own, *self._snapshots.values()):
            for policy in policies.values():
                policy.agent_connectors.reset(ENV)

    def policy_of(self, agent: AgentId, episode: Episode, *, advises: bool = False) -> NetworkPolicy | None:
        """Return an agent's policy; None if it is undecided.

        If it advises a person, it is the run's, also where a snapshot plays.
        """
        name = next((name for key, name in self.chosen.items() if fnmatchcase(str(agent), key)), None)
        if name in self.own:
            return self.own[name]
        own = self.id_of(agent, episode)
        policies = self.own if name is None or advises else self._snapshots[name]
        return policies.get(own)

    def id_of(self, agent: AgentId, episode: Episode) -> str:
        """Return the id that an agent's policy has in training, or should have."""
        if self._mapping is not None:
            name = self._mapping(agent, episode, None)
            episode.bind(agent, name)
            return name
        return next(iter(self.own)) if len(self.own) == 1 else str(agent)

    def missing(self, agent: AgentId) -> ConfigError:
        """Return the error about an agent for which `policy_of` has none."""
        if self._unknown is not None:
            self._unknown.add_note(f"or pass policies={{{str(agent)!r}: ...}} to Game")
            return self._unknown
        return ConfigError(
            f"agent {str(agent)!r}: none of the policies in the run is its policy, expected one of "
            f"{sorted(self.own)[:20]}; add --policy {agent}={min(self.own, default='POLICY')}"
        )


class Game:
    """Plays episodes of an environment with policies from disk, and optionally a person.

    Args:
        run: A run folder, a checkpoint, or a folder of exported policies.
        human: The agent whose actions `step` gets; None lets policies play all agents.
        env: The environment, as for `make_env`; by default the run's, if this process knows its name.
        env_config: Settings that override the run's.
        policies: Ids of the policies of agents, by agent or by a pattern such as `"car_*"`; or names of snapshots of
            the run's league, such as `"snapshot_3"`, or levels, `"easy"`, `"medium"` and `"hard"`. Other agents have
            the policy that the run's `policy_mapping_fn` names; if that is not known here, the only policy, or the
            one named after the agent.
        seed: Of the first reset, and of sampled actions.
        greedy: Whether policies take their most likely action; False samples.
        render_mode: "ansi" or "rgb_array"; None takes the first of them that the environment has.
        show_all: Whether a person sees what other agents may hide, where the environment has no `render_for`.

    Attributes:
        agents: Ids of all agents that the environment lists.
        human: The person's agent, as the environment calls it.
        show_all: As given; may be changed.
        own: Who plays, unless `seat` was called.
        policies: The policies of the run by id.
        self_play: The run's settings of self-play.
        position: The current position; None before `start`.

    Raises:
        ConfigError: An agent or a policy is unknown, or the person's actions are not Discrete.
        NamedOnlyError: The run holds its environment, or the mapping function that is needed, by name only.
    """

    def __init__(
        self,
        run: str | PathLike[str],
        *,
        human: AgentId | None = None,
        env: Any = None,
        env_config: Mapping[str, Any] | None = None,
        policies: Mapping[str, str] | None = None,
        seed: int = 0,
        greedy: bool = True,
        render_mode: str | None = None,
        show_all: bool = False,
    ) -> None:
        stored = _stored(run, env)
        self.own = RunPolicies(run, stored, policies or {}, seed)
        self.policies = self.own.own
        self.self_play: Mapping[str, Any] = stored.get("self_play") or {}
        self._players: Mapping[AgentId, RunPolicies] = {}
        self._policies: dict[AgentId, NetworkPolicy | None] = {}
        self._seed: int | None = seed
        self._greedy, self.show_all = greedy, show_all
        self.position: Position | None = None
        self._episode = 0
        # The one that `start` begins next, until it has begun.
        self._current = Episode(1, 0)
        settings = {**(stored_setting(stored, "env_config") or {}), **(env_config or {})}
        self.env = _made(stored_setting(stored, "env") if env is None else env, settings, render_mode)
        try:
            self._single = env_kind(self.env) == "single_agent"
            self.agents = [SINGLE_AGENT] if self._single else _listed(self.env)
            self.human = None if human is None else self._agent(human)
            self._check()
        except BaseException:
            close_unused(self.env)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def seat(self, players: Mapping[AgentId, RunPolicies]) -> None:
        """Let other players play agents in the games that start from now on."""
        self._players = players
        self._policies.clear()

    def start(self) -> Position:
        """Reset the environment and return the first position."""
        self._episode += 1
        for players in (self.own, *self._players.values()):
            players.begin()
        if self._episode > 1:
            self._current = Episode(self._episode, 0)
            self._policies.clear()
        obs, infos = reset_env(self.env, 0, self._seed)
        self._seed = None
        self._returns: dict[AgentId, float] = dict.fromkeys(self.agents, 0.0)
        self._last_actions: dict[AgentId, Any] = {}
        self._states: dict[AgentId, Any] = {}
        self._rewards: dict[AgentId, float] = {}
        self._steps, self._over = 0, False
        self._wait_for(*(({SINGLE_AGENT: obs}, {SINGLE_AGENT: infos}) if self._single else (obs, infos)))
        self._step_until_waiting()
        return self._now()

    def step(self, action: Any) -> Position:
        """Let the agent that acts next take this action and return the next position.

        Raises:
            CallOrderError: No game is running.
            ContractError: The action is not legal.
        """
        position = self._running("step")
        if position.legal and (isinstance(action, bool) or action not in position.legal):
            raise ContractError(
                f"Game.step: {position.agent!r} chose {action!r:.100}, expected one of its legal actions "
                f"{list(position.legal)[:20]}; choose again"
            )
        return self._take(position.agent, action)

    def advance(self, moves: int | None = None) -> Position:
        """Let policies act until it is the person's turn or the end, or for a number of moves.

        Raises:
            CallOrderError: No game was started.
        """
        position = self.position or self._running("advance")
        while not position.done and position.agent != self.human and moves != 0:
            position = self._take(position.agent, self._action(position.agent))
            moves = None if moves is None else moves - 1
        return position

    def reveal(self) -> Position:
        """Show the person everything from now on, and return the current position."""
        self.show_all = True
        self._picture = self._seen()
        return self._now()

    def close(self) -> None:
        """Close the environment."""
        close_env(self.env)

    def policy_of(self, agent: AgentId) -> str | None:
        """Return the id of an agent's policy; None if it is undecided."""
        policy = self._policy_of(agent)
        return None if policy is None else policy.policy_id

    def _policy_of(self, agent: AgentId) -> NetworkPolicy | None:
        """Return an agent's policy, for the person's agent the one that advises; None if it is undecided."""
        if agent not in self._policies:
            players = self._players.get(agent, self.own)
            self._policies[agent] = players.policy_of(agent, self._current, advises=agent == self.human)
        return self._policies[agent]

    def action_space(self, agent: AgentId) -> gym.Space[Any]:
        """Return the action space of an agent."""
        space: gym.Space[Any] = self.env.action_space if self._single else self.env.get_action_space(agent)
        return space

    def observation_space(self, agent: AgentId) -> gym.Space[Any]:
        """Return the observation space of an agent."""
        env = self.env
        space: gym.Space[Any] = env.observation_space if self._single else env.get_observation_space(agent)
        return space

    def action_name(self, agent: AgentId, action: Any) -> str:
        """Return the environment's name of an action, or the action as text."""
        space = self.action_space(agent)
        if not isinstance(space, gym.spaces.Discrete):
            return str(action)
        names = _action_names(self.env, agent, int(space.n))
        return names[action - int(space.start)] if names else str(action)

    def _agent(self, name: AgentId) -> AgentId:
        by_name = {str(agent): agent for agent in self.agents}
        if by_name and str(name) not in by_name:
            raise ConfigError(
                f"agent {name!r}: not in the environment, expected one of {list(by_name)[:20]}; name one of them"
            )
        return by_name.get(str(name), name)

    def _check(self) -> None:
        for chosen_for in self.own.chosen:
            if not any(fnmatchcase(str(agent), chosen_for) for agent in self.agents):
                self._agent(chosen_for)
        for agent in self.agents:
            if agent != self.human and self._policy_of(agent) is None:
                raise self.own.missing(agent)
        if self.human is not None:
            self.seats(self.human)

    def seats(self, human: AgentId | None) -> list[str]:
        """Return the agents that a person can play.

        Raises:
            ConfigError: `human` has no Discrete actions, or no agent has.
        """
        found = [one for one in self.agents if isinstance(self.action_space(one), gym.spaces.Discrete)]
        agent = self.agents[0] if human is None else self._agent(human)
        if not found or (human is not None and agent not in found):
            raise ConfigError(
                f"agent {agent!r}: its action space is {str(self.action_space(agent))[:80]}, expected Discrete actions "
                "to play; menv watch shows the policies"
            )
        return [*map(str, found)]

    def _running(self, method: str) -> Position:
        if self.position is None or self.position.done:
            raise CallOrderError(f"Game.{method}: no game is running, expected start first; call start")
        return self.position

    def _action(self, agent: AgentId) -> Any:
        """Return the action of the agent's policy."""
        policy = self._policy_of(agent)
        if policy is None:
            raise self.own.missing(agent)
        reward, info = self._rewards.pop(agent, 0.0), self._infos.get(agent)
        (action, state, _), *_ = local_policy_inference(
            policy, ENV, agent, self._obs[agent], reward, info=info, explore=not self._greedy
        )
        self._states[agent] = state
        return action

    def _take(self, agent: AgentId, action: Any) -> Position:
        self._answers[agent] = action
        if len(self._answers) == len(self._obs):
            answers = self._answers
            self._step({name: answers[name] for name in self._obs})
            self._step_until_waiting()
        return self._now()

    def _step_until_waiting(self) -> None:
        empty = 0
        while not (self._obs or self._over):
            empty = count_empty(empty, "Game.step", False)
            self._step({})

    def _step(self, answers: dict[AgentId, Any]) -> None:
        plain = {agent: one.item() if isinstance(one, np.generic) else one for agent, one in answers.items()}
        # The latest ones last.
        earlier = [(agent, one) for agent, one in self._last_actions.items() if agent not in plain]
        self._last_actions = dict(earlier) | plain
        self._steps += 1
        self._current.length = self._steps
        if self._single:
            obs, reward, terminated, truncated, info = self.env.step(answers[SINGLE_AGENT])
            ends = (
                {ALL: as_flag(terminated, "step: terminated")},
                {ALL: as_flag(truncated, "step: truncated")},
            )
            result: Any = ({SINGLE_AGENT: obs}, {SINGLE_AGENT: reward}, *ends, {SINGLE_AGENT: info})
        else:
            result = self.env.step(answers)
        obs, rewards, terminateds, truncateds, infos = validate_step(result, self._wrong)
        for agent, reward in rewards.items():
            number = as_reward(reward, f"step: the reward of {agent!r}")
            self._returns[agent] = self._returns.get(agent, 0.0) + number
            self._rewards[agent] = self._rewards.get(agent, 0.0) + number
        gone = [agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag]
        self._over = ALL in gone
        self._wait_for({agent: one for agent, one in obs.items() if agent not in gone}, infos)

    def _wait_for(self, obs: Mapping[AgentId, Any], infos: Mapping[AgentId, Any]) -> None:
        self._answers: dict[AgentId, Any] = {}
        self._obs, self._infos, self._picture = dict(obs), infos, self._seen()

    def _seen(self) -> Picture | None:
        """Return the picture for the person, or for watching."""
        render_for = getattr(self.env, "render_for", None)
        if self._over and (whole := _picture(self.env)) is not None:
            return whole
        if self.human is not None and callable(render_for):
            return _as_picture(render_for(self.human))
        return None if self.may_reveal and not self.show_all else _picture(self.env)

    @property
    def may_reveal(self) -> bool:
        """Whether what the environment renders may show a person what other agents hide.

        It has neither `render_for` nor a board, which all agents see.
        """
        board = metadata_of(getattr(self.env, "unwrapped", self.env)).get("board")
        alone = self.human is None or len(self.agents) < 2
        shown = board is not None or callable(getattr(self.env, "render_for", None))
        return not (alone or shown) and getattr(self.env, "render_mode", None) in ("ansi", "rgb_array")

    def _wrong(self, method: str, got: str, expected: str, fix: str = "fix the environment") -> ContractError:
        return ContractError(f"{type(self.env).__name__}.{method}: {got}, expected {expected}; {fix}")

    def _now(self) -> Position:
        """Return the current position, and keep it."""
        returns = dict(self._returns)
        found: dict[str, Any]
        if self._over:
            found = {"agent": None, "done": True, "outcome": _outcome(returns, self.human)}
        else:
            in_order = sorted(self._obs, key=lambda one: one != self.human)
            agent = next(one for one in in_order if one not in self._answers)
            legal, names = self._legal(agent)
            chances = self._probabilities(agent, legal)
            found = {"agent": agent, "legal": legal, "names": names, "probabilities": chances}
        self.position = Position(
            self._picture, last_actions=dict(self._last_actions), returns=returns, steps=self._steps, **found
        )
        return self.position

    def _legal(self, agent: AgentId) -> tuple[tuple[int, ...], tuple[str, ...]]:
        space, obs = self.action_space(agent), self._obs[agent]
        if not isinstance(space, gym.spaces.Discrete):
            return (), ()
        mask = obs.get(MASK_KEY) if isinstance(obs, Mapping) else None
        allowed = np.flatnonzero(flat_mask(mask, space)).tolist()
        legal = tuple(one + int(space.start) for one in allowed)
        names = _action_names(self.env, agent, int(space.n))
        return legal, tuple(names[one] for one in allowed) if names else tuple(map(str, legal))

    def _probabilities(self, agent: AgentId, legal: tuple[int, ...]) -> dict[int, float] | None:
        policy = self._policy_of(agent)
        if policy is None or not legal:
            return None
        found = policy.action_probabilities(self._obs[agent], self._states.get(agent))
        start = int(getattr(self.action_space(agent), "start", 0))
        return None if found is None else {one: float(found[one - start]) for one in legal}


def _stored(run: Any, env: Any) -> dict[str, Any]:
    """Return the settings of a run; a folder of exported policies has none."""
    try:
        return read_manifest(find_checkpoint(run)).get("config") or {}
    except ConfigError:
        if env is None:
            raise
        return {}


def _made(env: Any, env_config: Mapping[str, Any], render_mode: str | None) -> Any:
    """Return a new environment that renders, if it can."""
    made = make_env(env, EnvContext(env_config))
    if env_kind(made) not in ("single_agent", "multi_agent"):
        raise ConfigError(
            f"env {env}: a {type(made).__name__}, expected a gymnasium.Env or a MultiAgentEnv, of which one copy can "
            "be stepped; pass such an environment (--env NAME)"
        )
    wanted = ("ansi", "rgb_array") if render_mode is None else (render_mode,)
    offered = metadata_of(made).get("render_modes") or ()
    mode = next((one for one in wanted if one in offered), None)
    if mode is None or getattr(made, "render_mode", None) in wanted:
        return made
    try:
        again = make_env(env, EnvContext({**env_config, "render_mode": mode}))
    except MenvError:
        # Its creator takes no render_mode.
        return made
    close_unused(made)
    return again


def metadata_of(env: Any) -> Mapping[str, Any]:
    """Return the metadata of an environment, which may have none."""
    found: Mapping[str, Any] = getattr(env, "metadata", None) or {}
    return found


def _listed(env: Any) -> list[AgentId]:
    return list(getattr(env, "possible_agents", None) or sorted(env.get_agent_ids(), key=str))


def _picture(env: Any) -> Picture | None:
    """Return what the environment renders; None for neither form."""
    if getattr(env, "render_mode", None) in (None, "human"):
        return None
    try:
        return _as_picture(env.render())
    except NotImplementedError:
        return None
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"render: {error}, expected the packages that it needs; install them") from error


def _as_picture(found: Any) -> Picture | None:
    if isinstance(found, list):
        found = found[-1] if found else None
    if isinstance(found, io.StringIO):
        found = found.getvalue()
    is_picture = isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.shape[2:] == (3,)
    return found if isinstance(found, str) or is_picture else None


def _action_names(env: Any, agent: AgentId, count: int) -> list[str] | None:
    """Return the environment's name of each action, None if it has none."""
    for holder in (env, getattr(env, "unwrapped", env)):
        meanings = getattr(holder, "get_action_meanings", None)
        named = meanings() if meanings else metadata_of(holder).get("action_names")
        if isinstance(named, Mapping):
            named = named.get(agent)
        if named is not None and len(named) == count:
            return [str(one) for one in named]
    return None


def _outcome(returns: Mapping[AgentId, float], human: AgentId | None) -> str:
    most = max(returns.values(), default=0.0)
    if SINGLE_AGENT in returns:
        return f"return {returns[SINGLE_AGENT]:.2f}"
    if len(returns) < 2 or abs(sum(returns.values())) > 1e-6:
        return f"returns: {', '.join(f'{agent} {value:.2f}' for agent, value in returns.items())}"
    winners = [agent for agent, value in returns.items() if value == most]
    if len(winners) == len(returns):
        return "draw"
    if human is not None:
        return "you win" if human in winners else "you lose"
    return f"{' and '.join(map(str, winners))} win{'s' if len(winners) == 1 else ''}"
