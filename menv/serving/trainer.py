"""Trainer: what a server asks of the algorithm that learns from its clients.

`menv.algorithms.export.published` implements it, a `ServedEnvs` calls it. What was published last never changes, so
that clients are answered while the algorithm learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from menv.policy import Policy


class PublishedPolicies(Protocol):
    """The policies as they were published together. It stays as it is; the next weights come with another one.

    Attributes:
        weights_seq_no: The number of its weights; it grows with every update.
        policies: The policies by id.
    """

    weights_seq_no: int
    policies: Mapping[str, Policy]

    def made(self, form: str, policy_id: str) -> Any:
        """Return what `make` has made before. In the server's loop.

        Raises:
            KeyError: It has not made it yet.
        """

    def make(self, form: str, policy_id: str) -> Any:
        """Return a policy in one of its forms. In the one thread that makes them.

        Args:
            form: "bundle" for a packed bundle, "weights" for packed weights, "onnx" for the ONNX file that RLlink
                clients read, gzipped, as base64.
            policy_id: Its id.

        Raises:
            ConfigError: It has no such form; the sentence says what works instead.
        """

    def expect_clients(self) -> None:
        """Make the forms that a first client may ask for. In the thread that makes them."""

    def make_ready(self) -> None:
        """Make the forms that clients have asked for lately. In the thread that makes them."""

    def connectors_since(self, policy_id: str) -> int:
        """Return the number with which a policy's connectors changed last; weights alone do not bring them."""

    def policy_for(self, episode_id: str, agent_id: str) -> str:
        """Return which policy answers for an agent of an episode that is played elsewhere. In the server's loop."""


class Trainer(Protocol):
    """The algorithm.

    Attributes:
        env_steps_per_sample: Env steps of one fragment.
        force_on_policy: Whether clients that act by themselves shall wait for the next weights.
        explore: Whether clients that act by themselves shall draw actions, or take the most likely ones.
        observation_fn: Whether policies see what an `observation_fn` makes of observations, which clients do not have.
        latest: What was published last; another thread may put the next one in its place.
    """

    env_steps_per_sample: int
    force_on_policy: bool
    explore: bool
    observation_fn: bool
    latest: PublishedPolicies
