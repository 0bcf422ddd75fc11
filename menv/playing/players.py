"""`RunPolicies`: the policies of a run and of its snapshots, and which of them an agent has."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any

from menv import rng
from menv.algorithms.config.stored_config import NamedOnlyError, stored_setting
from menv.base_env import AgentId
from menv.episode import Episode
from menv.errors import ConfigError
from menv.inference.network_policy import NetworkPolicy
from menv.policy import Policy
from menv.policy_map import adapt_mapping_fn

ENV = 0
"""What policies call the environment in which they play."""


class RunPolicies:
    """The policies of a run and of the snapshots that are chosen, and which of them an agent has.

    Args:
        run: A run folder, a checkpoint, or a folder of exported policies.
        stored: The run's settings.
        chosen: Ids of policies, or names of snapshots, by agent or by a pattern such as `"car_*"`.
        seed: Of sampled actions.

    Attributes:
        chosen: As given.
        own: The run's policies by id.
    """

    def __init__(
        self, run: str | PathLike[str], stored: Mapping[str, Any], chosen: Mapping[str, str], seed: int
    ) -> None:
        self._run, self._seed, self.chosen = run, seed, dict(chosen)
        self.own = self._loaded(None)
        if (stored.get("multiagent") or {}).get("observation_fn") is not None:
            raise ConfigError(
                f"run {run}: policies see what its observation_fn makes of the observations, expected none; use menv "
                "evaluate"
            )
        self._snapshots: dict[str, dict[str, NetworkPolicy]] = {}
        for name in self.chosen.values():
            if name not in self.own:
                self._snapshots[name] = self._loaded(name)
        self._unknown: NamedOnlyError | None = None
        self._mapping = None
        try:
            mapping = stored_setting(stored, "multiagent", "policy_mapping_fn")
            self._mapping = None if mapping is None else adapt_mapping_fn(mapping)
        except NamedOnlyError as error:
            # Only a problem if names do not say it.
            self._unknown = error

    def _loaded(self, snapshot: str | None) -> dict[str, NetworkPolicy]:
        try:
            found: Any = Policy.from_checkpoint(self._run, snapshot=snapshot)  # type: ignore[arg-type]
        except ConfigError as error:
            if snapshot is None:
                raise
            raise ConfigError(
                f"policy {snapshot!r}: not in the run, expected one of {sorted(self.own)[:20]} or a snapshot ({error})"
            ) from None
        policies: dict[str, NetworkPolicy] = found if isinstance(found, dict) else {found.policy_id: found}
        for name, policy in policies.items():
            # A snapshot must not draw the same numbers as the run.
            drawn_by = name if snapshot is None else f"{snapshot}:{name}"
            policy.set_draws_state([rng.key(self._seed, rng.stable_hash(drawn_by)), 0])
        return policies

    def begin(self) -> None:
        """Forget what the policies remember of the game before."""
        for policies in (self.own, *self._snapshots.values()):
            for policy in policies.values():
                policy.agent_connectors.reset(ENV)

    def policy_of(self, agent: AgentId, episode: Episode, *, advises: bool = False) -> NetworkPolicy | None:
        """Return an agent's policy; None if it is undecided.

        If it advises a person, it is the run's, also where a snapshot plays.
        """
        name = next((name for key, name in self.chosen.items() if fnmatchcase(str(agent), key)), None)
        if name in self.own:
            return self.own[name]
        own = self.id_of(agent, episode)
        policies = self.own if name is None or advises else self._snapshots[name]
        return policies.get(own)

    def id_of(self, agent: AgentId, episode: Episode) -> str:
        """Return the id that an agent's policy has in training, or should have."""
        if self._mapping is not None:
            name = self._mapping(agent, episode, None)
            episode.bind(agent, name)
            return name
        return next(iter(self.own)) if len(self.own) == 1 else str(agent)

    def missing(self, agent: AgentId) -> ConfigError:
        """Return the error about an agent for which `policy_of` has none."""
        if self._unknown is not None:
            self._unknown.add_note(f"or pass policies={{{str(agent)!r}: ...}} to Game")
            return self._unknown
        return ConfigError(
            f"agent {str(agent)!r}: none of the policies in the run is its policy, expected one of "
            f"{sorted(self.own)[:20]}; add --policy {agent}={min(self.own, default='POLICY')}"
        )
