"""The agents of an external episode, which may be lost, or played elsewhere.

`menv.adapters.external` keeps one for each open episode, and uses it again for the next one.
"""

from __future__ import annotations

from menv.adapters.breakable_roster import BreakableRoster
from menv.adapters.report import Report
from menv.base_env import SINGLE_AGENT, AgentId, EnvId, EpisodeEnd, Join

_ALONE: list[AgentId] = [SINGLE_AGENT]


class ExternalRoster(BreakableRoster):
    """A `Roster` that can stand for one episode after the other."""

    def reopen(self, env_id: EnvId) -> None:
        """Stand for another sub-environment from now on, between two episodes; agents keep their slots."""
        self.env_id = env_id
        self.episode_steps = 0
        self.seating.move(env_id)

    @property
    def alone(self) -> bool:
        """Whether the one agent of an episode without agent ids waits, and nothing is owed to it."""
        waiting = self.waiting
        return waiting.agents == _ALONE and not self.held and waiting.checked_at == self._lives

    def enter(self, agent: AgentId) -> tuple[int, Join | None]:
        """Return an agent's slot, and its join if a life begins, for those whose rows come from elsewhere."""
        if agent not in self.slots:
            self.seating.new_layout((agent,))
        slot = self.slots[agent]
        if agent in self._alive:
            return slot, None
        self._alive.add(agent)
        self._dead.discard(agent)
        return slot, Join(slot, self.env_id, agent, self.env_index)

    def leave(self, agent: AgentId) -> None:
        """Note that the life of an agent that entered is over."""
        self._alive.discard(agent)
        self._dead.add(agent)
        self._lives += 1

    def close(self, terminated: bool, truncated: bool) -> EpisodeEnd:
        """End the episode of agents that entered and left."""
        report = Report()
        self._close_episode((terminated, truncated), report)
        return report.episodes[0]
