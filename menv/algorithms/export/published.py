"""Published: an algorithm's policies as those see them who act elsewhere, each set of weights with its number.

An `Algorithm` keeps one where its environment is external, and tells it when weights have changed. It is
the `Trainer` of serving inputs. Weights that were published are kept for a while, to judge actions that they chose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from menv import draws
from menv.adapters.external import ExternalEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.episode import Episode
from menv.errors import ConfigError
from menv.loop.net_policy import NetPolicy
from menv.loop.packed_bundle import pack_bundle, pack_weights
from menv.loop.sampler import Sampler
from menv.loop.weights_history import WeightsHistory
from menv.policy import Policy


class Published:
    """What clients of an external environment are given; implements `menv.serving.trainer.Trainer`.

    Args:
        config: Of the algorithm.
        base_env: Whose clients they are.
        sampler: Takes what they play.
        policies: Returns the policies by id.
        on_policy: Whether the algorithm learns only from actions whose probability it knows.

    Attributes:
        env_steps_per_sample: Env steps of one fragment.
        force_on_policy: As `on_policy`.
        explore: Whether actions are drawn.
        weights_seq_no: The number of the weights that act now, from 1.
        observation_fn: Whether the algorithm has one.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        base_env: ExternalEnvs,
        sampler: Sampler,
        policies: Callable[[], Mapping[str, Policy]],
        *,
        on_policy: bool,
    ) -> None:
        self.env_steps_per_sample = config.fragment_length(1)
        self.force_on_policy = on_policy
        self.explore = config.explore
        self.weights_seq_no = 0
        self.observation_fn = config.multiagent.observation_fn is not None
        self._base_env = base_env
        self._policies = policies
        self._history = WeightsHistory()
        self._noted: dict[str, NetPolicy] = {}
        self._made: dict[tuple[str, str], Any] = {}
        self._graphs: dict[str, Any] = {}
        # By policy id, the version of the connectors that were published, and the number with which they came.
        self._versions: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self.follow(sampler)
        self.publish()
        base_env.connect(self)

    def follow(self, sampler: Sampler) -> None:
        """Judge what a sampler is given that was played elsewhere."""
        self._sampler = sampler
        sampler.played.old_weights = self._judge
        sampler.played.max_staleness = getattr(self._base_env, "max_staleness", None)
        sampler.played.weights_seq_no = self.weights_seq_no
        sampler.played.connectors_since = self._since

    def publish(self, after: int = 0) -> None:
        """Give the weights that act now the next number, one above `after` at least, and let clients have them."""
        self.weights_seq_no = max(self.weights_seq_no, after) + 1
        number = self.weights_seq_no
        self._forget_others()
        for policy_id, policy in self._noted.items():
            if self._versions.get(policy_id) != (version := _version(policy)):
                self._versions[policy_id] = version
                self._since[policy_id] = number
            self._history.note(number, policy_id, policy.get_weights())
        self._made.clear()
        self._base_env.switchboard.weights_seq_no = number
        self._sampler.played.weights_seq_no = number
        if number > 1:
            self._base_env.published()

    def follow_connectors(self) -> None:
        """Publish anew if connectors have changed: clients that act by themselves have those of before."""
        noted = self._noted.items()
        if any(self._versions[policy_id] != _version(policy) for policy_id, policy in noted):
            self.publish()

    def _forget_others(self) -> None:
        """Forget what is known of policies that are gone, or whose ids are those of others now."""
        policies = self._policies()
        for policy_id, policy in self._noted.items():
            if policies.get(policy_id) is not policy:
                self._history.forget(policy_id)
                self._graphs.pop(policy_id, None)
                self._versions.pop(policy_id, None)
        self._noted = {name: policy for name, policy in policies.items() if isinstance(policy, NetPolicy)}

    def policies(self) -> Mapping[str, Policy]:
        """Return the policies by id; see `Trainer.policies`."""
        return self._policies()

    def onnx_file(self, policy_id: str) -> str:
        """Return a policy as RLlink clients read it; see `Trainer.onnx_file`."""
        return str(self._once("onnx", policy_id, self._onnx_file))

    def bundle(self, policy_id: str) -> bytes:
        """Return a policy as a packed bundle; see `Trainer.bundle`."""
        return bytes(self._once("bundle", policy_id, pack_bundle))

    def weights(self, policy_id: str) -> bytes:
        """Return a policy's packed weights; see `Trainer.weights`."""
        return bytes(self._once("weights", policy_id, pack_weights))

    def connectors_since(self, policy_id: str) -> int:
        """Return with which number connectors changed last; see `Trainer.connectors_since`."""
        return self._since.get(policy_id, 0)

    def policy_for(self, episode_id: str, agent_id: str) -> str:
        """Return who answers for an agent of an episode; see `Trainer.policy_for`."""
        policy_map = self._sampler.policy_map
        return policy_map.only or policy_map.policy_for(
            agent_id, Episode(draws.stable_hash(episode_id) >> 5, episode_id), self._sampler
        )

    def _once(self, form: str, policy_id: str, make: Callable[[NetPolicy], Any]) -> Any:
        """Return one form of a policy, made once for each set of weights."""
        if (form, policy_id) not in self._made:
            policy = self._policies()[policy_id]
            if not isinstance(policy, NetPolicy):
                raise ConfigError(
                    f"policy {policy_id!r}: {type(policy).__name__} is code of the server's own, expected a policy "
                    "with a network; let clients ask for each action"
                )
            self._made[form, policy_id] = make(policy)
        return self._made[form, policy_id]

    def _onnx_file(self, policy: NetPolicy) -> str:
        from menv.algorithms.export.rllink_graph import RLlinkGraph, onnx_file

        graph = self._graphs.get(policy.policy_id)
        if graph is None or graph.policy is not policy:
            graph = self._graphs[policy.policy_id] = RLlinkGraph(policy)
        return onnx_file(graph.model())

    def _judge(
        self, policy_id: str, number: int | None, obs: Any, mask: Any, actions: Any, state: Any
    ) -> tuple[Any, Any] | None:
        """Return what actions were drawn from and how probable they were; see `menv.loop.played_rows.OldWeights`."""
        policy = self._policies().get(policy_id)
        if not isinstance(policy, NetPolicy):
            return None
        return self._history.evaluate(policy, number, obs, mask, actions, state)


def _version(policy: NetPolicy) -> int:
    """Return the version of a policy's connectors."""
    return policy.networks.connectors[policy.index].version
