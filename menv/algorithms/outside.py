"""What of an algorithm concerns those who call from outside: applications, clients of a server.

`menv.algorithms.algorithm` has one. Without an external environment nothing of it does anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from menv.adapters.external import ExternalEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.export.published import Published
from menv.algorithms.population import Population
from menv.algorithms.rollouts.rollouts import LocalRollouts, Rollouts
from menv.base_env import BaseEnv
from menv.errors import ConfigError


class Outside:
    """An algorithm, as those see it who call; those who are there are let in at once.

    Args:
        config: The settings.
        base_env: The environments of this process.
        rollouts: What takes what they do.
        population: The policies.

    Attributes:
        published: What clients are given; None where nobody calls.
    """

    def __init__(
        self, config: AlgorithmConfig, base_env: BaseEnv, rollouts: Rollouts, population: Population
    ) -> None:
        self._base_env = base_env
        self._rollouts = rollouts
        self.published: Published | None = None
        if isinstance(base_env, ExternalEnvs):
            assert isinstance(rollouts, LocalRollouts)
            on_policy = any(not recipe.off_policy for recipe in population.learners.recipes.values())
            self.published = Published(
                config, base_env, rollouts.sampler, lambda: population.policies, on_policy=on_policy
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server that experience comes from; see `Algorithm.input_address`."""
        addresses = getattr(self._base_env, "addresses", [])
        if not addresses:
            raise ConfigError(
                'input_address: this algorithm has no server, expected one in config["input"]; see PolicyServerInput'
            )
        host, port = addresses[0]
        return str(host), int(port)

    def publish(self) -> None:
        """Let those who call have the weights that act now."""
        if self.published is not None:
            self.published.publish()

    def follow_connectors(self) -> None:
        """Let those who call have connectors that were changed; called before each fragment."""
        if self.published is not None:
            self.published.follow_connectors()

    def report(self) -> dict[str, Any]:
        """Return what a result tells of those who call, and of what they did."""
        if not self._base_env.external:
            return {}
        assert isinstance(self._rollouts, LocalRollouts)
        sampler, status = self._rollouts.sampler, self._base_env.status()
        if sampler.idle:
            told = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in list(status.items())[:2])
            status["idle"] = (
                f"no step in {self._base_env.idle_timeout:g} s: {told}{_awaited(sampler.awaited)}"
            )
        counts = sampler.played.counts
        return {
            "external": {
                **status,
                "num_off_policy_steps": counts.off_policy,
                "num_stale_steps": counts.stale,
                "num_agent_steps_left_out": self._rollouts.left_out,
            }
        }


def _awaited(episodes: Sequence[Any]) -> str:
    if not episodes:
        return ""
    names = ", ".join(f"{name!r:.60}" for name in episodes[:3]) + (", ..." if len(episodes) > 3 else "")
    return (
        f'; batch_mode="complete_episodes" waits for the end of {names}, and others wait for that, expected an end of '
        'each episode; call end_episode, use "truncate_episodes", or, where one thread plays several episodes by turns '
        "and waits in a new one, a thread for each"
    )
