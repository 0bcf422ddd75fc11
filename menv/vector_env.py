"""For simulators that hold many worlds at once: `VectorEnv` and `VectorMultiAgentEnv`.

`VectorEnv` has E single-agent sub-environments that one object steps together, as lists. A
`gymnasium.vector.VectorEnv`, which has arrays instead of lists, is accepted as well. `VectorMultiAgentEnv` has E worlds
of A agents each that step together as arrays; no Python object exists per world or agent. `menv.adapters.vector` and
`menv.adapters.vector_agents` convert them to a `BaseEnv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym

from menv.base_env import AgentId, convert_env, innermost
from menv.env_calls import close_all, close_env, reset_env, returned
from menv.errors import ConfigError, ContractError

StepLists = tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]


class VectorEnv:
    """E sub-environments; write `vector_reset`, `reset_at` and `vector_step`, and declare the spaces of one of them.

    The adapter resets a sub-environment that is done with `reset_at`, in the same poll; a `VectorEnv` does not reset
    itself.

    Attributes:
        observation_space: Of each sub-environment.
        action_space: Of each sub-environment.
        num_envs: E, the number of sub-environments.
    """

    unwrapped = property(innermost)
    to_base_env = convert_env

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], num_envs: int
    ) -> None:
        check_number(num_envs)
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_envs = num_envs

    @staticmethod
    def vectorize_gym_envs(
        make_env: Callable[[int], Any] | None = None,
        existing_envs: Sequence[Any] | None = None,
        num_envs: int = 1,
        action_space: gym.Space[Any] | None = None,
        observation_space: gym.Space[Any] | None = None,
    ) -> VectorEnv:
        """Return `num_envs` gymnasium environments as one VectorEnv.

        Args:
            make_env: Creates the sub-environment of a given index.
            existing_envs: The first of them, if they exist already; the sequence is not changed.
            num_envs: Number of sub-environments.
            action_space: By default that of sub-environment 0.
            observation_space: By default that of sub-environment 0.

        Raises:
            ConfigError: More environments are given than `num_envs`, one is given twice, or some are missing and there
                is no `make_env`.
        """
        return _GymEnvs(make_env, existing_envs or (), num_envs, action_space, observation_space)

    def vector_reset(
        self, *, seeds: Sequence[int | None] | None = None, options: Sequence[Any] | None = None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Reset all sub-environments.

        Args:
            seeds: [E] seeds, None leaves the sub-environment's randomness alone.
            options: [E] options of each sub-environment, or None.

        Returns:
            E observations and E info dicts.
        """
        raise ContractError(_not_written(self, "vector_reset", "(list of obs, list of infos)"))

    def reset_at(
        self, index: int | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset one sub-environment, by default number 0, and return its `(obs, info)`."""
        raise ContractError(_not_written(self, "reset_at", "(obs, info)"))

    def restart_at(self, index: int | None = None) -> None:
        """Replace one sub-environment by a new one; it is reset afterwards."""
        raise ContractError(_not_written(self, "restart_at", "nothing"))

    def vector_step(self, actions: Sequence[Any]) -> StepLists:
        """Step all sub-environments.

        Args:
            actions: E actions.

        Returns:
            `(obs, rewards, terminateds, truncateds, infos)`, E values each; the observation of a sub-environment that
            is done is its last one.
        """
        five = "(obs, rewards, terminateds, truncateds, infos), a list of num_envs values each"
        raise ContractError(_not_written(self, "vector_step", five))

    def get_sub_environments(self) -> list[Any]:
        """Return the sub-environments, if they are separate objects."""
        return []

    def try_render_at(self, index: int | None = None) -> Any:
        """Return a picture of one sub-environment, by default number 0; None if there is none."""
        return None

    def close(self) -> None:
        """Release all resources; may be called more than once."""


class _GymEnvs(VectorEnv):
    """gymnasium environments that are stepped one after another."""

    def __init__(
        self,
        make_env: Callable[[int], Any] | None,
        existing_envs: Sequence[Any],
        num_envs: int,
        action_space: gym.Space[Any] | None,
        observation_space: gym.Space[Any] | None,
    ) -> None:
        check_number(num_envs)
        if len(existing_envs) > num_envs or (make_env is None and len(existing_envs) < num_envs):
            raise ConfigError(
                f"vectorize_gym_envs: num_envs={num_envs}, {len(existing_envs)} existing_envs and make_env={make_env}, "
                "expected no more existing_envs than num_envs, and a function that creates the others; pass "
                "make_env=lambda index: YourEnv(...)"
            )
        self.envs = list(existing_envs)
        self._make_env = make_env
        while len(self.envs) < num_envs and make_env is not None:
            self.envs.append(make_env(len(self.envs)))
        if len({id(env) for env in self.envs}) < num_envs:
            raise ConfigError(
                "vectorize_gym_envs: two sub-environments are the same object, expected a new environment for each; "
                "create it inside make_env"
            )
        first: Any = self.envs[0]
        super().__init__(
            first.observation_space if observation_space is None else observation_space,
            first.action_space if action_space is None else action_space,
            num_envs,
        )

    def vector_reset(
        self, *, seeds: Sequence[int | None] | None = None, options: Sequence[Any] | None = None
    ) -> tuple[list[Any], list[Any]]:
        alone = [None] * self.num_envs
        pairs = zip(seeds or alone, options or alone, strict=True)
        results = [
            self.reset_at(index, seed=seed, options=chosen) for index, (seed, chosen) in enumerate(pairs)
        ]
        return [obs for obs, _ in results], [info for _, info in results]

    def reset_at(
        self, index: int | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        return reset_env(self.envs[index or 0], index or 0, seed, options)

    def restart_at(self, index: int | None = None) -> None:
        number = index or 0
        if self._make_env is None:
            raise ConfigError(
                f"restart_at: env {number} was given as an instance, expected make_env; pass it to vectorize_gym_envs"
            )
        # A broken environment may be unable to close.
        with suppress(Exception):
            close_env(self.envs[number])
        self.envs[number] = self._make_env(number)

    def vector_step(self, actions: Sequence[Any]) -> StepLists:
        steps = [
            returned(env.step(action), 5, f"env {index} step")
            for index, (env, action) in enumerate(zip(self.envs, actions, strict=True))
        ]
        obs, rewards, terminateds, truncateds, infos = map(list, zip(*steps, strict=True))
        return obs, rewards, terminateds, truncateds, infos

    def get_sub_environments(self) -> list[Any]:
        return list(self.envs)

    def try_render_at(self, index: int | None = None) -> Any:
        return self.envs[index or 0].render()

    def close(self) -> None:
        close_all(self.envs)


def check_number(num_envs: Any) -> None:
    """Refuse a wrong `num_envs`."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(
            f"VectorEnv: num_envs={num_envs!r}, expected an integer of at least 1; pass the number of sub-environments"
        )


def _not_written(env: VectorEnv, method: str, returned: str) -> str:
    name = type(env).__name__
    return f"{name}.{method}: the method is missing, expected one that returns {returned}; write `{method}` in {name}"


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
        from menv.wrappers.group_agents import VectorGroups

        return VectorGroups(self, groups)

    def render(self, index: int = 0) -> Any:
        """Return a picture or a text of one world, None without one."""
        return None

    def close(self) -> None:
        """Free what the worlds hold."""
