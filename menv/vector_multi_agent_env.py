"""`VectorMultiAgentEnv`: E worlds of A agents each that step together as arrays, for simulators on arrays.

`menv.adapters.vector_agents` converts it to a `BaseEnv`. No Python object exists per world or agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from menv.base_env import AgentId, convert_env, innermost


class VectorMultiAgentEnv:
    """E worlds of the same agents; write `reset` and `step`, and set the attributes. There is no constructor to call.

    A column below is a dict of one array [E, ...] for each agent, or one array [E, A, ...] where all agents have the
    same space. Arrays may be of NumPy, PyTorch or JAX. Actions come as your `reset` returns observations: in a dict or
    in one array. A dictionary space is a dict of arrays, such as `{"observations": [E, 4], "action_mask": [E, 2]}`.

    Worlds whose agents are all done are reset in the same step, as with gymnasium's `AutoresetMode.SAME_STEP`. The
    observations are then the first ones of the next episode, and `infos` has the last ones.

    Attributes:
        num_envs: E.
        possible_agents: The A agents of each world, in the order of the arrays.
        observation_spaces: The space of each agent, in one world.
        action_spaces: The space of each agent, in one world.
    """

    num_envs: int
    possible_agents: Sequence[AgentId]
    observation_spaces: Mapping[AgentId, gym.Space[Any]]
    action_spaces: Mapping[AgentId, gym.Space[Any]]

    unwrapped = property(innermost)
    to_base_env = convert_env

    def reset(self, *, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        """Begin a new episode in each world.

        Args:
            seed: Seed of all worlds; None continues the random stream.

        Returns:
            A column of observations, and infos as `step` returns them.
        """
        raise NotImplementedError

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """Step all worlds.

        Args:
            actions: A column. Entries of agents that do not act now have no meaning.

        Returns:
            Columns of observations, rewards (numbers [E]), terminated and truncated (flags [E] for each agent), and
            infos. These names in `infos` have a meaning:

            - `"final_obs"`: a column of the last observations of the worlds that were reset; other worlds may have
              anything there.
            - `"_final_obs"`: flags [E], which worlds were reset.
            - `"acting"`: a column of flags [E], which agents act next; by default all that are not done. Agents that
              are neither done nor act keep their episode, as in games of turns.
        """
        raise NotImplementedError

    def state(self) -> Any:
        """Return the states of all worlds, [E, ...]; see `MultiAgentEnv.state`.

        Where worlds were reset, these are the states after the reset, and `infos["final_state"]` [E, ...] has the last
        ones.
        """
        raise NotImplementedError

    def with_agent_groups(self, groups: Mapping[Any, Sequence[Any]] | None = None) -> VectorMultiAgentEnv:
        """Return these worlds with each group of agents seen as one agent; see `MultiAgentEnv.with_agent_groups`.

        The members of a group must act and end together.
        """
        from menv.wrappers.vector_groups import VectorGroups

        return VectorGroups(self, groups)

    def render(self, index: int = 0) -> Any:
        """Return a picture or a text of one world, None without one."""
        return None

    def close(self) -> None:
        """Free what the worlds hold."""
