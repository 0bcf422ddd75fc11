"""The policies of an algorithm for external clients: numbered sets of weights, and recent sets to judge late actions.

`ExternalClients` is the member of the algorithm, and the `Trainer` of serving inputs. Clients receive a `Publication`
while the algorithm learns the next one; `WeightsHistory` evaluates actions that arrive later, with the weights that
chose them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.adapter import Adapter
from menv.adapters.external import ExternalEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.local_rollouts import Rollouts
from menv.algorithms.training.policy_set import PolicySet
from menv.connectors.pipeline import PolicyConnectors
from menv.errors import ConfigError, ContractError
from menv.inference.backend import ActingBackend, Actions, Flags, Floats, ForwardOutputs, Rows
from menv.inference.connector_path import plain
from menv.inference.network_policy import NetworkPolicy
from menv.inference.policy_bundle import ExportCache, pack_bundle, pack_weights
from menv.policy import Policy
from menv.sampling.sampler import Sampler

Array = npt.NDArray[Any]


@dataclass(slots=True)
class _WeightsAge:
    """A separate backend with earlier weights of one policy; `number` is their sequence number."""

    origin: ActingBackend
    backend: ActingBackend
    number: int | None = None


class WeightsHistory:
    """The last `keep` sets of weights of each policy.

    Sequence numbers belong to the whole run: a policy that did not learn in an update keeps the weights of its latest
    number. Memory: `keep` copies of each policy's weights, and one more of each policy that is evaluated. Thread-safe:
    recording never waits for an evaluation.
    """

    def __init__(self, keep: int = 16) -> None:
        self.keep = keep
        self._latest: int | None = None
        self._sets: dict[str, dict[int, dict[str, Array]]] = {}
        self._judges: dict[str, _WeightsAge] = {}
        self._notes, self._judging = threading.Lock(), threading.Lock()

    def note(self, seq: int, policy_id: str, weights: Mapping[str, Array]) -> None:
        """Keep copies of a policy's weights from sequence number `seq` on; numbers must increase."""
        copies = {name: np.array(value) for name, value in weights.items()}
        for value in copies.values():
            value.flags.writeable = False
        with self._notes:
            sets = self._sets.setdefault(policy_id, {})
            sets[seq] = copies
            self._latest = seq
            if len(sets) > self.keep:
                del sets[min(sets)]

    def weights(self, policy_id: str, seq: int | None = None) -> Mapping[str, Array] | None:
        """Return the read-only weights at a number, the latest for None; None if they are not kept."""
        found = self._found(policy_id, seq)
        return None if found is None else found[1]

    def evaluate(
        self,
        policy: NetworkPolicy,
        seq: int | None,
        rows: Rows,
        mask: Flags | None,
        actions: Actions,
        state: Floats | None = None,
    ) -> ForwardOutputs | None:
        """Return distribution inputs [N, D] and log-probabilities [N] by the weights of a number; None if not kept.

        Args:
            policy: Its backend's architecture computes it; the weights that act are left alone.
            seq: The number; None for the latest.
            rows: [N, F] as the network reads them, behind all connectors.
            mask: [N, M] True where allowed; None allows everything.
            actions: [N, ...] of the network; `ActionOutput.inverse` converts the environment's.
            state: [N, S] of a recurrent network before each row.
        """
        found = self._found(policy.policy_id, seq)
        if found is None:
            return None
        number, weights = found
        with self._judging:
            judge = self._judge(policy)
            if judge.number != number:
                names = judge.backend.weight_names
                judge.backend.set_weights(0, {name: weights[name] for name in names if name in weights})
                judge.number = number
            return judge.backend.evaluate(0, rows, mask, actions, state)

    def forget(self, policy_id: str) -> None:
        """Forget a removed policy."""
        with self._notes, self._judging:
            self._sets.pop(policy_id, None)
            self._judges.pop(policy_id, None)

    def _found(self, policy_id: str, seq: int | None) -> tuple[int, dict[str, Array]] | None:
        """Return the weights at `seq` and the number since which the policy has had them."""
        with self._notes:
            sets = self._sets.get(policy_id, {})
            if self._latest is None or (seq is not None and seq > self._latest):
                return None
            numbers = list(sets)
            place = len(numbers) if seq is None else bisect_right(numbers, seq)
            return (numbers[place - 1], sets[numbers[place - 1]]) if place else None

    def _judge(self, policy: NetworkPolicy) -> _WeightsAge:
        judge, origin = self._judges.get(policy.policy_id), policy.networks.backend
        if judge is None or judge.origin is not origin:
            judge = _WeightsAge(origin, origin.extract_policy(policy.index))
            self._judges[policy.policy_id] = judge
        return judge


@dataclass(slots=True)
class _Copy:
    """A policy's copy with a separate backend, and what is created once for it."""

    policy: NetworkPolicy
    backend: ActingBackend
    own: NetworkPolicy
    export_cache: ExportCache = field(default_factory=dict)


class PolicyForms:
    """Creates the forms in which clients receive policies, from separate copies. For one thread."""

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}

    def make(
        self, form: str, policy: NetworkPolicy, weights: Mapping[str, Any], connectors: PolicyConnectors
    ) -> Any:
        """Return one form of a policy with these weights and connectors."""
        copy = self._copy_of(policy)
        copy.own.networks.backend.set_weights(0, weights)
        copy.own.networks.connectors[:] = [connectors]
        if form == "weights":
            return pack_weights(copy.own)
        if form == "bundle":
            return pack_bundle(copy.own, export_cache=copy.export_cache)
        from menv.algorithms.networks.onnx_export import onnx_file, rllink_model

        return onnx_file(rllink_model(copy.own))

    def forget(self, policy_id: str) -> None:
        """Forget a removed policy."""
        self._copies.pop(policy_id, None)

    def _copy_of(self, policy: NetworkPolicy) -> _Copy:
        """Return a policy's copy; the same one as long as the policy is the same."""
        backend, known = policy.networks.backend, self._copies.get(policy.policy_id)
        if known is None or known.policy is not policy or known.backend is not backend:
            own = NetworkPolicy(policy.networks.single(policy.index), 0, policy.config, policy.seed)
            own.explore = policy.explore
            known = self._copies[policy.policy_id] = _Copy(policy, backend, own)
        return known


class Publication:
    """Policies with the weights of one number; implements `menv.serving.policy_server.PublishedPolicies`.

    `networks` are the policies with a network, by id, and `weights` theirs, which never change; `since` holds by policy
    id the number with which its connectors last changed.
    """

    def __init__(
        self,
        forms: PolicyForms,
        number: int,
        policies: Mapping[str, Policy],
        networks: Mapping[str, NetworkPolicy],
        weights: Mapping[str, Mapping[str, Any]],
        since: Mapping[str, int],
        sampler: Sampler,
    ) -> None:
        self.weights_seq_no = number
        self.policies = dict(policies)
        self._forms = forms
        self._weights = weights
        self._networks = networks
        self._connectors = {name: _kept(policy) for name, policy in networks.items()}
        self._since = dict(since)
        self._sampler, self._policy_map = sampler, sampler.policy_map
        self._made: dict[tuple[str, str], Any] = {}

    def form(self, form: str, policy_id: str) -> Any:
        policy = self._networks.get(policy_id)
        if policy is None:
            kind = type(self.policies[policy_id]).__name__
            raise ConfigError(
                f"policy {policy_id!r}: {kind} is the server's own code, expected a policy with a network; let clients "
                "request each action"
            )
        if (form, policy_id) not in self._made:
            self._made[form, policy_id] = self._forms.make(
                form, policy, self._weights[policy_id], self._connectors[policy_id]
            )
        return self._made[form, policy_id]

    def connectors_since(self, policy_id: str) -> int:
        return self._since.get(policy_id, 0)

    def policy_for(self, episode_id: str, agent_id: str) -> str:
        # Not bound here: the agent appears with its first steps.
        return self._policy_map.only or self._policy_map.policy_for(
            agent_id, self._sampler.expect(episode_id), self._sampler
        )


class ExternalClients:
    """The clients of an external environment, to whom the policies are published; does nothing without one.

    It implements `menv.serving.policy_server.Trainer`. `weights_seq_no` numbers the current weights, from 1, and is 0
    without clients; `latest` is the last publication; `force_on_policy` is True where the algorithm learns only from
    actions of known probability.
    """

    latest: Publication

    def __init__(
        self, config: AlgorithmConfig, base_env: Adapter, rollouts: Rollouts, policy_set: PolicySet
    ) -> None:
        self.env_steps_per_sample = config.fragment_length(1)
        self.force_on_policy = not all(one.off_policy for one in policy_set.learners.recipes.values())
        self.explore = config.explore
        self.weights_seq_no = 0
        self.observation_fn = config.multiagent.observation_fn is not None
        self._base_env = base_env
        self._rollouts = rollouts
        self._source = base_env if isinstance(base_env, ExternalEnvs) else None
        self._policy_set = policy_set
        self._history = WeightsHistory()
        self._noted: dict[str, NetworkPolicy] = {}
        self._forms = PolicyForms()
        # Held while a number is taken and its weights are recorded: one thread may train while another adds a policy.
        self._publishing = threading.Lock()
        # By policy id, the version of the connectors that were published, and the number with which they came.
        self._versions: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self.follow_sampler()
        if self._source is not None:
            self._publish(self._source, 0)
            self._source.connect(self)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server; see `Algorithm.input_address`."""
        addresses = self._source.addresses if self._source is not None else []
        if not addresses:
            raise ConfigError(
                'input_address: this algorithm has no server, expected a server in config["input"]; see '
                "PolicyServerInput"
            )
        host, port = addresses[0]
        return str(host), int(port)

    def follow_sampler(self) -> None:
        """Judge the actions of clients for the current sampler."""
        if self._source is None:
            return
        assert self._rollouts.sampler is not None
        self._sampler = self._rollouts.sampler
        writer = self._sampler.external_writer
        writer.old_weights = self._judge
        writer.max_staleness = self._source.max_staleness
        writer.weights_seq_no = self.weights_seq_no
        writer.connectors_since = self._since

    def publish(self, after: int = 0, *, changed: bool = True) -> None:
        """Publish the current weights under the next number, which is above `after`; any thread may call it.

        Weights that have not `changed` keep their number; clients that wait for the next weights continue with these.
        """
        if self._source is None:
            return
        if changed:
            with self._publishing:
                self._publish(self._source, after)
        self._source.published()

    def _publish(self, source: ExternalEnvs, after: int) -> None:
        self.weights_seq_no = number = max(self.weights_seq_no, after) + 1
        self._forget_others()
        for policy_id, policy in self._noted.items():
            if self._versions.get(policy_id) != (version := _version(policy)):
                self._versions[policy_id] = version
                self._since[policy_id] = number
            self._history.note(number, policy_id, policy.get_weights())
        weights = {policy_id: self._history.weights(policy_id) or {} for policy_id in self._noted}
        self.latest = Publication(
            self._forms, number, self._policy_set.policies, self._noted, weights, self._since, self._sampler
        )
        source.broker.weights_seq_no = number
        self._sampler.external_writer.weights_seq_no = number

    def follow_connectors(self) -> None:
        """Publish again if connectors have changed, for clients with local inference; called before each fragment."""
        noted = self._noted.items()
        if any(self._versions[policy_id] != _version(policy) for policy_id, policy in noted):
            self.publish()

    def report(self) -> dict[str, Any]:
        """Return the entry `external` of a result, {} without an external environment."""
        sampler = self._rollouts.sampler
        if not self._base_env.external or sampler is None:
            return {}
        status = self._base_env.status()
        if sampler.idle:
            told = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in list(status.items())[:2])
            status["idle"] = (
                f"no step in {self._base_env.idle_timeout:g} s: {told}{_awaited(sampler.awaited)}"
            )
        writer = sampler.external_writer
        return {
            "external": {
                **status,
                "num_off_policy_steps": writer.off_policy_rows,
                "num_stale_steps": writer.stale_rows,
                "num_agent_steps_left_out": self._rollouts.counters.left_out,
            }
        }

    def _forget_others(self) -> None:
        now = self._policy_set.network_policies
        for policy_id, policy in self._noted.items():
            if now.get(policy_id) is not policy:
                self._history.forget(policy_id)
                self._forms.forget(policy_id)
                self._versions.pop(policy_id, None)
        self._noted = now

    def _judge(
        self,
        policy_id: str,
        number: int | None,
        obs: Rows,
        mask: Flags | None,
        actions: Actions,
        state: Floats | None,
    ) -> ForwardOutputs | None:
        policy = self._policy_set.policies.get(policy_id)
        if not isinstance(policy, NetworkPolicy):
            return None
        return self._history.evaluate(policy, number, obs, mask, actions, state)


def _kept(policy: NetworkPolicy) -> PolicyConnectors:
    """Return a copy of a policy's connectors, unaffected by what they learn later."""
    own = policy.networks.connectors[policy.index]
    if plain(own, policy.networks.built):
        return own
    try:
        return own.frozen()
    except ContractError:
        # A user's own connector that cannot be copied.
        return own


def _version(policy: NetworkPolicy) -> int:
    return policy.networks.connectors[policy.index].version


def _awaited(episodes: Sequence[Any]) -> str:
    if not episodes:
        return ""
    names = ", ".join(f"{name!r:.60}" for name in episodes[:3]) + (", ..." if len(episodes) > 3 else "")
    return (
        f'; batch_mode="complete_episodes" waits for the end of {names}, and others wait for that, expected an end of '
        'each episode; call end_episode, use "truncate_episodes", or, where one thread plays several episodes by turns '
        "and waits in a new one, a thread for each"
    )
