"""ConnectorPath: the pipelines of several policies, compiled to work on whole batches of rows.

Built-in connectors change a policy's rows at once, custom connectors see agent by agent. `menv.sampling.policy_group`
and `menv.inference.network_policy` use it where some pipeline does more, or less, than the preprocessor and action
output do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import Column, End, EnvId, NestedRows
from menv.connectors.connector import (
    ActionConnectorDataType,
    AgentConnector,
    AgentRows,
    as_network_dtype,
)
from menv.connectors.obs_preprocessor import ObsPreprocessorConnector
from menv.connectors.pipeline import (
    ActionPlan,
    PolicyConnectors,
    action_plan,
    batch_steps,
)
from menv.errors import ContractError
from menv.inference.backend import not_finite
from menv.spaces import OutsideSpaceError, own_copy

Mask = npt.NDArray[np.bool_]
Observations: TypeAlias = Sequence[Any] | npt.NDArray[Any]
Seats = Sequence[tuple[Any, Any]]


class FinalObservation(NamedTuple):
    """A final observation after the connectors: row [F], mask [M] or None."""

    row: Column
    mask: Column | None


class ConnectedRows(NamedTuple):
    """Rows after the connectors: obs [R, F], mask [R, M] or None, rewards [R] as learners see them."""

    obs: Column
    mask: Mask | None
    rewards: Any


def plain(connectors: PolicyConnectors, built: ActionPlan) -> bool:
    """Return whether a preprocessor and an action output of `built` do the same as these connectors."""
    steps = [type(connector) for connector in batch_steps(connectors.agent)]
    return steps == [ObsPreprocessorConnector] and action_plan(connectors.action) == built


class ConnectorPath:
    """The pipelines of several policies; `learning` says whether statistics may grow.

    Attributes:
        keeps_lives: Whether some connector keeps state per agent episode and so needs the slots.
        at_ends: By policy index, whether connectors must see final observations as soon as they come.
        acts: Whether custom connectors see or change the actions of each agent.
        outputs: By policy index, the action connectors on whole batches.
        shown: Copies of the last raw observation by slot, of policies `at_ends`, for ends without one.
    """

    def __init__(
        self,
        connectors: Sequence[PolicyConnectors],
        action_space: gym.Space[Any],
        width: int,
        dtype: np.dtype[Any],
        *,
        learning: bool,
    ) -> None:
        self._agent = [own.agent for own in connectors]
        self._plans = [action_plan(own.action) for own in connectors]
        self.outputs = [own.output(action_space) for own in connectors]
        self._width, self._dtype = width, dtype
        self._learning = learning
        leaves = [pipeline.connectors for pipeline in self._agent]
        self.keeps_lives = any(leaf.keeps_lives for own in leaves for leaf in own)
        self.at_ends = [any(leaf.at_ends for leaf in own) for own in leaves]
        # Connectors that are called agent by agent.
        self._custom = [[leaf for leaf in own if not leaf.takes_rows] for own in leaves]
        self._named = [any(leaf.reads_agents or not leaf.takes_rows for leaf in own) for own in leaves]
        self.shown: dict[int, Any] = {}
        looks = AgentConnector.on_policy_output
        self._observers = [
            [one for one in own if type(one).on_policy_output is not looks] for own in self._custom
        ]
        self.acts = any(bool(plan.rest) for plan in self._plans) or any(self._observers)
        self._groups: tuple[Any, list[tuple[int, Column | None]]] = (None, [])

    @property
    def whole(self) -> bool:
        """Whether the path works without agents and ends: no connector depends on them."""
        return not (self.keeps_lives or self.acts or any(self.at_ends) or any(self._custom))

    def rows(
        self,
        which: Column | int,
        obs: Observations,
        rewards: Column | None = None,
        *,
        slots: Column | None = None,
        seats: Seats | None = None,
        infos: Sequence[Mapping[str, Any]] | None = None,
        final: bool = False,
        over: Column | None = None,
    ) -> ConnectedRows:
        """Return R observations as rows, or raise OutsideSpaceError, or ContractError of a connector.

        `which` [R] are policy indices, or one for all; `seats` hold `(env_id, agent_id)` by slot; `slots` and `infos`
        may be unknown. Final observations change no state; `over` [R] marks them among the others of a single policy.
        """

        def through(index: int, places: Column | None) -> ConnectedRows:
            shown, paid, own, about = (_some(column, places) for column in (obs, rewards, slots, infos))
            rows = AgentRows(
                shown, paid, slots=own, infos=about, truncated=final, learning=self._learning, over=over
            )
            if seats is not None and own is not None:
                if self.at_ends[index]:
                    self.shown.update(zip(own.tolist(), map(own_copy, shown), strict=True))
                if self._named[index]:
                    rows.seats = [seats[slot] for slot in own.tolist()]
            return self._run(index, rows)

        return ConnectedRows(*self._joined(which, len(obs), through))

    def _joined(
        self, which: Column | int, count: int, run: Callable[[int, Column | None], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return columns of R rows, the rows of each policy from `run(index, places)`; places are None for all rows."""
        groups = self._split(which)
        if len(groups) == 1:
            return run(groups[0][0], None)
        whole: list[Any] = []
        for index, places in groups:
            assert places is not None
            try:
                part = run(index, places)
            except OutsideSpaceError as error:
                raise error.among(places) from error
            whole = whole or [
                None if column is None else np.empty((count, *column.shape[1:]), column.dtype)
                for column in part
            ]
            for column, own in zip(whole, part, strict=True):
                if column is not None:
                    column[places] = own
        return whole

    def final(self, index: int, end: End) -> End:
        """Return the end of a trajectory with its observation and reward after the connectors."""
        if self.at_ends[index]:
            end = self._connected_end(index, end)
        if end.obs is None:
            for leaf in self._custom[index]:
                leaf.forget(end.env_id, end.agent_id)
        return end

    def _connected_end(self, index: int, end: End) -> End:
        """Return an end after the connectors; an end without observation keeps none."""
        shown = self.shown.pop(end.slot, None)
        obs = shown if end.obs is None else end.obs
        if obs is None:
            return end
        rows = AgentRows(
            [obs], np.array([end.reward]), slots=np.array([end.slot]), seats=[(end.env_id, end.agent_id)],
            infos=[end.info], terminated=end.terminated, truncated=end.truncated,
        )  # fmt: skip
        done = self._run(index, rows)
        found = FinalObservation(done.obs[0], None if done.mask is None else done.mask[0])
        return end._replace(obs=None if end.obs is None else found, reward=float(done.rewards[0]))

    def finals(self, finals: Sequence[Any], policies: Column) -> tuple[Column, Mask | None]:
        """Return N final observations, some already `FinalObservation`, as rows and masks; policies is [N] indices."""
        late = np.array([not isinstance(final, FinalObservation) for final in finals], np.bool_)
        places, rows = np.flatnonzero(late), list(finals)
        if len(places):
            try:
                done = self.rows(policies[places], _some(finals, places), final=True)
            except OutsideSpaceError as error:
                raise error.among(places) from error
            masks = [None] * len(places) if done.mask is None else done.mask
            for place, *found in zip(places.tolist(), done.obs, masks, strict=True):
                rows[place] = FinalObservation(*found)
        masked = bool(rows) and rows[0].mask is not None
        return np.stack([row.row for row in rows]), np.stack([row.mask for row in rows]) if masked else None

    def begin(self, slot: int, index: int) -> None:
        """Begin an agent episode on a slot."""
        self._agent[index].begin(slot)

    def reset(self, env_id: EnvId) -> None:
        """Call `reset` of all connectors."""
        for pipeline in self._agent:
            pipeline.reset(env_id)

    def settle(self) -> None:
        """Call `settle` of all connectors."""
        for pipeline in self._agent:
            pipeline.settle()

    def answers(
        self, which: Column | int, actions: Column, obs: Column, mask: Column | None, seats: Seats | None
    ) -> Any:
        """Return R env-ready actions for the network's actions [R, ...] on rows obs [R, F]; `seats` is of each row."""
        groups = self._split(which)
        if len(groups) == 1:
            return self._answers(groups[0][0], actions, obs, mask, seats)
        out: list[Any] = [None] * len(actions)
        for index, places in groups:
            assert places is not None
            part = self._answers(index, *(_some(column, places) for column in (actions, obs, mask, seats)))
            for place, action in zip(places.tolist(), part, strict=True):
                out[place] = action
        return out

    def network_form(self, which: Column | int, actions: Any) -> Column:
        """Return the network's [R, ...] actions for R elements of the action space; the inverse of `answers`."""
        (found,) = self._joined(
            which, len(actions), lambda index, places: [self.outputs[index].inverse(_some(actions, places))]
        )
        return np.asarray(found)

    def _answers(
        self, index: int, actions: Column, obs: Column, mask: Column | None, seats: Seats | None
    ) -> Any:
        output, rest, observers = self.outputs[index], self._plans[index].rest, self._observers[index]
        ready = output(actions)
        if not rest and not observers:
            return ready
        changed = []
        for row, action in enumerate(ready):
            env_id, agent_id = (None, None) if seats is None else seats[row]
            shown = {"obs": obs[row]} if mask is None else {"obs": obs[row], "action_mask": mask[row]}
            for observer in observers:
                observer.on_policy_output(
                    ActionConnectorDataType(env_id, agent_id, shown, (actions[row], [], {}))
                )
            answer = ActionConnectorDataType(env_id, agent_id, shown, (action, [], {}))
            for connector in rest:
                answer = connector(answer)
            changed.append(answer.output[0])
            what = not_finite({"the action": answer.output[0]})
            if what is not None:
                raise ContractError(
                    f"action connectors {', '.join(one.name for one in rest)}: {what}, expected finite numbers; fix "
                    "these connectors"
                )
        return changed

    def _split(self, which: Column | int) -> list[tuple[int, Column | None]]:
        """Return the policies of R rows and the indices of their rows; the same array is split once."""
        if isinstance(which, int):
            return [(which, None)]
        if self._groups[0] is not which:
            present = np.flatnonzero(np.bincount(which)).tolist()
            groups = [(int(index), np.flatnonzero(which == index)) for index in present]
            self._groups = (which, [(groups[0][0], None)] if len(groups) == 1 else list(groups))
        return self._groups[1]

    def _run(self, index: int, rows: AgentRows) -> ConnectedRows:
        try:
            self._agent[index].over_rows(rows)
            return ConnectedRows(self._taken(index, rows), rows.mask, rows.rewards)
        except OutsideSpaceError as error:
            error.makers = [leaf.name for leaf in self._custom[index]]
            raise

    def _taken(self, index: int, rows: AgentRows) -> Column:
        """Return the [R, F] input of the network from rows after their pipeline."""
        obs, wanted = rows.array(), f"{self._width} finite numbers for the network after the agent connectors"
        if obs.shape[1] != self._width:
            raise OutsideSpaceError(0, f"obs: expected {wanted}, got {obs.shape[1]}")
        # The results of custom connectors are checked nowhere else.
        if self._custom[index] and not np.isfinite(obs).all():
            row = int(np.argmin(np.isfinite(obs).all(1)))
            raise OutsideSpaceError(row, f"obs: expected {wanted}, got {obs[row][~np.isfinite(obs[row])][0]}")
        return as_network_dtype(obs, self._dtype)


def refuse_unknown_agents(policy_id: str, path: ConnectorPath) -> None:
    """Raise ContractError where connectors keep state per agent and the caller names no agents."""
    if path.keeps_lives:
        raise ContractError(
            f"policy {policy_id!r}: its connectors keep state per agent, expected a call that names the agents; "
            "use local_policy_inference(policy, env_id, agent_id, obs)"
        )


def _some(values: Any, places: Column | None) -> Any:
    if values is None or places is None:
        return values
    return (
        values[places]
        if isinstance(values, np.ndarray | NestedRows)
        else [values[place] for place in places.tolist()]
    )
