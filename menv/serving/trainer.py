"""What a server asks of the algorithm that learns from its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from menv.policy import Policy


class PublishedPolicies(Protocol):
    """The policies of one set of weights. It never changes, so clients are answered while the algorithm learns.

    Attributes:
        weights_seq_no: Grows with every update.
        policies: The policies by id.
    """

    weights_seq_no: int
    policies: Mapping[str, Policy]

    def made(self, form: str, policy_id: str) -> Any:
        """Return a form that `make` has made before, else raise `KeyError`. Called in the server's loop."""

    def make(self, form: str, policy_id: str) -> Any:
        """Make and return a policy in one of its forms; slow. Called in the thread that makes them.

        Args:
            form: "bundle" for a packed bundle, "weights" for packed weights, "onnx" for the ONNX file of RLlink
                clients, gzipped, as base64.
            policy_id: The policy.

        Raises:
            ConfigError: The policy has no such form; the sentence says what works instead.
        """

    def expect_clients(self) -> None:
        """Make the forms that a first client may request. Called in the thread that makes them."""

    def make_ready(self) -> None:
        """Make the forms that clients requested lately. Called in the thread that makes them."""

    def connectors_since(self, policy_id: str) -> int:
        """Return the `weights_seq_no` at which the policy's connectors changed last; weights do not include them."""

    def policy_for(self, episode_id: str, agent_id: str) -> str:
        """Return the policy of an agent in an episode of a client. Called in the server's loop."""


class Trainer(Protocol):
    """The algorithm that learns from the clients of a server; `menv.algorithms.weight_publisher` implements it.

    Attributes:
        env_steps_per_sample: Env steps of one rollout fragment.
        force_on_policy: Whether clients with local inference wait for the next weights after each fragment.
        explore: Whether clients with local inference sample actions or take the most likely ones.
        observation_fn: Whether policies see the output of an `observation_fn`, which clients do not have.
        latest: The latest policies; another thread may replace it.
    """

    env_steps_per_sample: int
    force_on_policy: bool
    explore: bool
    observation_fn: bool
    latest: PublishedPolicies
