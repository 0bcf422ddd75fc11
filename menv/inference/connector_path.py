"""The way through pipelines that are not plain: a policy's rows at once, a user's connectors agent by agent.

`menv.sampling.policy_group` and `menv.inference.network_policy` make one where some pipeline does more, or less, than
the cohort's preprocessor and action output do by themselves. It knows pipelines and rows, no networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import End
from menv.connectors.action_connector import ActionConnectorDataType
from menv.connectors.agent_connector import AgentConnector, AgentRows, as_network_dtype
from menv.connectors.clip_reward import ClipRewardAgentConnector
from menv.connectors.frame_stack import FrameStackAgentConnector
from menv.connectors.pipeline import (
    ActionPlan,
    PolicyConnectors,
    action_plan,
    can_move,
    export_lives,
    import_lives,
    is_plain,
    leaf_connectors,
    looks,
)
from menv.errors import ContractError
from menv.inference.backend import not_finite
from menv.spaces import OutsideSpaceError, own_copy
from menv.trajectory_slices import Column

# SEAM menv.loop.last_shown
# What lives were shown last, for connectors that may change the reward of an end without an observation.
#
# `menv.inference.connector_path` keeps one. It knows no pipelines, only which of a policy's connectors there
# are.


# What is shown at ends, and does to rewards what needs no observation, or nothing.
_KNOWN = (ClipRewardAgentConnector, FrameStackAgentConnector)


class LastObservations:
    """Keeps a copy of the last observation of each life, of policies some connector of which asks for it.

    Args:
        leaves: The connectors of each policy, by index.
    """

    def __init__(self, leaves: Sequence[Sequence[AgentConnector]]) -> None:
        self._asked = [any(leaf.at_ends and type(leaf) not in _KNOWN for leaf in own) for own in leaves]
        self._obs: dict[int, Any] = {}

    def note(self, index: int, slots: Column, obs: Sequence[Any]) -> None:
        """Note what the lives on slots [R] of a policy are shown, as the environment gave it."""
        if self._asked[index]:
            self._obs.update(zip(slots.tolist(), map(own_copy, obs), strict=True))

    def of(self, slots: Sequence[int]) -> list[Any]:
        """Return what the lives on slots were shown last, None where nothing was noted."""
        return [self._obs.get(slot) for slot in slots]

    def put(self, slots: Sequence[int], obs: Sequence[Any]) -> None:
        """Note what `of` told of lives that go on here, on these slots."""
        self._obs.update((slot, one) for slot, one in zip(slots, obs, strict=True) if one is not None)

    def follow(self, before: LastObservations) -> None:
        """Go on with what was noted of lives while policies had other connectors."""
        self._obs = before._obs

    def take(self, slot: int) -> Any:
        """Return what the life on a slot, which ends, was shown last; None if nothing was noted."""
        return self._obs.pop(slot, None)


Mask = npt.NDArray[np.bool_]
Seats = Sequence[tuple[Any, Any]]


class FinalObservation(NamedTuple):
    """A last observation that has gone through its connectors.

    Attributes:
        row: [F].
        mask: [M] or None.
    """

    row: Column
    mask: Column | None


class ConnectedRows(NamedTuple):
    """Rows that have gone through connectors.

    Attributes:
        obs: [R, F].
        mask: [R, M] or None.
        rewards: [R] as learners see them.
    """

    obs: Column
    mask: Mask | None
    rewards: Any


def plain(connectors: PolicyConnectors, built: ActionPlan) -> bool:
    """Return whether a preprocessor, and an action output of `built`, do all that these connectors do."""
    return is_plain(connectors.agent) and action_plan(connectors.action) == built


class ConnectorPath:
    """The pipelines of several policies, compiled.

    Args:
        connectors: By policy index.
        action_space: Of the policies.
        width: F, the numbers that the network takes.
        dtype: Their type.
        learning: Whether statistics may grow.

    Attributes:
        keeps_lives: Whether some connector must know whose the observations are.
        goes_on: Whether all that connectors remember of a life can be taken out, and goes on in another process.
        at_ends: By policy index, whether connectors must be shown last observations when they come.
        acts: Whether answers are changed agent by agent, or looked at.
        outputs: By policy index, what action connectors do to whole batches.
        shown: What lives were shown last.
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
        leaves = [list(leaf_connectors(pipeline)) for pipeline in self._agent]
        self.keeps_lives = any(leaf.keeps_lives for own in leaves for leaf in own)
        self.goes_on = all(can_move(pipeline) for pipeline in self._agent)
        self.at_ends = [any(leaf.at_ends for leaf in own) for own in leaves]
        # Those that are called agent by agent.
        self._asked = [[leaf for leaf in own if not leaf.takes_rows] for own in leaves]
        self._clips = [[leaf for leaf in own if isinstance(leaf, ClipRewardAgentConnector)] for own in leaves]
        self.shown = LastObservations(leaves)
        self._lookers = [[leaf for leaf in own if looks(leaf)] for own in leaves]
        self.acts = any(bool(plan.rest) for plan in self._plans) or any(self._lookers)
        self._groups: tuple[Any, list[tuple[int, Column | None]]] = (None, [])

    @property
    def whole(self) -> bool:
        """Whether rows of nobody in particular may go through it: no connector cares for agents or for ends."""
        return not (self.keeps_lives or self.acts or any(self.at_ends) or any(self._asked))

    def rows(
        self,
        which: Column | int,
        obs: Any,
        rewards: Any = None,
        *,
        slots: Column | None = None,
        seats: Seats | None = None,
        infos: Sequence[Mapping[str, Any]] | None = None,
        final: bool = False,
        over: Column | None = None,
    ) -> ConnectedRows:
        """Return R observations as rows.

        Args:
            which: [R] policy index, or one for all.
            obs: R observations.
            rewards: [R] or None.
            slots: [R] or None where nobody knows whose they are.
            seats: By slot.
            infos: R info dicts or None.
            final: Whether these are last observations, which change nothing.
            over: [R] True where one is among others; of a single policy's rows.

        Raises:
            OutsideSpaceError: A connector or the network cannot take an observation.
            ContractError: A connector returned something else than what came in, changed.
        """
        groups = self._split(which)
        if len(groups) == 1:
            return self._through(groups[0][0], obs, rewards, slots, seats, infos, final, over)
        whole: ConnectedRows | None = None
        for index, places in groups:
            assert places is not None
            try:
                part = self._through(
                    index, _some(obs, places), None if rewards is None else rewards[places],
                    None if slots is None else slots[places], seats, _some(infos, places), final,
                )  # fmt: skip
            except OutsideSpaceError as error:
                raise error.among(places) from error
            if whole is None:
                whole = ConnectedRows(*(_room(len(obs), column) for column in part))
            for column, own in zip(whole, part, strict=True):
                if column is not None:
                    column[places] = own
        assert whole is not None
        return whole

    def rows_of_lives(
        self, index: int, obs: Any, lives: Sequence[Any]
    ) -> tuple[Column, Mask | None, Sequence[Any]]:
        """Return R observations as rows and masks, and what connectors remember of the lives that they belong to.

        Args:
            index: Of their policy.
            obs: R observations, no two of one life.
            lives: Of each what was returned the last time, None of a new one.
        """
        slots = np.arange(len(lives))
        import_lives(self._agent[index], slots.tolist(), lives)
        done = self.rows(index, obs, slots=slots)
        return done.obs, done.mask, export_lives(self._agent[index], slots.tolist())

    def final(self, index: int, end: End) -> End:
        """Return the end of a trajectory with its last observation and reward connected."""
        if self.at_ends[index]:
            end = self._connected_end(index, end)
        if end.obs is None:
            for leaf in self._asked[index]:
                leaf.forget(end.env_id, end.agent_id)
        return end

    def _connected_end(self, index: int, end: End) -> End:
        """Return an end that has gone through connectors which must see it; one without observation keeps none."""
        shown = self.shown.take(end.slot)
        obs = shown if end.obs is None else end.obs
        if obs is None:
            # There is nothing to connect but the reward.
            rewards = AgentRows([], np.array([end.reward]))
            for clips in self._clips[index]:
                clips.over_rows(rewards)
            return end._replace(reward=float(rewards.rewards[0]))
        rows = AgentRows(
            [obs], np.array([end.reward]), slots=np.array([end.slot]), seats=[(end.env_id, end.agent_id)],
            infos=[end.info], terminated=end.terminated, truncated=end.truncated,
        )  # fmt: skip
        done = self._run(index, rows)
        reward = float(done.rewards[0])
        if end.obs is None:
            return end._replace(reward=reward)
        return end._replace(
            obs=FinalObservation(done.obs[0], None if done.mask is None else done.mask[0]), reward=reward
        )

    def finals(self, finals: Sequence[Any], policies: Column) -> tuple[Column, Mask | None]:
        """Return last observations as rows and masks; some have been connected when they came.

        Args:
            finals: N observations, or `FinalObservation`.
            policies: [N] policy indices.
        """
        late = np.array([not isinstance(final, FinalObservation) for final in finals], np.bool_)
        places = np.flatnonzero(late)
        rows: list[Any] = list(finals)
        if len(places):
            which = policies[places]
            try:
                done = self.rows(which, [finals[place] for place in places.tolist()], final=True)
            except OutsideSpaceError as error:
                raise error.among(places) from error
            for index, place in enumerate(places.tolist()):
                rows[place] = FinalObservation(
                    done.obs[index], None if done.mask is None else done.mask[index]
                )
        masked = bool(rows) and rows[0].mask is not None
        return np.stack([row.row for row in rows]), np.stack([row.mask for row in rows]) if masked else None

    def begin(self, slot: int, index: int) -> None:
        """Begin a life on a slot."""
        self._agent[index].begin(slot)

    def reset(self, env_id: Any) -> None:
        """Tell all connectors that an episode of an environment ended."""
        for pipeline in self._agent:
            pipeline.reset(env_id)

    def settle(self) -> None:
        """Tell all connectors that a fragment has been closed."""
        for pipeline in self._agent:
            pipeline.settle()

    def answers(
        self, which: Column | int, actions: Column, obs: Column, mask: Column | None, seats: Seats | None
    ) -> Any:
        """Return R env-ready actions.

        Args:
            which: [R] policy index, or one for all.
            actions: [R, ...] of the network.
            obs: [R, F] what it was shown.
            mask: [R, M] or None.
            seats: Of each row.
        """
        groups = self._split(which)
        if len(groups) == 1:
            return self._answers(groups[0][0], actions, obs, mask, seats)
        out: list[Any] = [None] * len(actions)
        for index, places in groups:
            assert places is not None
            own = None if seats is None else [seats[place] for place in places.tolist()]
            masked = None if mask is None else mask[places]
            part = self._answers(index, actions[places], obs[places], masked, own)
            for place, action in zip(places.tolist(), part, strict=True):
                out[place] = action
        return out

    def network_form(self, which: Column | int, actions: Any) -> Column:
        """Return [R, ...] actions of networks that come out as R elements of the action space.

        Args:
            which: [R] policy index, or one for all.
            actions: R elements.

        Raises:
            OutsideSpaceError: One is no element of the space, bounds of a Box left aside.
        """
        groups = self._split(which)
        if len(groups) == 1:
            return self.outputs[groups[0][0]].inverse(actions)
        found: Any = None
        for index, places in groups:
            assert places is not None
            try:
                part = self.outputs[index].inverse(_some(actions, places))
            except OutsideSpaceError as error:
                raise error.among(places) from error
            found = _room(len(actions), part) if found is None else found
            found[places] = part
        return np.asarray(found)

    def _answers(
        self, index: int, actions: Column, obs: Column, mask: Column | None, seats: Seats | None
    ) -> Any:
        output, rest, lookers = self.outputs[index], self._plans[index].rest, self._lookers[index]
        ready = output(actions)
        if not rest and not lookers:
            return ready
        changed = []
        for row, action in enumerate(ready):
            env_id, agent_id = (None, None) if seats is None else seats[row]
            shown = {"obs": obs[row]} if mask is None else {"obs": obs[row], "action_mask": mask[row]}
            for looker in lookers:
                looker.on_policy_output(
                    ActionConnectorDataType(env_id, agent_id, shown, (actions[row], [], {}))
                )
            answer = ActionConnectorDataType(env_id, agent_id, shown, (action, [], {}))
            for connector in rest:
                answer = connector(answer)
            changed.append(answer.output[0])
            what = not_finite({"the action": answer.output[0]})
            if what is not None:
                raise ContractError(
                    f"action connectors {', '.join(one.name for one in rest)}: {what}, expected finite numbers; mend "
                    "what they make of it"
                )
        return changed

    def _split(self, which: Column | int) -> list[tuple[int, Column | None]]:
        """Return the policies of R rows, each with the places of its own; the same array is split once."""
        if isinstance(which, int):
            return [(which, None)]
        if self._groups[0] is not which:
            present = np.flatnonzero(np.bincount(which)).tolist()
            groups = [(int(index), np.flatnonzero(which == index)) for index in present]
            self._groups = (which, [(groups[0][0], None)] if len(groups) == 1 else list(groups))
        return self._groups[1]

    def _through(
        self,
        index: int,
        obs: Any,
        rewards: Any,
        slots: Column | None,
        seats: Seats | None,
        infos: Any,
        final: bool,
        over: Column | None = None,
    ) -> ConnectedRows:
        rows = AgentRows(
            obs, rewards, slots=slots, infos=infos, truncated=final, learning=self._learning, over=over
        )
        if seats is not None and slots is not None:
            self.shown.note(index, slots, obs)
        if self._asked[index] and seats is not None and slots is not None:
            rows.seats = [seats[slot] for slot in slots.tolist()]
        return self._run(index, rows)

    def _run(self, index: int, rows: AgentRows) -> ConnectedRows:
        self._agent[index].over_rows(rows)
        try:
            return ConnectedRows(self._taken(index, rows), rows.mask, rows.rewards)
        except OutsideSpaceError as error:
            error.makers = [leaf.name for leaf in self._asked[index]]
            raise

    def _taken(self, index: int, rows: AgentRows) -> Column:
        """Return [R, F] what the network takes of rows that have gone through their pipeline."""
        obs = rows.array()
        if obs.shape[1] != self._width:
            raise OutsideSpaceError(
                0,
                f"obs: expected {self._width} numbers for the network after the agent connectors, got {obs.shape[1]}",
            )
        # Nobody else looks at what users' connectors have made.
        if self._asked[index] and not np.isfinite(obs).all():
            row = int(np.argmin(np.isfinite(obs).all(1)))
            wrong = obs[row][~np.isfinite(obs[row])][0]
            raise OutsideSpaceError(
                row, f"obs: expected finite numbers for the network after the agent connectors, got {wrong}"
            )
        return as_network_dtype(obs, self._dtype)


def refuse_unknown_lives(policy_id: str, path: ConnectorPath) -> None:
    """Refuse observations of nobody knows whom where connectors keep something of each life.

    Raises:
        ContractError: They do.
    """
    if path.keeps_lives:
        raise ContractError(
            f"policy {policy_id!r}: its connectors keep something of each life, expected a call that says whose the "
            "observations are; use local_policy_inference(policy, env_id, agent_id, obs)"
        )


def _some(values: Any, places: Column) -> Any:
    if values is None or isinstance(values, np.ndarray):
        return None if values is None else values[places]
    return [values[place] for place in places.tolist()]


def _room(rows: int, like: Any) -> Any:
    return None if like is None else np.empty((rows, *like.shape[1:]), like.dtype)
