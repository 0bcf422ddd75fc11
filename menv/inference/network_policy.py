"""One policy of a cohort, by itself: the object that `get_policy` and `Policy.from_checkpoint` return.

It answers through the same preprocessor, back-end and action output as the sampler. It holds no
weights; they are in the cohort's back-end. Whether its networks are trained here or came from a disk it does
not know. Any number of threads may ask it, and are answered one after the other; but none while a sampler runs with
the same back-end.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import gymnasium as gym
import numpy as np

from menv import rng
from menv.connectors.action_connector import ActionConnectorDataType, PolicyOutput
from menv.connectors.action_output import ActionOutput
from menv.connectors.agent_connector import (
    MASK,
    AgentConnectorDataType,
    AgentConnectorsOutput,
    as_network_dtype,
)
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import (
    ActionConnectorPipeline,
    ActionPlan,
    AgentConnectorPipeline,
    PolicyConnectors,
    action_plan,
    leaf_connectors,
    stateful_connectors,
)
from menv.errors import ConfigError, ContractError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.backend import ActingBackend, Decision, check_weights, non_finite_error
from menv.inference.connector_path import ConnectorPath, plain, refuse_unknown_lives
from menv.migration_hints import old_arguments
from menv.policy import Policy, one_row, parts_given
from menv.sample_batch import SampleBatch
from menv.serialization import path_given, writing
from menv.spaces import OutsideSpaceError, has_order
from menv.trajectory_slices import Column

# SEAM menv.loop.networks
# Networks: the policies that share an architecture, and all that stands around it.
#
# `NetPolicy` looks at one of them. A `NetCohort` has those that a sampler asks, a bundle those that lay in a
# folder,
# `RemovedPolicies` one that was removed from the others.


class NetworkGroup(Protocol):
    """The policies that share an architecture and everything around it: a `NetCohort`, or what a bundle holds.

    Attributes:
        policy_ids: Their ids, by index.
        observation_space: Of each of them.
        action_space: Likewise.
        preprocess: Observations to rows.
        backend: Rows to actions of the network.
        output: These to actions of the space.
        state_sizes: Numbers in each part of their recurrent state.
        built: What `output` does of the action connectors.
    """

    policy_ids: list[str]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    preprocess: ObsPreprocessor | None
    backend: ActingBackend
    output: ActionOutput
    state_sizes: tuple[int, ...]
    built: ActionPlan

    @property
    def connectors(self) -> Sequence[PolicyConnectors]:
        """The pipelines of each."""

    @property
    def row_width(self) -> int:
        """F, the numbers in a row that the networks take."""

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Their type."""

    def graphs(self) -> ActingGraphs | None:
        """Return what builds their acting graphs, None if only torch runs them."""


@dataclass
class SingleNetwork:
    """The `NetworkGroup` of one policy by itself; attributes as there."""

    policy_ids: list[str]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    preprocess: ObsPreprocessor | None
    backend: ActingBackend
    output: ActionOutput
    state_sizes: tuple[int, ...]
    connectors: Sequence[PolicyConnectors]
    built: ActionPlan


@dataclass
class RemovedPolicies(SingleNetwork):
    """Those of a policy that has left others, with weights of its own."""

    row_width: int
    row_dtype: np.dtype[Any]
    graphs: Callable[[], ActingGraphs | None]

    @classmethod
    def of(cls, networks: NetworkGroup, index: int) -> Self:
        """Return those of policy number `index`; another one may be given its number from now on."""
        return cls(
            [networks.policy_ids[index]], networks.observation_space, networks.action_space, networks.preprocess,
            networks.backend.extract_policy(index), networks.output, networks.state_sizes,
            [networks.connectors[index]], networks.built, networks.row_width, networks.row_dtype, networks.graphs,
        )  # fmt: skip


# SEAM menv.loop.agent_answers
# One policy's answers to single agents, through its connectors: who is asked is known, and remembered.
#
# `NetPolicy.answer_agents` calls it, for whoever acts without a sampler. Statistics stay as they are.


class AgentView:
    """What a network is shown of some agents.

    Args:
        agents: N of them, as a pipeline returned them.
        networks: Of the policy: they say what they take.
        mask_width: M, 0 without masks.

    Attributes:
        obs: [N, F].
        mask: [N, M] or None.
        state: [N, S] or None.
        inputs: What action connectors see of each, beside its row and mask.

    Raises:
        ContractError: A column is missing or of another size.
        OutsideSpaceError: The network takes bytes, and an observation has become something else.
    """

    def __init__(
        self,
        agents: Sequence[AgentConnectorDataType],
        networks: NetworkGroup,
        mask_width: int,
    ) -> None:
        found = [agent.data for agent in agents]
        views: list[Any] = [
            data.sample_batch if isinstance(data, AgentConnectorsOutput) else _one_row(data) for data in found
        ]
        self.inputs = [data.raw_dict if isinstance(data, AgentConnectorsOutput) else data for data in found]
        self.obs = as_network_dtype(_stacked(views, SampleBatch.OBS, networks.row_width), networks.row_dtype)
        self.mask = _stacked(views, MASK, mask_width).astype(np.bool_) if mask_width else None
        state_sizes = networks.state_sizes
        names = [SampleBatch.STATE_IN.format(number) for number in range(len(state_sizes))]
        parts = [_stacked(views, name, size) for name, size in zip(names, state_sizes, strict=True)]
        self.state = np.concatenate(parts, 1).astype(np.float32) if parts else None


@contextmanager
def as_it_is(pipeline: AgentConnectorPipeline) -> Iterator[None]:
    """Leave what connectors have learned as it is for a while."""
    before = [(leaf, leaf.is_training) for leaf in leaf_connectors(pipeline)]
    pipeline.in_eval()
    try:
        yield
    finally:
        pipeline.is_training = True
        for leaf, was_training in before:
            leaf.is_training = was_training


def answered(
    agents: Sequence[AgentConnectorDataType],
    shown: AgentView,
    decision: Decision,
    states: Sequence[Column],
    logp: Column,
    connectors: PolicyConnectors,
    action_space: Any,
) -> list[PolicyOutput]:
    """Return `(action, states, fetches)` for each agent, after the action connectors.

    Args:
        agents: N of them.
        shown: What the network was shown.
        decision: What it answered.
        states: Parts of the recurrent state after it, [N, H] each.
        logp: [N].
        connectors: Of the policy.
        action_space: Likewise.
    """
    plan = action_plan(connectors.action)
    ready = connectors.output(action_space)(decision.actions)
    outputs = []
    for row, agent in enumerate(agents):
        rows = {SampleBatch.OBS: shown.obs[row], **({} if shown.mask is None else {MASK: shown.mask[row]})}
        whose = (agent.env_id, agent.agent_id, {**shown.inputs[row], **rows})
        own, fetches = [part[row] for part in states], {"action_logp": logp[row]}
        seen = shown.inputs[row]
        if not (seen.get(SampleBatch.TERMINATEDS) or seen.get(SampleBatch.TRUNCATEDS)):
            # What is answered to a last observation must not be remembered into the next life.
            connectors.agent.on_policy_output(
                ActionConnectorDataType(*whose, (decision.actions[row], own, fetches))
            )
        answer = ActionConnectorDataType(*whose, (ready[row], own, fetches))
        for connector in plan.rest:
            answer = connector(answer)
        outputs.append(answer.output)
    return outputs


def _one_row(data: Any) -> dict[str, Any]:
    view = {name: np.asarray(value)[None] for name, value in data.items() if name == MASK}
    number = 0
    while f"state_out_{number}" in data:
        view[SampleBatch.STATE_IN.format(number)] = np.asarray(data[f"state_out_{number}"])[None]
        number += 1
    return {**view, SampleBatch.OBS: np.asarray(data[SampleBatch.NEXT_OBS])[None]}


def _stacked(views: Sequence[Any], name: str, width: int) -> Column:
    """Return [N, width] of one column."""
    sizes = {np.size(view[name]) if name in view else 0 for view in views}
    if sizes != {width}:
        raise ContractError(
            f"column {name!r}: {sorted(sizes)} numbers after the agent connectors, expected {width}; look at "
            "print(policy.agent_connectors) for a connector that is missing or too much"
        )
    return np.concatenate([np.asarray(view[name]).reshape(1, -1) for view in views])


# SEAM menv.loop.turns
# Turns: what two threads must not do at once with one object, they do one after the other.
#
# `NetPolicy` takes them, because buffers, connectors and draws are for one caller at a time. Nothing here
# knows what is
# done in a turn.


P = ParamSpec("P")
R = TypeVar("R")


class FairLock:
    """A lock that a pickle, a copy or a forked process has anew; whoever holds it may take it again.

    Attributes:
        lock: Held by whoever's turn it is.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _TURNS.add(self)

    def __reduce__(self) -> tuple[type[FairLock], tuple[()]]:
        return FairLock, ()


class FairlyLocked(Protocol):
    """What has a turn."""

    turn: FairLock


T = TypeVar("T", bound=FairlyLocked)


def locked(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Return a method that one thread at a time is in."""

    @functools.wraps(method)
    def alone(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turn.lock:
            return method(self, *args, **kwargs)

    return alone


_TURNS: weakref.WeakSet[FairLock] = weakref.WeakSet()


def _renew() -> None:
    """Free all turns: in a forked process there is nobody who would give back those of other threads."""
    for turn in list(_TURNS):
        turn.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class ComputedAction(NamedTuple):
    """What a policy did about R observations, with all that somebody needs who writes it down.

    Attributes:
        answers: R env-ready actions.
        actions: [R, ...] the network's own.
        rows: [R, F] what the network was shown.
        mask: [R, M] or None.
        state: [R, S] of a recurrent network afterwards, else None.
        lives: What connectors remember of each row's life afterwards; None if they remember nothing.
    """

    answers: Any
    actions: Any
    rows: Any
    mask: Any
    state: Any
    lives: Sequence[Any] | None = None


class NetworkPolicy(Policy):
    """A view of one policy of `NetworkGroup`.

    Attributes:
        policy_id: Its id.
        networks: Whose policy it is.
        index: Its number among them.
        seed: Of its draws outside the sampler.
        explore: Whether `compute_actions` and `answer_agents` draw actions where they are not told.
        turn: Of the threads that ask it.
    """

    stock = True
    """Whether it is the class of an algorithm's own policies, which none of its subclasses is."""

    def __init__(
        self, cohort: NetworkGroup, index: int, config: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        """Look at policy number `index`; `seed` is for draws outside the sampler."""
        super().__init__(cohort.observation_space, cohort.action_space, config)
        self.policy_id = cohort.policy_ids[index]
        self.networks = cohort
        self.index = index
        self.seed = seed
        self.explore = True
        self._version: tuple[PolicyConnectors, int] | None = None
        self._path: ConnectorPath | None = None
        self._key = rng.key(seed, rng.stable_hash(self.policy_id))
        self._calls = 0
        self.turn = FairLock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_version": None, "_path": None}

    @property
    def agent_connectors(self) -> AgentConnectorPipeline:
        """What observations go through on their way to the network, wherever this policy acts."""
        return self._own.agent

    @property
    def action_connectors(self) -> ActionConnectorPipeline:
        """What actions go through on their way to the environment, wherever this policy acts."""
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
        """Return `(actions, states, fetches)`; see `Policy.compute_actions`.

        Raises:
            ContractError: An observation is outside the policy's space, or a state does not fit.
        """
        if not has_order(obs_batch):
            raise ContractError(
                f"policy {self.policy_id!r}: obs_batch is a {type(obs_batch).__name__}, expected a list of "
                "observations; pass [obs] for one"
            )
        obs, mask = self._rows(obs_batch)
        state = self._state(state_batches, len(obs))
        decision = self._decision(obs, mask, self._noise_for(explore, len(obs)), state)
        logp = self.networks.backend.evaluate(self.index, obs, mask, decision.actions, state).logp
        states = [] if decision.state is None else self._parts(decision.state)
        return self._answers(decision.actions, obs, mask), states, {"action_logp": logp}

    @locked
    def act(self, obs: Any, *, state: Sequence[Any] | None = None, explore: bool = False) -> Any:
        """Return the action for one observation, the most likely one unless `explore`; see `Policy.act`.

        Raises:
            ContractError: The observation is outside the space, the policy has a memory and no state is given, or
                connectors have to know whose the observation is.
        """
        if state is None and self.networks.state_sizes:
            raise self.without_state()
        rows, mask = self._rows([obs])
        before = self._state(None if state is None else one_row(f"policy {self.policy_id!r}", state), 1)
        decision = self._decision(rows, mask, self._noise(1) if explore else None, before)
        action = self._answers(decision.actions, rows, mask)[0]
        if state is None:
            return action
        return action, [] if decision.state is None else [part[0] for part in self._parts(decision.state)]

    @locked
    def decide(
        self, obs_batch: Sequence[Any], noise: Any, state: Any = None, lives: Sequence[Any] | None = None
    ) -> ComputedAction:
        """Return what the policy does about R observations; whether they lie within bounds is not looked at.

        Args:
            obs_batch: R elements of the observation space.
            noise: [R, width] draws of the head's `draw`; None takes the most likely actions.
            state: [R, S] of a recurrent network before.
            lives: Of each row what connectors remembered of its life the last time, None of a new one.

        Raises:
            OutsideSpaceError: An observation has another structure, shape or dtype than the space says.
            ContractError: Connectors have to know whose the observations are, and do not tell what they remember.
        """
        networks, path = self.networks, self._connected()
        assert networks.preprocess is not None
        if path is None:
            lives, (rows, mask) = None, networks.preprocess(obs_batch)
        elif lives is not None and path.keeps_lives and path.goes_on:
            rows, mask, lives = path.rows_of_lives(0, obs_batch, lives)
        else:
            refuse_unknown_lives(self.policy_id, path)
            lives, (rows, mask) = None, path.rows(0, obs_batch)[:2]
        decision = self._decision(rows, mask, noise, state)
        if path is None:
            answers = networks.output(decision.actions)
        else:
            answers = path.answers(0, decision.actions, rows, mask, None)
        return ComputedAction(answers, decision.actions, rows, mask, decision.state, lives)

    @property
    def lives_stay(self) -> bool:
        """Whether connectors remember lives and do not tell what, so that `decide` cannot ask them."""
        path = self._connected()
        return path is not None and path.keeps_lives and not path.goes_on

    @property
    def plain(self) -> bool:
        """Whether connectors do no more than flatten observations and scale actions, so that weights are all."""
        return self._connected() is None

    @property
    def whole(self) -> bool:
        """Whether no connector cares whose an observation is, or for ends, so that rows of anybody go at once."""
        path = self._connected()
        return path is None or path.whole

    @old_arguments(export_dir="folder")
    def export_checkpoint(self, folder: str | Path, *, trained: Mapping[str, Any] | None = None) -> Path:
        """Write the policy into a new folder; see `Policy.export_checkpoint`."""
        from menv.inference.policy_bundle import write_policy

        with writing("export_checkpoint", f"{folder}"):
            return write_policy(self, path_given("export_checkpoint", folder), trained or {})

    @locked
    def answer_agents(
        self, agents: Sequence[AgentConnectorDataType], explore: bool | None = None
    ) -> list[PolicyOutput]:
        """Return `(action, states, fetches)` for each of N agents; connectors remember them from call to call.

        Recurrent states and stacked frames are kept by env and agent; a life ends with data in which `terminateds`
        or `truncateds` is true, or with `agent_connectors.reset(env_id)`. No statistics grow.

        Args:
            agents: Each with `data[SampleBatch.NEXT_OBS]`, and what else its connectors read.
            explore: False takes the most likely actions; None does as `explore` of the policy says.

        Raises:
            ContractError: A connector or the network cannot take what it is shown.
        """
        cohort, own = self.networks, self._own
        assert cohort.preprocess is not None
        for row, agent in enumerate(agents):
            if isinstance(agent.data, Mapping) and agent.data.get(SampleBatch.NEXT_OBS, 0) is None:
                raise self._outside(
                    OutsideSpaceError(row, "obs: expected an observation, got None"), len(agents)
                )
        try:
            with as_it_is(own.agent):
                connected = own.agent(list(agents))
            shown = AgentView(connected, cohort, cohort.preprocess.mask_width)
        except OutsideSpaceError as error:
            # Connectors are shown agent by agent, so that its row is of no use.
            raise ContractError(
                f"policy {self.policy_id!r}: {error.mended('pass observations of policy.observation_space')}"
            ) from error
        noise = self._noise_for(explore, len(connected))
        decision = self._decision(shown.obs, shown.mask, noise, shown.state)
        logp = cohort.backend.evaluate(self.index, shown.obs, shown.mask, decision.actions, shown.state).logp
        states = [] if decision.state is None else self._parts(decision.state)
        return answered(connected, shown, decision, states, logp, own, cohort.action_space)

    def connectors_state(self) -> list[Any] | None:
        """Return the states of both pipelines, JSON; None if they are the usual ones, which have none."""
        own = self._own
        return (
            None if plain(own, self.networks.built) else [own.agent.to_state()[1], own.action.to_state()[1]]
        )

    def set_connectors_state(self, state: Sequence[Any] | None) -> None:
        """Take over pipelines that `connectors_state` told of, None for those that are there.

        Raises:
            UnknownNameError: A connector is not registered.
        """
        if state is not None:
            self._own.restore(*state)

    def draws_state(self) -> list[int]:
        """Return what its draws outside the sampler depend on."""
        return [self._key, self._calls]

    def set_draws_state(self, state: Sequence[int] | None) -> None:
        """Draw on from what `draws_state` told, from the beginning if it told nothing."""
        self._key, self._calls = state or (self._key, 0)

    def get_initial_state(self) -> list[Any]:
        """Return the parts of the recurrent state that a life begins with, [H] each; [] without one."""
        return [np.zeros(size, np.float32) for size in self.networks.state_sizes]

    def get_weights(self) -> dict[str, Any]:
        """Return copies of the weights by name."""
        return self.networks.backend.get_weights(self.index)

    @locked
    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy weights in; names and shapes must be those of `get_weights`. Who trains goes on from them.

        With Box actions call it between two fragments, such as in `on_train_result`; see `DefaultCallbacks`.

        Raises:
            ConfigError: They are others, or one of their numbers is NaN or infinite as float32.
        """
        if not isinstance(weights, Mapping):
            raise ConfigError(
                f"policy {self.policy_id!r}: the weights are a {type(weights).__name__}, expected a dict of arrays by "
                "name; give what get_weights returned"
            )
        check_weights(self.policy_id, weights)
        try:
            self.networks.backend.set_weights(self.index, weights)
        except ConfigError as error:
            raise ConfigError(
                f"policy {self.policy_id!r}: {error}; if another algorithm trains it, say so: PolicySpec(algorithm=...)"
            ) from error

    def _rows(self, obs_batch: Sequence[Any]) -> tuple[Any, Any]:
        networks = self.networks
        assert networks.preprocess is not None
        path = self._connected()
        try:
            if path is not None:
                refuse_unknown_lives(self.policy_id, path)
                return path.rows(0, obs_batch)[:2]
            obs, mask = networks.preprocess(obs_batch)
        except OutsideSpaceError as error:
            raise self._outside(error, len(obs_batch)) from error
        bad = networks.preprocess.why_bad_row(obs)
        if bad is not None:
            raise self._outside(OutsideSpaceError(*bad), len(obs))
        return obs, mask

    def _decision(self, obs: Any, mask: Any, noise: Any, state: Any) -> Decision:
        """Return what the network decides about R rows.

        Raises:
            ContractError: It gives no numbers to choose an action by.
        """
        networks = self.networks
        decision = networks.backend.decide(obs, mask, noise, self.index, state)
        if not decision.is_finite:
            raise non_finite_error(networks.backend, networks.policy_ids, self.index, obs, mask, state)
        return decision

    @property
    def _own(self) -> PolicyConnectors:
        return self.networks.connectors[self.index]

    def _connected(self) -> ConnectorPath | None:
        """Return the way through the pipelines as they are now; None if they are plain."""
        own = self._own
        version = own, own.version
        if version != self._version:
            path = None
            if not plain(own, self.networks.built):
                networks = self.networks
                # Lives that are handed in must not get in the way of those that a sampler has.
                keep = any(leaf.keeps_lives for leaf in stateful_connectors(own.agent))
                mine = own.for_evaluation() if keep else own
                taken = networks.row_width, networks.row_dtype
                path = ConnectorPath([mine], networks.action_space, *taken, learning=False)
            # The version last: other threads may look.
            self._path, self._version = path, version
        return self._path

    def _answers(self, actions: Any, obs: Any, mask: Any) -> Any:
        path = self._connected()
        return self.networks.output(actions) if path is None else path.answers(0, actions, obs, mask, None)

    def _state(self, state_batches: Sequence[Any] | None, rows: int) -> Any:
        """Return the [R, S] state of a recurrent policy, zeros if none is given; None of any other."""
        sizes = self.networks.state_sizes
        if not sizes:
            return None
        if state_batches is None:
            return np.zeros((rows, sum(sizes)), np.float32)
        parts_given(f"policy {self.policy_id!r}", state_batches)
        if not len(state_batches):
            return np.zeros((rows, sum(sizes)), np.float32)
        found = [np.shape(part) for part in state_batches]
        if found != [(rows, size) for size in sizes]:
            raise ContractError(
                f"policy {self.policy_id!r}: states of shapes {found}, expected {[(rows, size) for size in sizes]}; "
                "pass the states that compute_actions returned, one row for each observation"
            )
        parts = [np.asarray(part) for part in state_batches]
        for place, part in enumerate(parts):
            numbers = part.dtype.kind in "biuf"
            if not numbers or np.isnan(part).any():
                raise ContractError(
                    f"policy {self.policy_id!r}: part {place} of the state "
                    f"{'holds NaN' if numbers else f'is an array of {part.dtype}'}, expected numbers; pass what was "
                    "returned for the observation before, or policy.get_initial_state()"
                )
        return np.concatenate([part.astype(np.float32) for part in parts], 1)

    def _parts(self, state: Any) -> list[Any]:
        return np.split(state, np.cumsum(self.networks.state_sizes)[:-1], 1)

    def _outside(self, error: OutsideSpaceError, rows: int) -> ContractError:
        wrong = error.mended("pass observations of policy.observation_space")
        return ContractError(f"policy {self.policy_id!r}, observation {error.row} of {rows}: {wrong}")

    def _noise_for(self, explore: bool | None, rows: int) -> Any:
        """Return fresh draws for R rows, None where none are wanted."""
        return self._noise(rows) if (self.explore if explore is None else explore) else None

    def _noise(self, rows: int) -> Any:
        self._calls += 1
        keys = np.uint64(self._key) + np.arange(rows, dtype=np.uint64)
        head = self.networks.backend.head
        return head.draw(keys, np.full(rows, self._calls, np.int64), head.noise_width)
