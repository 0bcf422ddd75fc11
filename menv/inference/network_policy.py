"""NetworkPolicy: one policy of a group as an object, which `get_policy` and `Policy.from_checkpoint` return.

It acts through the same preprocessor, back-end and action output as the sampler. It holds no weights; they are in the
group's back-end. Threads may share a policy, one call runs at a time, but none may run while a sampler uses the same
back-end.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import rng
from menv.base_env import Column
from menv.connectors.action_output import ActionOutput
from menv.connectors.built_in import ViewRequirementAgentConnector
from menv.connectors.connector import (
    MASK,
    ActionConnectorDataType,
    AgentConnectorDataType,
    AgentConnectorsOutput,
    PolicyOutput,
    as_network_dtype,
    is_final,
)
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import (
    ActionConnectorPipeline,
    ActionPlan,
    AgentConnectorPipeline,
    PolicyConnectors,
    action_plan,
)
from menv.errors import ConfigError, ContractError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.backend import (
    ActingBackend,
    Actions,
    Decision,
    Flags,
    Floats,
    Rows,
    Weights,
    check_weights,
    non_finite_error,
)
from menv.inference.connector_path import ConnectorPath, plain, refuse_unknown_agents
from menv.plain_files import path_given, writing
from menv.policy import Policy, one_row, parts_given
from menv.sample_batch import SampleBatch
from menv.spaces import OutsideSpaceError, has_order


@dataclass(eq=False)
class NetworkGroup:
    """Policies that share an architecture, and the parts around their networks.

    Attributes:
        policy_ids: The ids, by index.
        observation_space: The space of each policy.
        action_space: The action space of each policy.
        preprocess: Maps observations to rows.
        backend: Maps rows to network actions.
        output: Maps these to env-ready actions; does what the action connectors do initially.
        state_sizes: Sizes of the parts of the recurrent state.
        connectors: The pipelines of each policy.
        built: The part of the action connectors that `output` does.
        row_width: F, the numbers in a row of the networks' input.
        row_dtype: Type of these rows.
        graphs: Returns the acting graphs, for policies on disk; None if only torch runs the networks.
    """

    policy_ids: list[str]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    preprocess: ObsPreprocessor
    backend: ActingBackend
    output: ActionOutput
    state_sizes: tuple[int, ...]
    connectors: list[PolicyConnectors]
    built: ActionPlan
    row_width: int
    row_dtype: np.dtype[Any]
    graphs: Callable[[], ActingGraphs | None]

    def single(self, index: int) -> NetworkGroup:
        """Return the group of policy `index` alone, with its own copy of the weights."""
        return replace(
            self, policy_ids=[self.policy_ids[index]], backend=self.backend.extract_policy(index),
            connectors=[self.connectors[index]],
        )  # fmt: skip

    def admit(
        self, policy_id: str, weights: Weights, connectors: PolicyConnectors, place: int | None = None
    ) -> None:
        """Add a policy, at the index `place` of a removed policy or at the end."""
        if place is None:
            self.backend.add_policy(weights)
            self.policy_ids.append(policy_id)
            self.connectors.append(connectors)
        else:
            self.backend.set_weights(place, weights)
            self.policy_ids[place], self.connectors[place] = policy_id, connectors


@contextmanager
def frozen_statistics(pipeline: AgentConnectorPipeline) -> Iterator[None]:
    """Freeze the statistics of connectors for a while."""
    before = [(leaf, leaf.is_training) for leaf in pipeline.connectors]
    pipeline.in_eval()
    try:
        yield
    finally:
        pipeline.is_training = True
        for leaf, was_training in before:
            leaf.is_training = was_training


def _stacked(views: Sequence[Any], name: str, width: int) -> Column:
    sizes = {np.size(view[name]) if name in view else 0 for view in views}
    if sizes != {width}:
        raise ContractError(
            f"column {name!r}: {sorted(sizes)} numbers after the agent connectors, expected {width}; see "
            "print(policy.agent_connectors)"
        )
    return np.concatenate([np.asarray(view[name]).reshape(1, -1) for view in views])


P = ParamSpec("P")
R = TypeVar("R")


def locked(
    method: Callable[Concatenate[NetworkPolicy, P], R],
) -> Callable[Concatenate[NetworkPolicy, P], R]:
    """Return a method that one thread at a time runs."""

    @functools.wraps(method)
    def alone(self: NetworkPolicy, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turn:
            return method(self, *args, **kwargs)

    return alone


class ComputedAction(NamedTuple):
    """The actions of a policy on R observations, with everything that a learner needs of them.

    Attributes:
        answers: R env-ready actions.
        actions: [R, ...] actions of the network.
        rows: [R, F] input of the network.
        mask: [R, M] or None.
        state: [R, S] of a recurrent network afterwards, else None.
    """

    answers: Any
    actions: Any
    rows: Any
    mask: Any
    state: Any


class NetworkPolicy(Policy):
    """A view of one policy of `NetworkGroup`.

    Attributes:
        policy_id: Its id.
        networks: The group.
        index: Its index in the group.
        seed: Of actions sampled outside the sampler.
        explore: Whether `compute_actions` and `answer_agents` sample actions unless they are passed `explore`.
        turn: Lock that its methods hold; new, and free, in a pickle and in a copy.
    """

    stock = True
    """Whether it is the class of an algorithm's own policies, which none of its subclasses is."""

    def __init__(
        self, networks: NetworkGroup, index: int, config: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        """Wrap policy `index` of a group; `seed` is for actions sampled outside the sampler."""
        super().__init__(networks.observation_space, networks.action_space, config)
        self.policy_id = networks.policy_ids[index]
        self.networks = networks
        self.index = index
        self.seed = seed
        self.explore = True
        self._version: tuple[PolicyConnectors, int] | None = None
        self._path: ConnectorPath | None = None
        self._key = rng.key(seed, rng.stable_hash(self.policy_id))
        self._calls = 0
        self.turn = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_version": None, "_path": None, "turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.turn = threading.RLock()

    @property
    def agent_connectors(self) -> AgentConnectorPipeline:
        """The connectors between observations and the network, for every caller of this policy."""
        return self._own.agent

    @property
    def action_connectors(self) -> ActionConnectorPipeline:
        """The connectors between the network and the environment, for every caller of this policy."""
        return self._own.action

    @locked
    def compute_actions(
        self,
        obs_batch: Sequence[Any],
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return `(actions, states, fetches)`; ContractError for an observation outside of the policy's space."""
        actions, states, inputs = self._computed(obs_batch, state_batches, explore)
        return actions, states, {"action_logp": self.networks.backend.evaluate(self.index, *inputs).logp}

    @locked
    def act(self, obs: Any, *, state: Sequence[Any] | None = None, explore: bool = False) -> Any:
        """Return the action for one observation, the most likely one unless `explore`; see `Policy.act`."""
        if state is None and self.networks.state_sizes:
            raise self.without_state()
        before = None if state is None else one_row(f"policy {self.policy_id!r}", state)
        actions, after, _ = self._computed([obs], before, explore)
        return actions[0] if state is None else (actions[0], [part[0] for part in after])

    def _computed(
        self, obs_batch: Sequence[Any], state_batches: Sequence[Any] | None, explore: bool | None
    ) -> tuple[Any, list[Floats], tuple[Rows, Flags | None, Actions, Floats | None]]:
        """Return actions, states, and what the back-end evaluates them by."""
        obs, mask = self._rows(obs_batch)
        state = self._state(state_batches, len(obs))
        decision = self._decision(obs, mask, self._noise_for(explore, len(obs)), state)
        states = [] if decision.state is None else self._parts(decision.state)
        return self._answers(decision.actions, obs, mask), states, (obs, mask, decision.actions, state)

    @locked
    def action_probabilities(
        self, obs: Any, state: Sequence[Any] | None = None
    ) -> npt.NDArray[np.float32] | None:
        """Return the [A] probability of each action for one observation, of epsilon-greedy ones for Q-values.

        None unless the actions are one choice, or if connectors depend on past observations. `state` is that before the
        observation, None the initial one.
        """
        head = self.networks.backend.head
        if head.action_shape or not self.whole:
            return None
        actions = np.arange(head.sizes[0])
        rows, mask = self._rows([obs] * len(actions))
        parts = self._state(
            None if state is None else [[part] * len(actions) for part in state], len(actions)
        )
        return np.exp(self.networks.backend.evaluate(self.index, rows, mask, actions, parts).logp)

    @locked
    def decide(
        self,
        obs_batch: Sequence[Any],
        noise: Floats | None,
        state: Floats | None = None,
    ) -> ComputedAction:
        """Return the actions on R observations, whose bounds are not checked.

        Args:
            obs_batch: R elements of the observation space; OutsideSpaceError for another structure, shape or dtype.
            noise: [R, width] random numbers of the head's `draw`; None takes the most likely actions.
            state: [R, S] of a recurrent network before.
        """
        networks, path = self.networks, self._connected()
        if path is None:
            rows, mask = networks.preprocess(obs_batch)
        else:
            refuse_unknown_agents(self.policy_id, path)
            rows, mask = path.rows(0, obs_batch)[:2]
        decision = self._decision(rows, mask, noise, state)
        answers = self._answers(decision.actions, rows, mask)
        return ComputedAction(answers, decision.actions, rows, mask, decision.state)

    @property
    def keeps_lives(self) -> bool:
        """Whether connectors keep state per agent, so that only calls that name the agents can use them."""
        path = self._connected()
        return path is not None and path.keeps_lives

    @property
    def plain(self) -> bool:
        """Whether connectors only flatten observations and scale actions, so that the weights say everything."""
        return self._connected() is None

    @property
    def whole(self) -> bool:
        """Whether no connector depends on agents or ends, so that rows of all agents can be batched."""
        path = self._connected()
        return path is None or path.whole

    def export_checkpoint(self, folder: str | Path, *, trained: Mapping[str, Any] | None = None) -> Path:
        """Write the policy into a new folder; see `Policy.export_checkpoint`."""
        from menv.inference.policy_bundle import write_policy

        with writing("export_checkpoint", f"{folder}"):
            return write_policy(self, path_given("export_checkpoint", folder), trained or {})

    @locked
    def answer_agents(
        self, agents: Sequence[AgentConnectorDataType], explore: bool | None = None
    ) -> list[PolicyOutput]:
        """Return `(action, states, fetches)` for each of N agents; connectors keep their state from call to call.

        Recurrent states and stacked frames are kept by env and agent; an agent episode ends with data in which
        `terminateds` or `truncateds` is true, or with `agent_connectors.reset(env_id)`. No statistics grow.

        Args:
            agents: Each with `data[SampleBatch.NEXT_OBS]`, and the other columns that its connectors read.
            explore: False takes the most likely actions; None uses the policy's `explore`.

        Raises:
            ContractError: A connector or the network cannot process an observation.
        """
        networks, own = self.networks, self._own
        try:
            with frozen_statistics(own.agent):
                connected = own.agent(list(agents))
            inputs, obs, mask, state = self._shown(connected, networks.preprocess.mask_width)
        except OutsideSpaceError as error:
            # Connectors see single agents, so the error's row says nothing.
            raise ContractError(
                f"policy {self.policy_id!r}: {error.with_advice('pass observations of policy.observation_space')}"
            ) from error
        decision = self._decision(obs, mask, self._noise_for(explore, len(connected)), state)
        logp = networks.backend.evaluate(self.index, obs, mask, decision.actions, state).logp
        states = [] if decision.state is None else self._parts(decision.state)
        plan = action_plan(own.action)
        ready = own.output(networks.action_space)(decision.actions)
        outputs = []
        for row, agent in enumerate(connected):
            rows = {SampleBatch.OBS: obs[row], **({} if mask is None else {MASK: mask[row]})}
            whose = (agent.env_id, agent.agent_id, {**inputs[row], **rows})
            after, fetches = [part[row] for part in states], {"action_logp": logp[row]}
            if not is_final(inputs[row]):
                # The answer to a final observation must not become state of the next agent episode.
                own.agent.on_policy_output(
                    ActionConnectorDataType(*whose, (decision.actions[row], after, fetches))
                )
            answer = ActionConnectorDataType(*whose, (ready[row], after, fetches))
            for connector in plan.rest:
                answer = connector(answer)
            outputs.append(answer.output)
        return outputs

    def _shown(self, agents: Sequence[AgentConnectorDataType], mask_width: int) -> tuple[Any, Any, Any, Any]:
        """Return for N agents what action connectors see of each, and obs [N, F], mask [N, M] and state [N, S]."""
        networks = self.networks
        found = [
            agent.data if isinstance(agent.data, AgentConnectorsOutput)
            else ViewRequirementAgentConnector().transform(agent).data
            for agent in agents
        ]  # fmt: skip
        inputs, views = [one.raw_dict for one in found], [one.sample_batch for one in found]
        obs = as_network_dtype(_stacked(views, SampleBatch.OBS, networks.row_width), networks.row_dtype)
        mask = _stacked(views, MASK, mask_width).astype(np.bool_) if mask_width else None
        parts = [
            _stacked(views, SampleBatch.STATE_IN.format(number), size)
            for number, size in enumerate(networks.state_sizes)
        ]
        return inputs, obs, mask, np.concatenate(parts, 1).astype(np.float32) if parts else None

    def connectors_state(self) -> list[Any] | None:
        """Return the states of both pipelines, JSON; None if they are the default ones, which have none."""
        own = self._own
        return (
            None if plain(own, self.networks.built) else [own.agent.to_state()[1], own.action.to_state()[1]]
        )

    def set_connectors_state(self, state: Sequence[Any] | None) -> None:
        """Restore the pipelines from `connectors_state`; None leaves them unchanged."""
        if state is not None:
            self._own.restore(*state)

    def draws_state(self) -> list[int]:
        """Return the state of the random numbers used outside the sampler."""
        return [self._key, self._calls]

    def set_draws_state(self, state: Sequence[int] | None) -> None:
        """Restore the state that `draws_state` returned; None starts from the beginning."""
        self._key, self._calls = state or (self._key, 0)

    def get_initial_state(self) -> list[Any]:
        """Return the parts of the initial recurrent state, [H] each; [] without one."""
        return [np.zeros(size, np.float32) for size in self.networks.state_sizes]

    def get_weights(self) -> dict[str, Any]:
        """Return copies of the weights by name."""
        return self.networks.backend.get_weights(self.index)

    @locked
    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy weights in; names and shapes must be as in `get_weights`. Training continues from them.

        Connectors stay. With Box actions call it between two fragments, such as in `on_train_result`; see
        `DefaultCallbacks`.

        Raises:
            ConfigError: They are others, or one of their numbers is NaN or infinite as float32.
        """
        check_weights(self.policy_id, weights)
        try:
            self.networks.backend.set_weights(self.index, weights)
        except ConfigError as error:
            raise ConfigError(
                f"policy {self.policy_id!r}: {error}; if another algorithm trains it, declare it with "
                "PolicySpec(algorithm=...)"
            ) from error

    def _rows(self, obs_batch: Sequence[Any]) -> tuple[Any, Any]:
        if not has_order(obs_batch):
            raise ContractError(
                f"policy {self.policy_id!r}: obs_batch is a {type(obs_batch).__name__}, expected a list of "
                "observations; pass [obs] for one"
            )
        networks = self.networks
        path = self._connected()
        try:
            if path is not None:
                refuse_unknown_agents(self.policy_id, path)
                return path.rows(0, obs_batch)[:2]
            obs, mask = networks.preprocess(obs_batch)
        except OutsideSpaceError as error:
            raise self._outside(error, len(obs_batch)) from error
        bad = networks.preprocess.why_bad_row(obs)
        if bad is not None:
            raise self._outside(OutsideSpaceError(*bad), len(obs))
        return obs, mask

    def _decision(
        self, obs: Rows, mask: Flags | None, noise: Floats | None, state: Floats | None
    ) -> Decision:
        """Return the network's decision on R rows; ContractError if its outputs are not finite."""
        networks = self.networks
        decision = networks.backend.decide(obs, mask, noise, self.index, state)
        if not decision.is_finite:
            raise non_finite_error(networks.backend, networks.policy_ids, self.index, obs)
        return decision

    @property
    def _own(self) -> PolicyConnectors:
        return self.networks.connectors[self.index]

    def _connected(self) -> ConnectorPath | None:
        """Return the current pipelines, compiled; None if they are plain."""
        own = self._own
        version = own, own.version
        if version != self._version:
            path = None
            if not plain(own, self.networks.built):
                networks = self.networks
                form = networks.row_width, networks.row_dtype
                path = ConnectorPath([own], networks.action_space, *form, learning=False)
            # The version last: other threads may look.
            self._path, self._version = path, version
        return self._path

    def _answers(self, actions: Actions, obs: Rows, mask: Flags | None) -> Any:
        path = self._connected()
        return self.networks.output(actions) if path is None else path.answers(0, actions, obs, mask, None)

    def _state(self, state_batches: Sequence[Any] | None, rows: int) -> Floats | None:
        """Return the [R, S] state of a recurrent policy, zeros if none is given; None of any other."""
        sizes = self.networks.state_sizes
        if not sizes:
            return None
        parts = [] if state_batches is None else parts_given(f"policy {self.policy_id!r}", state_batches)
        if not parts:
            return np.zeros((rows, sum(sizes)), np.float32)
        found = [np.shape(part) for part in parts]
        wanted = [(rows, size) for size in sizes]
        if found != wanted or any(
            np.asarray(part).dtype.kind not in "biuf" or np.isnan(part).any() for part in parts
        ):
            raise ContractError(
                f"policy {self.policy_id!r}: states of shapes {found}, expected numbers of shapes {wanted}; pass the "
                "states that compute_actions returned, one row for each observation, or policy.get_initial_state()"
            )
        return np.concatenate([np.asarray(part, np.float32) for part in parts], 1)

    def _parts(self, state: Floats) -> list[Floats]:
        return np.split(state, np.cumsum(self.networks.state_sizes)[:-1], 1)

    def _outside(self, error: OutsideSpaceError, rows: int) -> ContractError:
        wrong = error.with_advice("pass observations of policy.observation_space")
        return ContractError(f"policy {self.policy_id!r}, observation {error.row} of {rows}: {wrong}")

    def _noise_for(self, explore: bool | None, rows: int) -> Floats | None:
        """Return new random numbers for R rows, None without exploration."""
        if not (self.explore if explore is None else explore):
            return None
        self._calls += 1
        keys = np.uint64(self._key) + np.arange(rows, dtype=np.uint64)
        head = self.networks.backend.head
        return head.draw(keys, np.full(rows, self._calls, np.int64), head.noise_width)
