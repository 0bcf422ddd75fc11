"""The types of results, for editors and type checkers; `docs/reference/results.md` says what the keys are."""

from __future__ import annotations

from typing import Any, TypedDict


class EpisodeResult(TypedDict):
    """The keys about episodes. Means are None without an episode, which `float | Any` lets you leave unchecked."""

    episode_reward_mean: float | Any
    episode_reward_min: float | Any
    episode_reward_max: float | Any
    episode_len_mean: float | Any
    matchups: dict[Any, dict[Any, dict[str, float]]]
    policy_reward_mean: dict[str, float]
    policy_reward_min: dict[str, float]
    policy_reward_max: dict[str, float]
    agent_reward_mean: dict[Any, float]
    agent_reward_min: dict[Any, float]
    agent_reward_max: dict[Any, float]
    group_reward_mean: dict[Any, float]
    group_reward_min: dict[Any, float]
    group_reward_max: dict[Any, float]
    agent_rewards_omitted: int
    hist_stats: dict[str, list[float]]
    custom_metrics: dict[str, Any]
    episode_media: dict[str, list[Any]]
    num_env_steps_sampled_this_iter: int
    num_agent_steps_sampled_this_iter: int
    episodes_this_iter: int
    episodes_in_window: int
    episodes_total: int
    unclaimed_rewards: float
    num_faulty_episodes: int
    faulty_episodes_total: int
    first_fault: str | Any
    num_episodes_not_resumed: int
    sampler_results: dict[str, Any]


class EvaluationResult(TypedDict):
    """What `evaluate` returns."""

    evaluation: EpisodeResult


class _Sometimes(TypedDict, total=False):
    """The keys of evaluations, recordings, workers and external clients."""

    evaluation: EpisodeResult
    recording: EpisodeResult
    num_worker_restarts: int
    league: dict[str, Any]
    payoff_matrix: list[list[Any]]
    staleness: dict[str, float]
    external: dict[str, Any]


class TrainResult(EpisodeResult, _Sometimes):
    """What `train` and `learn` return."""

    sampler_perf: dict[str, float]
    training_iteration: int
    num_env_steps_sampled: int
    num_env_steps_trained: int
    num_env_steps_trained_this_iter: int
    num_agent_steps_sampled: int
    num_agent_steps_trained: int
    num_agent_steps_trained_this_iter: int
    timesteps_total: int
    agent_timesteps_total: int
    time_this_iter_s: float
    time_total_s: float
    digest: str
    inference: dict[str, str]
    info: dict[str, Any]
