"""What of an algorithm concerns those who call from outside: applications, clients of a server.

`Algorithm` inherits it. Without an external environment nothing of it does anything.
"""

from __future__ import annotations

from typing import Any

from menv.adapters.external import ExternalEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.population import Population
from menv.algorithms.published import Published
from menv.algorithms.rollouts import LocalRollouts, Rollouts
from menv.base_env import BaseEnv
from menv.errors import ConfigError
from menv.loop.sampler import Sampler


class Outside:
    """An algorithm, as those see it who call.

    Attributes:
        config: The settings.
    """

    config: AlgorithmConfig
    _base_env: BaseEnv
    _published: Published | None
    _population: Population
    _rollouts: Rollouts

    @property
    def _sampler(self) -> Sampler:
        """The sampler of this process."""
        assert isinstance(self._rollouts, LocalRollouts)
        return self._rollouts.sampler

    @property
    def input_address(self) -> tuple[str, int]:
        """Host and port of the server that experience comes from, the first one if there are several.

        Raises:
            ConfigError: There is none.
        """
        addresses = getattr(self._base_env, "addresses", [])
        if not addresses:
            raise ConfigError(
                'input_address: this algorithm has no server, expected one in config["input"]; see PolicyServerInput'
            )
        host, port = addresses[0]
        return str(host), int(port)

    def _publish_first(self) -> Published | None:
        """Let those in who call, if there are any."""
        if not isinstance(self._base_env, ExternalEnvs):
            return None
        population = self._population
        on_policy = any(not recipe.off_policy for recipe in population.learners.recipes.values())
        return Published(
            self.config, self._base_env, self._sampler, lambda: population.policies, on_policy=on_policy
        )

    def _publish(self) -> None:
        """Let those who call have the weights that act now."""
        if self._published is not None:
            self._published.publish()

    def _outside(self) -> dict[str, Any]:
        """Return what there is to tell about those who call, and about what they did."""
        counts, status = self._sampler.played.counts, self._base_env.status()
        if self._sampler.idle:
            told = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in list(status.items())[:2])
            status["idle"] = f"no step in {self._base_env.idle_timeout:g} s: {told}"
        return {
            **status,
            "num_off_policy_steps": counts.off_policy,
            "num_stale_steps": counts.stale,
            "num_agent_steps_left_out": self._rollouts.left_out,
        }
