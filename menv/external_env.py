"""External environments: applications with their own loop, which ask for actions.

Subclass `ExternalEnv` or `ExternalMultiAgentEnv` and write `run()`, which menv calls in a separate thread. Calls may
come from any thread, for many episodes at once; the calls of one episode must not overlap. They go to an
`EpisodeBroker`, from which the sampler reads them. The functions at the end check arguments, for `PolicyClient` as
well.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from copy import deepcopy
from threading import Lock, get_ident
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import SINGLE_AGENT, AgentId, convert_env, innermost
from menv.env_calls import as_flag
from menv.errors import CallOrderError, ConfigError, ContractError


def stopped() -> CallOrderError:
    """Return the error for calls after the last sampler has stopped."""
    return CallOrderError(
        "external environment: training has stopped, no further call is possible; end the thread"
    )


def over() -> CallOrderError:
    """Return the error for a sampler that polls a stopped environment."""
    return CallOrderError("poll: this environment was stopped; create another")


def keyed_by_agent(where: str, what: str, given: Any) -> Mapping[Any, Any]:
    """Return a dict by agent id.

    Raises:
        ContractError: It is not a dict.
    """
    if isinstance(given, Mapping):
        return given
    raise ContractError(
        f"{where}: {what} is {type(given).__name__}, expected a dict by agent id; write {{agent_id: ...}} also for one "
        "agent alone"
    )


def done_flags(given: Any) -> dict[Any, bool]:
    """Return the flags of agents whose trajectories end.

    Raises:
        ContractError: It is not a dict, or holds values other than True and False.
    """
    if given is None:
        return {}
    flags = keyed_by_agent("log_returns", "multiagent_done_dict", given)
    return {
        agent: as_flag(flag, f"log_returns: the done flag of {agent!a:.60}") for agent, flag in flags.items()
    }


def truncation(given: Any) -> bool:
    """Return `truncated` as a bool."""
    return as_flag(given, "end_episode: truncated")


def check_told_info(given: Any) -> None:
    """Refuse an info that is neither a dict nor None."""
    if given is not None and not isinstance(given, Mapping):
        raise ContractError(
            f"log_returns: info is {type(given).__name__}, expected a dict; leave it out if there is no info"
        )


def check_start(episode_id: Any, trained: Any) -> None:
    """Refuse wrong arguments of `start_episode`."""
    if not isinstance(episode_id, str | int | None):
        raise ContractError(
            f"start_episode: episode_id is {type(episode_id).__name__}, expected a string; leave it out to get one"
        )
    if not isinstance(trained, bool | np.bool_):
        raise ContractError(
            f"start_episode: training_enabled is {trained!r:.40}, expected True or False, whether policies may learn "
            "from the episode; pass one"
        )


def finite_reward(reward: object, episode_id: str, agent: AgentId) -> float:
    """Return a logged reward as a float; raise `ContractError` if it is not a finite number."""
    if isinstance(reward, int | float | np.number | np.bool_) or (
        isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "fiub"
    ):
        try:
            number = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        got = str(number)
    else:
        got = type(reward).__name__
    raise ContractError(
        f"log_returns: episode {episode_id!r}: the reward of {agent!r} is {got}, expected a finite number; pay a float"
    )


Space = gym.Space[Any]


class _External(abc.ABC):
    """What both kinds have in common.

    Args:
        action_space: Of each agent.
        observation_space: Of each agent.
        max_concurrent: Maximum number of open episodes; None for no limit.

    Attributes:
        broker: Receives the calls.
    """

    unwrapped = property(innermost)
    to_base_env = convert_env

    def __init__(self, action_space: Any, observation_space: Any, max_concurrent: int | None = None) -> None:
        if max_concurrent is not None and max_concurrent < 1:
            raise ConfigError(
                f"{type(self).__name__}: max_concurrent={max_concurrent}, expected at least 1; leave it out for any "
                "number"
            )
        self.action_space = action_space
        self.observation_space = observation_space
        from menv.adapters.episode_broker import EpisodeBroker

        self.broker = EpisodeBroker(max_concurrent)
        self._converted = False
        # The thread that samples now.
        self._sampler: int | None = None

    @abc.abstractmethod
    def run(self) -> None:
        """Play until the process ends or a call raises `CallOrderError` because training is over.

        Start episodes, ask for actions or log your own, log rewards, end episodes; wait if there is nothing to do.
        `train()` raises what `run` raises, and raises an error if `run` returns while `train()` waits for it.
        """

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode; waits at most a second if hundreds of finished ones have not been sampled yet.

        Args:
            episode_id: A new id; None creates one.
            training_enabled: Whether policies may learn from the episode.

        Returns:
            The id.

        Raises:
            EpisodeError: The id was used before.
            CallOrderError: `max_concurrent` episodes are open.
            ContractError: The id is not text, or `training_enabled` no flag.
        """
        check_start(episode_id, training_enabled)
        return self.broker.start(episode_id, training_enabled, wait=True)

    def _ask(self, episode_id: str, obs: Mapping[AgentId, Any]) -> Mapping[AgentId, Any]:
        if self._sampler == get_ident():
            raise CallOrderError(
                f"get_action: episode {episode_id!r:.80} is asked in the thread that samples, for example in a "
                "callback, and would wait for itself; call it in run(), or in a thread that you start"
            )
        arrived = Lock()
        arrived.acquire()
        box: list[Any] = []

        def answer(actions: Mapping[AgentId, Any] | BaseException) -> None:
            box.append(actions)
            arrived.release()

        self.broker.request_actions(episode_id, obs, answer)
        arrived.acquire()
        if isinstance(box[0], BaseException):
            raise box[0]
        actions: Mapping[AgentId, Any] = box[0]
        return actions


class ExternalEnv(_External):
    """An external environment of one agent.

    Args:
        action_space: Space of the actions; it comes first, as in RLlib.
        observation_space: Space of the observations.
        max_concurrent: Maximum number of open episodes; None for no limit.
    """

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """Return the policy's action for an observation; waits for it.

        Raises:
            EpisodeError: There is no such episode, or another call of it has not returned.
            CallOrderError: Training is over, or this is the thread that samples.
        """
        return self._ask(episode_id, {SINGLE_AGENT: observation})[SINGLE_AGENT]

    def log_action(self, episode_id: str, observation: Any, action: Any) -> None:
        """Log an action that the application chose itself.

        DQN learns from it; PPO does not, because it needs the probability of each action.

        Raises:
            EpisodeError: There is no such episode.
        """
        self.broker.log_action(
            episode_id, {SINGLE_AGENT: _copied(observation)}, {SINGLE_AGENT: _copied(action)}
        )

    def log_returns(self, episode_id: str, reward: float, info: Mapping[str, Any] | None = None) -> None:
        """Log a reward for the last action; rewards add up until the next observation.

        Args:
            episode_id: The episode.
            reward: A finite number.
            info: An info dict for the next observation only.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: The reward is not a finite number, or the info is not a dict.
        """
        check_told_info(info)
        infos = None if info is None else {SINGLE_AGENT: _copied_info(info)}
        self.broker.log_returns(episode_id, {SINGLE_AGENT: reward}, infos)

    def end_episode(self, episode_id: str, observation: Any, truncated: bool = False) -> None:
        """End an episode with its last observation.

        Args:
            episode_id: The episode.
            observation: The final one; None repeats the last one.
            truncated: Whether the episode was cut short.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: `truncated` is neither True nor False.
        """
        self.broker.end(episode_id, {SINGLE_AGENT: _copied(observation)}, truncated=truncation(truncated))


class ExternalMultiAgentEnv(_External):
    """An external environment of several agents; all values are keyed by agent id.

    Args:
        action_space: Space of every agent, or a dict of spaces by agent id.
        observation_space: Space of every agent, or a dict of spaces by agent id, for the same agents.
        max_concurrent: Maximum number of open episodes; None for no limit.

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
        """Return an action for each agent in `observation_dict`; waits for them as `ExternalEnv.get_action` does."""
        return self._ask(episode_id, dict(keyed_by_agent("get_action", "observation_dict", observation_dict)))

    def log_action(
        self, episode_id: str, observation_dict: Mapping[AgentId, Any], action_dict: Mapping[AgentId, Any]
    ) -> None:
        """Log actions that the application chose itself, as `ExternalEnv.log_action` does."""
        observed = keyed_by_agent("log_action", "observation_dict", observation_dict)
        chosen = keyed_by_agent("log_action", "action_dict", action_dict)
        self.broker.log_action(episode_id, _copied_by_agent(observed), _copied_by_agent(chosen))

    def log_returns(
        self,
        episode_id: str,
        reward_dict: Mapping[AgentId, float],
        info_dict: Mapping[AgentId, Mapping[str, Any]] | None = None,
        multiagent_done_dict: Mapping[AgentId, bool] | None = None,
    ) -> None:
        """Log rewards for any agents; they add up until the agent's next observation.

        Args:
            episode_id: The episode.
            reward_dict: Rewards by agent.
            info_dict: Infos by agent, for the next observations only.
            multiagent_done_dict: True for agents whose trajectories end; an observation of such an agent in the next
                call is its last one.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: An argument is not a dict, an info is not a dict, a reward is not a finite number, or a flag
                is neither True nor False.
        """
        rewards = keyed_by_agent("log_returns", "reward_dict", reward_dict)
        infos = keyed_by_agent("log_returns", "info_dict", {} if info_dict is None else info_dict)
        done = done_flags(multiagent_done_dict)
        for info in infos.values():
            check_told_info(info)
        self.broker.log_returns(
            episode_id, rewards, {agent: _copied_info(info) for agent, info in infos.items()}, done
        )

    def end_episode(
        self, episode_id: str, observation_dict: Mapping[AgentId, Any], truncated: bool = False
    ) -> None:
        """End an episode with the last observations of its agents, as `ExternalEnv.end_episode` does."""
        observed = keyed_by_agent("end_episode", "observation_dict", observation_dict)
        self.broker.end(episode_id, _copied_by_agent(observed), truncated=truncation(truncated))


def _copied(element: Any) -> Any:
    """Return a copy of an argument: the caller may change its arrays after the call."""
    return element.copy() if type(element) is np.ndarray else deepcopy(element)


def _copied_by_agent(by_id: Mapping[AgentId, Any]) -> dict[AgentId, Any]:
    return {agent: _copied(element) for agent, element in by_id.items()}


def _copied_info(info: Any) -> Any:
    """Return an info with copied dicts, lists and arrays; other values are shared."""
    if type(info) is dict:
        return {name: _copied_info(one) for name, one in info.items()}
    if type(info) is list:
        return [_copied_info(one) for one in info]
    return info.copy() if type(info) is np.ndarray else info


def _by_agent(space: Any) -> Mapping[AgentId, Space] | None:
    return space if isinstance(space, Mapping) and not isinstance(space, gym.Space) else None
