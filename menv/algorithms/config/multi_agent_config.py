"""Which policies there are, who answers for whom, and who learns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from menv.algorithms.config.keys import section_named
from menv.errors import ConfigError


@section_named("multiagent")
@dataclass(frozen=True, kw_only=True)
class MultiAgentConfig:
    """The `multiagent` section; `docs/settings.md` explains each key."""

    policies: Mapping[str, Any] | Iterable[str] | None = None
    """Specs by policy id, or ids alone; None means one policy, `default_policy`."""
    policy_mapping_fn: Callable[..., Any] | None = None
    """`(agent_id, episode, worker, **kwargs) -> policy id`, asked when an agent first appears in an episode."""
    policies_to_train: Iterable[str] | Callable[..., bool] | None = None
    """Ids, or `(policy_id, batch) -> bool`; None trains every policy that can learn. Running means of observations
    stand still for policies that a list leaves out; a function, which is asked about every batch, stops none."""
    observation_fn: Callable[..., Mapping[Any, Any]] | None = None
    """`(agent_obs, worker, base_env, policies, episode, **kw) -> {agent_id: new obs}`, asked on every env step;
    the policies' `observation_space` says what the new observations look like. Remote clients have to ask for each
    action then: episodes that they played by themselves are refused."""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """What fragment lengths, the train batch size and `min_sample_timesteps_per_iteration` count: "env_steps", or
    "agent_steps", the actions of agents."""

    def __post_init__(self) -> None:
        """Refuse what cannot be called; ids and functions are looked at together, where the policies are."""
        if self.observation_fn is not None and not callable(self.observation_fn):
            raise ConfigError(
                f"multiagent: observation_fn is a {type(self.observation_fn).__name__}, expected a function "
                "(agent_obs, worker, base_env, policies, episode) -> {agent_id: new obs}; pass the function itself"
            )
