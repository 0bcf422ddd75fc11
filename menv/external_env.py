"""External environments: applications that own their loop and ask for actions.

Subclass `ExternalEnv` or `ExternalMultiAgentEnv` and write `run()`, which is executed in a thread of its own. Calls
may come from any thread, for many episodes at once; those of one episode come one after the other. The calls go to a
`EpisodeBroker`, from which the sampler takes them.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from copy import deepcopy
from threading import Lock, get_ident
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import SINGLE_AGENT, AgentId, ConvertibleEnv
from menv.errors import CallOrderError, ConfigError, ContractError, EpisodeError
from menv.spaces import as_flag

# SEAM menv.call_errors
# What is wrong with calls from outside that several places refuse in the same words.


def stopped() -> CallOrderError:
    """Return the error for calls that nobody will answer."""
    return CallOrderError(
        "external environment: nobody samples any more, expected no further call; end the thread"
    )


def over() -> CallOrderError:
    """Return the error for a sampler that goes on with an environment that was stopped."""
    return CallOrderError("poll: this environment was stopped, expected no further poll; create another")


def mixed(where: str, episode_id: str) -> EpisodeError:
    """Return the error for single calls in an episode that is handed in in pieces."""
    return EpisodeError(
        f"{where}: whole pieces of episode {episode_id!r} were handed in, expected no single calls; do one or the other"
    )


def unlike(obs: Iterable[AgentId], actions: Iterable[AgentId]) -> CallOrderError:
    """Return what a caller is told that has logged actions of other agents than those that observed."""
    return CallOrderError(
        f"log_action: observations of {_named(obs)} and actions of {_named(actions)}, expected the same agents; log an "
        "action for each agent that observes"
    )


def keyed_by_agent(where: str, what: str, given: Any) -> Mapping[Any, Any]:
    """Return what a caller gave for several agents.

    Raises:
        ContractError: It is no dict.
    """
    if isinstance(given, Mapping):
        return given
    raise ContractError(
        f"{where}: {what} is {type(given).__name__}, expected a dict by agent id; write {{agent_id: ...}} also for one "
        "agent alone"
    )


def done_flags(given: Any) -> dict[Any, bool]:
    """Return the flags that a caller gave for agents whose own trajectories end.

    Raises:
        ContractError: It is no dict, or holds something else than True and False.
    """
    if given is None:
        return {}
    flags = keyed_by_agent("log_returns", "multiagent_done_dict", given)
    return {
        agent: as_flag(flag, f"log_returns: the done flag of {agent!a:.60}") for agent, flag in flags.items()
    }


def truncation(given: Any) -> bool:
    """Return whether a caller's episode was cut short.

    Raises:
        ContractError: It is neither True nor False.
    """
    return as_flag(given, "end_episode: truncated")


def check_told_info(given: Any) -> None:
    """Refuse an info that is neither a dict nor None.

    Raises:
        ContractError: It is something else.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ContractError(
            f"log_returns: info is {type(given).__name__}, expected a dict; leave it out if there is nothing to tell"
        )


def check_start(episode_id: Any, trained: Any) -> None:
    """Refuse what no episode can begin with.

    Raises:
        ContractError: The id is no text, or whether policies may learn is neither True nor False.
    """
    if not isinstance(episode_id, str | int | None):
        raise ContractError(
            f"start_episode: episode_id is {type(episode_id).__name__}, expected a text; leave it out to be given one"
        )
    if not isinstance(trained, bool | np.bool_):
        raise ContractError(
            f"start_episode: training_enabled is {trained!r:.40}, expected True or False; say whether policies may "
            "learn from the episode"
        )


def _named(agents: Iterable[AgentId]) -> str:
    return ", ".join(sorted(map(repr, agents))[:8]) or "nobody"


Space = gym.Space[Any]


class _External(ConvertibleEnv, abc.ABC):
    """What both kinds have in common.

    Args:
        action_space: Of each agent.
        observation_space: Of each agent.
        max_concurrent: Most episodes that may be open at once; None for any number.

    Attributes:
        switchboard: Where the calls go.
        converted: Whether a `BaseEnv` has been made of it.
        sampler: The thread that samples just now, None where none does.
    """

    def __init__(self, action_space: Any, observation_space: Any, max_concurrent: int | None = None) -> None:
        if max_concurrent is not None and max_concurrent < 1:
            raise ConfigError(
                f"{type(self).__name__}: max_concurrent={max_concurrent}, expected at least 1; leave it out for any "
                "number"
            )
        self.action_space = action_space
        self.observation_space = observation_space
        from menv.adapters.episode_broker import EpisodeBroker

        self.switchboard = EpisodeBroker(max_concurrent)
        self.converted = False
        self.sampler: int | None = None

    @abc.abstractmethod
    def run(self) -> None:
        """Play for as long as the process lives, or until a call raises `CallOrderError` because training is over.

        Start episodes, ask for actions or log your own, log rewards, end episodes; wait where there is nothing to do.
        What it raises is raised by `train()`, and so is a complaint if it returns while `train()` waits for it.
        """

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode; waits a second at most where hundreds are over that have not been sampled yet.

        Args:
            episode_id: A new id; None makes one up.
            training_enabled: Whether policies may learn from it.

        Returns:
            The id.

        Raises:
            EpisodeError: The id was used before.
            CallOrderError: `max_concurrent` episodes are open.
            ContractError: The id is no text, or `training_enabled` no flag.
        """
        check_start(episode_id, training_enabled)
        return self.switchboard.start(episode_id, training_enabled, wait=True)

    def _ask(self, episode_id: str, obs: Mapping[AgentId, Any]) -> Mapping[AgentId, Any]:
        if self.sampler == get_ident():
            raise CallOrderError(
                f"get_action: episode {episode_id!r:.80} asks in the thread that samples, such as in a callback, and "
                "would wait for itself, expected a thread of one's own; call it in run(), or in a thread that you start"
            )
        arrived = Lock()
        arrived.acquire()
        box: list[Any] = []

        def answer(actions: Mapping[AgentId, Any] | BaseException) -> None:
            box.append(actions)
            arrived.release()

        self.switchboard.request_actions(episode_id, obs, answer)
        arrived.acquire()
        if isinstance(box[0], BaseException):
            raise box[0]
        actions: Mapping[AgentId, Any] = box[0]
        return actions


class ExternalEnv(_External):
    """An external environment of one agent.

    Args:
        action_space: Of the agent.
        observation_space: Likewise; the action space comes first, as in the classic class.
        max_concurrent: Most episodes that may be open at once; None for any number.
    """

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """Return the policy's action in answer to an observation; waits for it.

        Raises:
            EpisodeError: There is no such episode, or another call of it has not returned.
            CallOrderError: Training is over, or this is the thread that samples.
        """
        return self._ask(episode_id, {SINGLE_AGENT: observation})[SINGLE_AGENT]

    def log_action(self, episode_id: str, observation: Any, action: Any) -> None:
        """Tell of an action that the application chose itself.

        DQN learns from it; PPO, which must know how probable an action was, does not.

        Raises:
            EpisodeError: There is no such episode.
        """
        self.switchboard.log_action(
            episode_id, {SINGLE_AGENT: _kept(observation)}, {SINGLE_AGENT: _kept(action)}
        )

    def log_returns(self, episode_id: str, reward: float, info: Mapping[str, Any] | None = None) -> None:
        """Pay a reward for the last action; rewards add up until the next observation.

        Args:
            episode_id: The episode.
            reward: A finite number.
            info: Goes with the next observation, and only with it.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: The reward is not finite, or no number, or the info is no dict.
        """
        check_told_info(info)
        infos = None if info is None else {SINGLE_AGENT: _own(info)}
        self.switchboard.log_returns(episode_id, {SINGLE_AGENT: reward}, infos)

    def end_episode(self, episode_id: str, observation: Any, truncated: bool = False) -> None:
        """End an episode with its last observation.

        Args:
            episode_id: The episode.
            observation: The final one; None where there is none, then the last one stands for it.
            truncated: Whether it was cut short, so that there would have been more to earn.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: `truncated` is neither True nor False.
        """
        self.switchboard.end(episode_id, {SINGLE_AGENT: _kept(observation)}, truncated=truncation(truncated))


class ExternalMultiAgentEnv(_External):
    """An external environment of several agents; everything is keyed by agent id.

    Args:
        action_space: Of every agent, or a dict of spaces by agent id.
        observation_space: Likewise, for the same agents.
        max_concurrent: Most episodes that may be open at once; None for any number.

    Attributes:
        possible_agents: The agents that may ever appear, if the spaces name them.
    """

    def __init__(self, action_space: Any, observation_space: Any, max_concurrent: int | None = None) -> None:
        super().__init__(action_space, observation_space, max_concurrent)
        by_agent = [_by_agent(space) for space in (observation_space, action_space)]
        self.possible_agents: list[AgentId] = list(by_agent[0] or by_agent[1] or ())
        if by_agent[0] is not None and by_agent[1] is not None and by_agent[0].keys() != by_agent[1].keys():
            raise ConfigError(
                f"{type(self).__name__}: observation spaces of {sorted(map(repr, by_agent[0]))} and action spaces of "
                f"{sorted(map(repr, by_agent[1]))}, expected the same agents; give each agent both"
            )
        for name, spaces in zip(("observation_space", "action_space"), by_agent, strict=True):
            if spaces is not None:
                setattr(self, name, None)
                setattr(self, f"{name}s", dict(spaces))

    def get_action(self, episode_id: str, observation_dict: Mapping[AgentId, Any]) -> Mapping[AgentId, Any]:
        """Return an action for each agent that observes; see `ExternalEnv.get_action`."""
        return self._ask(episode_id, dict(keyed_by_agent("get_action", "observation_dict", observation_dict)))

    def log_action(
        self, episode_id: str, observation_dict: Mapping[AgentId, Any], action_dict: Mapping[AgentId, Any]
    ) -> None:
        """Tell of actions that the application chose itself; see `ExternalEnv.log_action`."""
        observed = keyed_by_agent("log_action", "observation_dict", observation_dict)
        chosen = keyed_by_agent("log_action", "action_dict", action_dict)
        self.switchboard.log_action(episode_id, _kept_of_each(observed), _kept_of_each(chosen))

    def log_returns(
        self,
        episode_id: str,
        reward_dict: Mapping[AgentId, float],
        info_dict: Mapping[AgentId, Mapping[str, Any]] | None = None,
        multiagent_done_dict: Mapping[AgentId, bool] | None = None,
    ) -> None:
        """Pay rewards to any agents; see `ExternalEnv.log_returns`.

        Args:
            episode_id: The episode.
            reward_dict: By agent.
            info_dict: Goes with the next observations, and only with them.
            multiagent_done_dict: True for agents whose own trajectories end; an observation that the next call holds
                of such an agent is its last one.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: One of them is no dict, or an info is none, a reward not a finite number, or a flag neither
                True nor False.
        """
        rewards = keyed_by_agent("log_returns", "reward_dict", reward_dict)
        infos = keyed_by_agent("log_returns", "info_dict", {} if info_dict is None else info_dict)
        done = done_flags(multiagent_done_dict)
        for info in infos.values():
            check_told_info(info)
        self.switchboard.log_returns(
            episode_id, rewards, {agent: _own(info) for agent, info in infos.items()}, done
        )

    def end_episode(
        self, episode_id: str, observation_dict: Mapping[AgentId, Any], truncated: bool = False
    ) -> None:
        """End an episode with the last observations of its agents; see `ExternalEnv.end_episode`."""
        observed = keyed_by_agent("end_episode", "observation_dict", observation_dict)
        self.switchboard.end(episode_id, _kept_of_each(observed), truncated=truncation(truncated))


def _kept(element: Any) -> Any:
    """Return a copy of what a caller hands in without waiting, for it may use its arrays again."""
    return element.copy() if type(element) is np.ndarray else deepcopy(element)


def _kept_of_each(by_id: Mapping[AgentId, Any]) -> dict[AgentId, Any]:
    return {agent: _kept(element) for agent, element in by_id.items()}


def _own(told: Any) -> Any:
    """Return an info whose dicts, lists and arrays the caller may use again; anything else in it is shared."""
    if type(told) is dict:
        return {name: _own(one) for name, one in told.items()}
    if type(told) is list:
        return [_own(one) for one in told]
    return told.copy() if type(told) is np.ndarray else told


def _by_agent(space: Any) -> Mapping[AgentId, Space] | None:
    return space if isinstance(space, Mapping) and not isinstance(space, gym.Space) else None
