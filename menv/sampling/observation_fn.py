"""A user's function that changes observations with knowledge of all agents of a sub-environment.

`menv.sampling.rollout_loop` calls it on every poll, before rows are added. Whether its result fits the policies' spaces
is checked when the rows are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from menv.base_env import AgentId, EnvId, Ready
from menv.episode import Episode
from menv.errors import ContractError, MenvError, in_words

Fn = Callable[..., Mapping[AgentId, Any]]


@dataclass(frozen=True, slots=True)
class ObservationFn:
    """Calls `fn(agent_obs, worker, base_env, policies, episode)`.

    `agent_obs` holds the observations of all agents of one sub-environment that came with the same env
    step, last observations included; `fn` returns a new one for each of them.

    Attributes:
        fn: The function; it is called by keyword, so that it may leave out what it takes as `**kw`.
        worker: The sampler.
        running: The running episodes by env id.
    """

    fn: Fn
    worker: Any
    running: Mapping[EnvId, Episode]

    def finals(self, ready: Ready) -> Ready:
        """Return `ready` with new final observations, before its ends are recorded.

        Where some agents end and others continue, the function receives the others' observations of the same step, too.
        """
        over = {episode.env_id for episode in ready.episodes}
        by_step: dict[tuple[EnvId, int], list[int]] = {}
        for place, end in enumerate(ready.ended):
            if end.obs is not None:
                by_step.setdefault((end.env_id, end.ago), []).append(place)
        if not by_step:
            return ready
        ended = list(ready.ended)
        rows = self._rows_of(ready, {env_id for env_id, ago in by_step if env_id not in over and not ago})
        for (env_id, ago), places in by_step.items():
            seen = {ended[place].agent_id: ended[place].obs for place in places}
            others = {agent: ready.obs[row] for row, agent in ([] if ago else rows.get(env_id, ()))}
            now = self._now(ready, ended[places[0]].slot) - ago
            shown = self._call(env_id, {**others, **seen}, now)
            for place in places:
                ended[place] = ended[place]._replace(obs=shown[ended[place].agent_id])
        return replace(ready, ended=ended)

    def rows(self, ready: Ready, before: Ready) -> Ready:
        """Return `ready` with new observations, after its joins were recorded; `before` is the poll before `finals`."""
        over = {episode.env_id for episode in before.episodes}
        lasts: dict[EnvId, dict[AgentId, Any]] = {}
        for end in before.ended:
            if end.obs is not None and not end.ago and end.env_id not in over:
                lasts.setdefault(end.env_id, {})[end.agent_id] = end.obs
        new = list(ready.obs)
        for env_id, rows in self._rows_of(ready, None).items():
            seen = {**lasts.get(env_id, {}), **{agent: ready.obs[row] for row, agent in rows}}
            shown = self._call(env_id, seen, self._now(ready, int(ready.slots[rows[0][0]])))
            for row, agent in rows:
                new[row] = shown[agent]
        return replace(ready, obs=new)

    def _rows_of(self, ready: Ready, wanted: set[EnvId] | None) -> dict[EnvId, list[tuple[int, AgentId]]]:
        found: dict[EnvId, list[tuple[int, AgentId]]] = {}
        for row, slot in enumerate(ready.slots.tolist()):
            env_id, agent = ready.seats[slot]
            if wanted is None or env_id in wanted:
                found.setdefault(env_id, []).append((row, agent))
        return found

    def _now(self, ready: Ready, slot: int) -> int:
        return int(ready.env_steps[self.worker.env_index_of(slot)])

    def _call(self, env_id: EnvId, agent_obs: dict[AgentId, Any], now: int) -> Mapping[AgentId, Any]:
        """Call the function for one sub-environment at its env step `now`."""
        worker, episode = self.worker, self.running[env_id]
        # Without callbacks nothing else updates it.
        episode.length = now - episode.begun_at
        try:
            shown = self.fn(
                agent_obs=dict(agent_obs), worker=worker, base_env=worker.base_env, policies=worker.policies,
                episode=episode,
            )  # fmt: skip
        except MenvError:
            raise
        except Exception as error:
            raise ContractError(
                f"observation_fn, env {env_id}: raised {in_words(error)}, expected a new observation for "
                f"each of {sorted(agent_obs, key=repr)[:8]}; its traceback is above"
            ) from error
        if not isinstance(shown, Mapping):
            raise ContractError(
                f"observation_fn, env {env_id}: returned {type(shown).__name__}, expected a dict {{agent_id: obs}}; "
                "return the new observations keyed by agent"
            )
        missing = sorted(repr(agent) for agent in agent_obs if agent not in shown)
        if missing:
            raise ContractError(
                f"observation_fn, env {env_id}: returned no observation for agents {missing[:8]}, expected one for "
                "each agent of agent_obs; return them unchanged if there is nothing to add"
            )
        return shown
