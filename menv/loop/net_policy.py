"""One policy of a cohort, by itself: the object that `get_policy` and `Policy.from_checkpoint` return.

It answers through the same preprocessor, back-end and action output as the sampler. It holds no
weights; they are in the cohort's back-end. Whether its networks are trained here or came from a disk it does
not know. Any number of threads may ask it, and are answered one after the other; but none while a sampler runs with
the same back-end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from menv import draws
from menv.acting.backend import Decision
from menv.connectors.action_data import PolicyOutput
from menv.connectors.agent_rows import AgentConnectorDataType
from menv.connectors.kept_lives import keepers
from menv.connectors.pipeline import ActionConnectorPipeline, AgentConnectorPipeline
from menv.connectors.policy_connectors import PolicyConnectors
from menv.errors import ConfigError, ContractError
from menv.loop.agent_answers import Shown, answered, as_it_is
from menv.loop.connector_path import ConnectorPath, plain, refuse_unknown_lives
from menv.loop.networks import Networks
from menv.loop.turns import Turn, in_turn
from menv.loop.unsound import check_weights, unsound
from menv.migration_hints import old_arguments
from menv.nested import has_order
from menv.paths import path_given, writing
from menv.policy import Policy, one_row, parts_given
from menv.sample_batch import SampleBatch
from menv.spaces import OutsideSpaceError


class Decided(NamedTuple):
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


class NetPolicy(Policy):
    """A view of one policy of `Networks`.

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
        self, cohort: Networks, index: int, config: Mapping[str, Any] | None = None, seed: int = 0
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
        self._key = draws.key(seed, draws.stable_hash(self.policy_id))
        self._calls = 0
        self.turn = Turn()

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

    @in_turn
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

    @in_turn
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

    @in_turn
    def decide(
        self, obs_batch: Sequence[Any], noise: Any, state: Any = None, lives: Sequence[Any] | None = None
    ) -> Decided:
        """Return what the policy does about R observations; whether they lie within bounds is not looked at.

        Args:
            obs_batch: R elements of the observation space.
            noise: [R, width] draws of `networks.noise`; None takes the most likely actions.
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
        return Decided(answers, decision.actions, rows, mask, decision.state, lives)

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
        from menv.loop.bundle import write_policy

        with writing("export_checkpoint", f"{folder}"):
            return write_policy(self, path_given("export_checkpoint", folder), trained or {})

    @in_turn
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
            shown = Shown(connected, cohort, cohort.preprocess.mask_width)
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
            self._own.take(*state)

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

    @in_turn
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
        if not decision.sound:
            raise unsound(networks.backend, networks.policy_ids, self.index, obs, mask, state)
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
                keep = any(leaf.keeps_lives for leaf in keepers(own.agent))
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
        noise = self.networks.noise
        return noise.draw(keys, np.full(rows, self._calls, np.int64), noise.width)
