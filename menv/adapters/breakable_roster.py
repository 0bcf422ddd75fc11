"""The agents of an episode that may be broken off where nobody knows what the last actions led to.

`multi_agent` keeps one for each sub-environment, because a sub-environment may raise; the roster of external episodes
builds on it, because a caller may be lost. Like a `Roster` it never calls an environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from menv.adapters.report import Report
from menv.adapters.roster import Roster
from menv.base_env import AgentId, End, Unclaimed


class BreakableRoster(Roster):
    """A `Roster` whose episode may be lost."""

    def lose(self, rewards: Mapping[AgentId, Any], report: Report, *, faulty: bool = False) -> None:
        """Break the episode off; the last row of each agent that lives is withdrawn.

        Args:
            rewards: What was paid since; no action can own it.
            report: Told of the ends.
            faulty: Whether a fault of the environment is what broke it off.
        """
        self._forget_untold(report)
        owed = dict(self.held)
        for agent, reward in rewards.items():
            owed[agent] = owed.get(agent, 0.0) + self.number(agent, reward)
        report.unclaimed += [
            Unclaimed(self.env_id, agent, reward, self.env_index) for agent, reward in owed.items() if reward
        ]
        report.ended += [
            End(self.slots[agent], self.env_id, agent, 0.0, False, True, None, {}, withdrawn=True)
            for agent in self.living()
        ]
        self._dead |= self._alive
        self._alive.clear()
        self._lives += 1
        self._close_episode((False, True), report)
        if faulty:
            report.episodes[-1] = report.episodes[-1]._replace(faulty=True)
