"""One policy of a cohort, by itself: the object that `get_policy` returns.

It answers through the same preprocessor, back-end and action output as the sampler. It holds no
weights; they are in the cohort's back-end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv import draws
from menv.connectors.action_data import PolicyOutput
from menv.connectors.agent_rows import AgentConnectorDataType
from menv.connectors.pipeline import ActionConnectorPipeline, AgentConnectorPipeline
from menv.connectors.policy_connectors import PolicyConnectors
from menv.errors import ContractError
from menv.loop.agent_answers import Shown, answered, as_it_is
from menv.loop.cohort import NetCohort
from menv.loop.connector_path import ConnectorPath, plain, refuse_unknown_lives
from menv.policy import Policy
from menv.spaces import OutsideSpaceError


class NetPolicy(Policy):
    """A view of one policy of a `NetCohort`."""

    def __init__(
        self, cohort: NetCohort, index: int, config: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        """Look at policy number `index`; `seed` is for draws outside the sampler."""
        super().__init__(cohort.observation_space, cohort.action_space, config)
        self.policy_id = cohort.policy_ids[index]
        self._cohort = cohort
        self._index = index
        self._version = -1
        self._path: ConnectorPath | None = None
        self._key = draws.key(seed, draws.stable_hash(self.policy_id))
        self._calls = 0

    @property
    def agent_connectors(self) -> AgentConnectorPipeline:
        """What observations go through on their way to the network, wherever this policy acts."""
        return self._own.agent

    @property
    def action_connectors(self) -> ActionConnectorPipeline:
        """What actions go through on their way to the environment, wherever this policy acts."""
        return self._own.action

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
        obs, mask = self._rows(obs_batch)
        state = self._state(state_batches, len(obs))
        backend, noise = self._cohort.backend, None if explore is False else self._noise(len(obs))
        decision = backend.decide(obs, mask, noise, self._index, state)
        logp = backend.evaluate(self._index, obs, mask, decision.actions, state).logp
        states = [] if decision.state is None else self._parts(decision.state)
        return self._answers(decision.actions, obs, mask), states, {"action_logp": logp}

    def act(self, obs: Any, *, explore: bool = False) -> Any:
        """Return the action for one observation, the most likely one unless `explore`.

        Raises:
            ContractError: The observation is outside the space, or the policy has a memory.
        """
        if self._cohort.state_sizes:
            raise ContractError(
                f"policy {self.policy_id!r}: act cannot keep the state of a recurrent policy, expected a call that "
                "takes it; use compute_actions, beginning with get_initial_state()"
            )
        rows, mask = self._rows([obs])
        noise = self._noise(1) if explore else None
        actions = self._cohort.backend.decide(rows, mask, noise, self._index).actions
        return self._answers(actions, rows, mask)[0]

    def answer_agents(
        self, agents: Sequence[AgentConnectorDataType], explore: bool | None = None
    ) -> list[PolicyOutput]:
        """Return `(action, states, fetches)` for each of N agents; connectors remember them from call to call.

        Recurrent states and stacked frames are kept by env and agent; a life ends with data in which `terminateds`
        or `truncateds` is true, or with `agent_connectors.reset(env_id)`. No statistics grow.

        Args:
            agents: Each with `data[SampleBatch.NEXT_OBS]`, and what else its connectors read.
            explore: False takes the most likely actions.

        Raises:
            ContractError: A connector or the network cannot take what it is shown.
        """
        cohort, own = self._cohort, self._own
        with as_it_is(own.agent):
            connected = own.agent(list(agents))
        assert cohort.preprocess is not None
        shown = Shown(connected, cohort.row_width, cohort.preprocess.mask_width, cohort.state_sizes)
        noise = None if explore is False else self._noise(len(connected))
        decision = cohort.backend.decide(shown.obs, shown.mask, noise, self._index, shown.state)
        logp = cohort.backend.evaluate(self._index, shown.obs, shown.mask, decision.actions, shown.state).logp
        states = [] if decision.state is None else self._parts(decision.state)
        return answered(connected, shown, decision, states, logp, own, cohort.action_space)

    def get_initial_state(self) -> list[Any]:
        """Return the parts of the recurrent state that a life begins with, [H] each; [] without one."""
        return [np.zeros(size, np.float32) for size in self._cohort.state_sizes]

    def get_weights(self) -> dict[str, Any]:
        """Return copies of the weights by name."""
        return self._cohort.backend.get_weights(self._index)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy weights in; names and shapes must be those of `get_weights`."""
        self._cohort.backend.set_weights(self._index, weights)

    def _rows(self, obs_batch: Sequence[Any]) -> tuple[Any, Any]:
        """Return the network's rows and masks for R observations."""
        assert self._cohort.preprocess is not None
        path = self._connected()
        try:
            if path is not None:
                refuse_unknown_lives(self.policy_id, path)
                return path.rows(0, obs_batch)[:2]
            obs, mask = self._cohort.preprocess(obs_batch)
        except OutsideSpaceError as error:
            raise self._outside(error.row, len(obs_batch), error.why) from error
        bad = self._cohort.preprocess.why_bad_row(obs)
        if bad is not None:
            raise self._outside(bad[0], len(obs), bad[1])
        return obs, mask

    @property
    def _own(self) -> PolicyConnectors:
        """The pipelines."""
        return self._cohort.connectors[self._index]

    def _connected(self) -> ConnectorPath | None:
        """Return the way through the pipelines as they are now; None if they are plain."""
        own = self._own
        if own.version != self._version:
            self._version, self._path = own.version, None
            if not plain(own, self._cohort.built):
                space, width = self._cohort.action_space, self._cohort.row_width
                self._path = ConnectorPath([own], space, width, learning=False)
        return self._path

    def _answers(self, actions: Any, obs: Any, mask: Any) -> Any:
        """Return env-ready actions."""
        path = self._connected()
        return self._cohort.output(actions) if path is None else path.answers(0, actions, obs, mask, None)

    def _state(self, state_batches: Sequence[Any] | None, rows: int) -> Any:
        """Return the [R, S] state of a recurrent policy, zeros if none is given; None of any other."""
        sizes = self._cohort.state_sizes
        if not sizes:
            return None
        if not state_batches:
            return np.zeros((rows, sum(sizes)), np.float32)
        found = [np.shape(part) for part in state_batches]
        if found != [(rows, size) for size in sizes]:
            raise ContractError(
                f"policy {self.policy_id!r}: states of shapes {found}, expected {[(rows, size) for size in sizes]}; "
                "pass the states that compute_actions returned, one row for each observation"
            )
        return np.concatenate([np.asarray(part, np.float32) for part in state_batches], 1)

    def _parts(self, state: Any) -> list[Any]:
        """Return the parts of [R, S] states."""
        return np.split(state, np.cumsum(self._cohort.state_sizes)[:-1], 1)

    def _outside(self, row: int, rows: int, why: str) -> ContractError:
        """Return the error for an observation outside the space."""
        return ContractError(
            f"policy {self.policy_id!r}, observation {row} of {rows}: {why}; "
            "pass observations of policy.observation_space"
        )

    def _noise(self, rows: int) -> Any:
        """Return fresh draws for R rows."""
        self._calls += 1
        keys = np.uint64(self._key) + np.arange(rows, dtype=np.uint64)
        noise = self._cohort.noise
        return noise.draw(keys, np.full(rows, self._calls, np.int64), noise.width)
