"""Parts of a running algorithm that tests look at: the one place that knows where they are."""

from __future__ import annotations

from typing import Any

from menv import registry


def registered() -> dict[str, Any]:
    return registry._registered


def sampler(algo: Any) -> Any:
    return algo._sampler


def metrics(algo: Any) -> Any:
    return algo._metrics


def base_env(algo: Any) -> Any:
    return algo._base_env


def policy_set(algo: Any) -> Any:
    return algo._policy_set


def learner(algo: Any, policy_id: str = "default_policy") -> Any:
    return policy_set(algo).learners._learners[policy_id]
