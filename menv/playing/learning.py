"""`Learning`: an algorithm that learns from the games of people. `LearningGame`: a game that it learns from.

The algorithm serves its policies with `PolicyServerInput` and trains in a thread. A game runs in the page's thread: it
asks for the actions of policies with a `PolicyClient`, as any application with its own loop does, and reports rewards
and ends. PPO learns from its own actions alone, and the person is a part of its environment; DQN learns from the
person's actions too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from glob import escape
from os import PathLike
from pathlib import Path
from typing import Any

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.learn import env_name, run_folder
from menv.base_env import ALL, SINGLE_AGENT, AgentId
from menv.errors import CallOrderError, ConfigError, MenvError
from menv.playing.game import Game, Position
from menv.serving.client.policy_client import PolicyClient
from menv.serving.policy_server import PolicyServerInput
from menv.tracking.run_folder import next_run_dir

_log = logging.getLogger("menv")

BATCH = 16
"""Actions that an update learns from: some four games of TicTacToe."""


def learning_settings(game: Game, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for `Algorithm.from_checkpoint` with which the algorithm learns from games like this one.

    Args:
        game: Knows the policy of each agent.
        stored: The settings in the checkpoint.

    Raises:
        ConfigError: The person plays the only agent, and PPO trains its policy.
    """
    if len(game.agents) < 2 and "sgd_minibatch_size" in stored:
        raise ConfigError(
            "--learn: the person plays the only agent, and PPO learns from the policy's own actions alone, expected "
            "DQN; train with --run DQN, or leave --learn out"
        )
    settings: dict[str, Any] = {}
    if (stored.get("multiagent") or {}).get("policy_mapping_fn") is not None:
        mapping = [(escape(str(agent)), game.policy_of(agent)) for agent in game.agents]
        settings["multiagent"] = {"policy_mapping_fn": mapping}
    # The first two are PPO's; DQN learns from its replay buffer, in batches of its own size.
    on_policy = ("train_batch_size", "sgd_minibatch_size") if "sgd_minibatch_size" in stored else ()
    sizes = (*on_policy, "rollout_fragment_length", "min_sample_timesteps_per_iteration")
    settings |= {name: BATCH for name in sizes if name in stored}
    return {
        **settings,
        "input": lambda context: PolicyServerInput(context, port=0, transport="tcp", idle_timeout=None),
        "num_workers": 0,
        "evaluation_interval": None,
        "batch_mode": "truncate_episodes",
    }


class Learning:
    """Trains an algorithm with what the games of `game` send, and writes a run folder of its own after each update.

    Args:
        algo: An algorithm with `learning_settings`; `close` stops it.
        root: The folder of the new run folder.

    Attributes:
        path: The run folder; None before the first update.
        weights: The weights of the policies after the last update, by policy; {} before the first.
    """

    def __init__(self, algo: Algorithm, root: Path) -> None:
        self._algo = algo
        self._root = root
        self.path: Path | None = None
        self.weights: Mapping[str, Any] = {}
        self.client = PolicyClient("tcp://{}:{}".format(*algo.input_address), "remote", client="menv play")
        self.num_asked = 0
        self._before = self._counts = algo.counts()
        self._num_updates = 0
        self._failure = ""
        self._closed = False
        self._thread = threading.Thread(target=self._train, name="menv-play-learning", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """Return what the page shows."""
        sampled, trained = (
            self._counts[name] - self._before[name]
            for name in ("num_env_steps_sampled", "num_env_steps_trained")
        )
        return {
            "trained": trained,
            "updates": self._num_updates,
            "batch": BATCH,
            "waiting": min(max(self.num_asked - sampled, 0), BATCH),
            "failure": self._failure,
        }

    def learns_from_others(self, policy_id: str | None) -> bool:
        """Return whether a policy learns from actions that it did not choose."""
        recipe = self._algo._policy_set.learners.recipes.get(policy_id or "")
        return recipe is not None and recipe.off_policy

    def game(self, run: str | PathLike[str], **settings: Any) -> LearningGame:
        """Return a game that this learns from; see `Game`."""
        return LearningGame(run, self, **settings)

    def close(self) -> None:
        """Stop training; what was sent since the last update is lost."""
        self._closed = True
        with suppress(MenvError):
            self.client.close()
        self._algo.stop()
        self._thread.join()

    def _train(self) -> None:
        algo, folder = self._algo, None
        try:
            while not self._closed:
                result = algo.train()
                if folder is None:
                    path = next_run_dir(env_name(algo.config.env), algo.recipe.name, self._root)
                    folder = run_folder(algo, path)
                folder.result(result)
                algo.save(folder.checkpoints, keep_last=3)
                self.path, self.weights = folder.path, algo.get_weights()
                self._counts = algo.counts()
                self._num_updates += 1
        except Exception as error:
            # `close` stops the algorithm while it waits for the next game.
            if not (self._closed and isinstance(error, CallOrderError)):
                _log.exception("menv play: learning has failed")
                self._failure = f"Learning has failed: {error}"
        finally:
            if folder is not None:
                folder.close()


class LearningGame(Game):
    """A game whose policies act in the algorithm's process and learn; see `Game`."""

    def __init__(self, run: str | PathLike[str], learning: Learning, **settings: Any) -> None:
        super().__init__(run, **settings)
        self._learning = learning
        self._weights: Mapping[str, Any] = {}
        self._external_id: str | None = None
        self._acted: set[AgentId] = set()

    def start(self) -> Position:
        self._end({}, truncated=True)
        self._acted = set()
        self._follow()
        self._external_id = self._learning.client.start_episode()
        return super().start()

    def close(self) -> None:
        """End the episode and close the environment."""
        with suppress(MenvError):
            self._end({}, truncated=True)
        super().close()

    def _action(self, agent: AgentId) -> Any:
        answer = self._learning.client.get_action(self._asking(agent), self._told({agent: self._obs[agent]}))
        self._follow()
        return answer if self._single else answer[agent]

    def _take(self, agent: AgentId, action: Any) -> Position:
        if agent == self.human and self._learning.learns_from_others(self.policy_of(agent)):
            seen, chosen = self._told({agent: self._obs[agent]}), self._told({agent: action})
            self._learning.client.log_action(self._asking(agent), seen, chosen)
            self._follow()
        return super()._take(agent, action)

    def _asking(self, agent: AgentId) -> str:
        """Return the id of the episode, in which this agent has a step to learn from."""
        assert self._external_id is not None
        self._acted.add(agent)
        self._learning.num_asked += 1
        return self._external_id

    def _told(self, by_agent: Mapping[AgentId, Any]) -> Any:
        """Return values as messages have them: of a single agent without its name."""
        return by_agent[SINGLE_AGENT] if self._single else by_agent

    def _stepped(
        self,
        obs: Mapping[AgentId, Any],
        rewards: Mapping[AgentId, float],
        terminateds: Mapping[AgentId, bool],
        truncateds: Mapping[AgentId, bool],
    ) -> None:
        """Report rewards and ends of the agents that have a step to learn from."""
        assert self._external_id is not None
        done: set[Any] = {
            agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag
        }
        earned = {agent: float(reward) for agent, reward in rewards.items() if agent in self._acted}
        self._learning.client.log_returns(
            self._external_id,
            self._told(earned),
            multiagent_done_dict=dict.fromkeys(done & self._acted, True),
        )
        if ALL in done:
            last = {agent: one for agent, one in obs.items() if agent in self._acted}
            self._end(last, truncated=not terminateds.get(ALL, False))

    def _end(self, obs: Mapping[AgentId, Any], *, truncated: bool) -> None:
        name, self._external_id = self._external_id, None
        if name is not None:
            last = self._told({**self._obs, **obs}) if self._single else obs
            self._learning.client.end_episode(name, last, truncated=truncated)

    def _follow(self) -> None:
        """Show the probabilities of the policies that act."""
        if self._weights is not self._learning.weights:
            self._weights = self._learning.weights
            for name, weights in self._weights.items():
                if name in self.policies:
                    self.policies[name].set_weights(weights)
