"""Trainer: what a server asks of the algorithm that learns from its clients.

`menv.algorithms.export.published` implements it, a `ServedEnvs` calls it, always in the sampler's thread and never
while somebody learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from menv.policy import Policy


class Trainer(Protocol):
    """The policies and their weights.

    Attributes:
        env_steps_per_sample: Env steps of one fragment.
        force_on_policy: Whether clients that act by themselves shall wait for the next weights.
        explore: Whether clients that act by themselves shall draw actions, or take the most likely ones.
        weights_seq_no: The number of the weights that act now; it grows with every update.
        observation_fn: Whether policies see what an `observation_fn` makes of observations, which clients do not have.
    """

    env_steps_per_sample: int
    force_on_policy: bool
    explore: bool
    weights_seq_no: int
    observation_fn: bool

    def policies(self) -> Mapping[str, Policy]:
        """Return the policies by id."""

    def onnx_file(self, policy_id: str) -> str:
        """Return a policy as the ONNX file that RLlink clients read, gzipped, as base64.

        Raises:
            ConfigError: It has no such form; the sentence says what works instead.
        """

    def bundle(self, policy_id: str) -> bytes:
        """Return a policy as a packed bundle.

        Raises:
            ConfigError: It has no such form.
        """

    def weights(self, policy_id: str) -> bytes:
        """Return a policy's packed weights.

        Raises:
            ConfigError: It has none.
        """

    def connectors_since(self, policy_id: str) -> int:
        """Return the number with which a policy's connectors changed last; weights alone do not bring them."""

    def policy_for(self, episode_id: str, agent_id: str) -> str:
        """Return who answers for an agent of an episode that is played elsewhere."""
