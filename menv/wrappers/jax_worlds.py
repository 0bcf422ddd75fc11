"""`JaxWorlds`: what the environments of Jumanji, Pgx and JaxMARL share.

All worlds step in one compiled function, which also resets the worlds that end. JAX is imported when one is created.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import random
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np

from menv.base_env import AgentId
from menv.errors import ConfigError, MissingExtraError
from menv.vector_env import VectorMultiAgentEnv

Seen: TypeAlias = tuple[dict[AgentId, Any], dict[AgentId, Any] | None]
"""Observations by agent, and flags which agents act; None: all."""

Stepped: TypeAlias = tuple[Any, Seen, dict[AgentId, Any], dict[AgentId, Any], dict[AgentId, Any]]
"""A state, what is seen in it, rewards, terminated, truncated."""

_BLOCK: Final = 32
"""Worlds that are reset at a time: shapes in a compiled function are fixed, the number of worlds that end is not."""

_compiled: dict[str, tuple[Any, Any]] = {}
"""The functions of environments with a name and settings that JSON can write."""

_log = logging.getLogger("menv.wrappers")


class JaxWorlds(VectorMultiAgentEnv):
    """E worlds of a JAX library. A subclass says how one world begins and steps; its constructor calls `_set_up`.

    Where all agents have the same spaces, columns are one array [E, A, ...], else a dict of arrays by agent.

    What happens in world e after t steps is drawn from two keys, which are
    `split(fold_in(split(PRNGKey(seed), E)[e], t))`: the first steps the world, the second resets it.
    """

    _key: Any = None
    _functions: Any = None
    _same = ""
    _alike = False

    @abstractmethod
    def _first(self, key: Any) -> tuple[Any, Seen]:
        """Return the state of one new world, and what is seen in it."""

    @abstractmethod
    def _next(self, key: Any, state: Any, actions: Mapping[AgentId, Any]) -> Stepped:
        """Step one world, without a reset."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        import jax

        if seed is not None or self._key is None:
            self._key = jax.random.PRNGKey(random.getrandbits(31) if seed is None else seed)
        else:
            (self._key,) = jax.random.split(self._key, 1)
        if self._functions is None:
            self._functions = self._compile()
        self._worlds, (obs, acting) = self._functions[0](self._key)
        return obs, {} if acting is None else {"acting": acting}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        self._worlds, (obs, acting), rewards, terminated, truncated, ends = self._functions[1](
            self._worlds, actions
        )
        return obs, rewards, terminated, truncated, ends if acting is None else {**ends, "acting": acting}

    def _set_up(
        self,
        num_envs: int,
        agents: Sequence[AgentId],
        action_spaces: Mapping[AgentId, gym.Space[Any]],
        made_of: Sequence[Any],
    ) -> None:
        """Set the attributes of the environment.

        Args:
            num_envs: Number of worlds.
            agents: The agents of a world.
            action_spaces: Their action spaces.
            made_of: The name and the settings of the environment, or its object. Environments
                of the same name and settings share what is compiled.
        """
        import jax

        if not isinstance(num_envs, int) or num_envs < 1:
            raise ConfigError(
                f"{type(self).__name__}: num_envs is {num_envs!r}, expected a positive integer; change num_envs"
            )
        self.num_envs = num_envs
        self.possible_agents = list(agents)
        self.action_spaces = dict(action_spaces)
        _, (shapes, _) = jax.eval_shape(self._first_columns, jax.random.PRNGKey(0))
        self.observation_spaces = {agent: _space_of("", shapes[agent]) for agent in agents}
        same_seen, same_actions = (
            all(spaces[agent] == spaces[agents[0]] for agent in agents)
            for spaces in (self.observation_spaces, self.action_spaces)
        )
        self._alike = same_seen and same_actions and not isinstance(shapes[agents[0]], Mapping)
        with contextlib.suppress(TypeError):  # objects among them
            self._same = json.dumps([type(self).__name__, num_envs, *made_of], sort_keys=True)

    def _compile(self) -> tuple[Any, Any]:
        """Return two compiled functions, which begin and step all worlds."""
        import jax

        if self._same in _compiled:
            return _compiled[self._same]
        _log.info("compiling %s for %d worlds ...", type(self).__name__, self.num_envs)
        started = time.perf_counter()
        begin, step = jax.jit(self._begin), jax.jit(self._step)
        idle = {
            agent: np.stack([space.sample()] * self.num_envs) for agent, space in self.action_spaces.items()
        }
        actions = np.stack([*idle.values()], axis=1) if self._alike else idle
        jax.block_until_ready(step(begin(self._key)[0], actions))
        _log.info("compiled in %.1f s", time.perf_counter() - started)
        if self._same:
            _compiled[self._same] = begin, step
        return begin, step

    def _begin(self, key: Any) -> Any:
        import jax

        keys = jax.random.split(key, self.num_envs)
        count = jax.numpy.uint32(0)
        states, seen = jax.vmap(self._first_columns)(_drawn(keys, count)[:, 1])
        return (keys, count, states), seen

    def _step(self, worlds: Any, actions: Any) -> Any:
        import jax

        keys, count, before = worlds
        count = count + 1
        now, last, rewards, terminated, truncated, over = jax.vmap(self._next_columns)(
            _drawn(keys, count)[:, 0], before, actions
        )
        # What `_begin` returned decides the types, so that nothing is compiled twice.
        states = jax.tree.map(lambda new, old: new.astype(old.dtype), now, before)
        states, seen = self._renewed(over, keys, count, (states, last))
        ends = {"final_obs": last[0], "_final_obs": over}
        return (keys, count, states), seen, rewards, terminated, truncated, ends

    def _renewed(self, over: Any, keys: Any, count: Any, columns: Any) -> Any:
        """Reset the worlds that are over, block by block; `columns` is a tree of arrays [E, ...]."""
        import jax

        size = min(_BLOCK, self.num_envs)
        # Numbers beyond the last world fill the last block; what is written there is dropped.
        ended = jax.numpy.nonzero(over, size=self.num_envs + size, fill_value=self.num_envs)[0]

        def renew(carried: Any) -> Any:
            begin, columns = carried
            which = jax.lax.dynamic_slice(ended, (begin,), (size,))
            fresh = jax.vmap(self._first_columns)(_drawn(keys[which], count)[:, 1])
            write = lambda column, new: column.at[which].set(new, mode="drop")  # noqa: E731
            return begin + size, jax.tree.map(write, columns, fresh)

        is_left = lambda carried: carried[0] < over.sum()  # noqa: E731
        return jax.lax.while_loop(is_left, renew, (0, columns))[1]

    def _first_columns(self, key: Any) -> Any:
        import jax

        state, seen = self._first(key)
        return jax.tree.map(_typed, state), self._columns(seen)

    def _next_columns(self, key: Any, state: Any, actions: Any) -> Any:
        """Step one world; return also whether all agents are done."""
        from jax import numpy as jnp

        if self._alike:
            actions = dict(zip(self.possible_agents, actions, strict=True))
        state, seen, rewards, terminated, truncated = self._next(key, state, actions)
        over = jnp.stack([terminated[agent] | truncated[agent] for agent in self.possible_agents]).all()
        flags = self._column(terminated), self._column(truncated)
        return state, self._columns(seen), self._column(rewards), *flags, over

    def _columns(self, seen: Seen) -> Any:
        """Return observations as float32 and masks as int8."""
        obs = {agent: _converted("", part) for agent, part in seen[0].items()}
        return self._column(obs), None if seen[1] is None else self._column(seen[1])

    def _column(self, by_agent: dict[AgentId, Any]) -> Any:
        from jax import numpy as jnp

        return jnp.stack([by_agent[agent] for agent in self.possible_agents]) if self._alike else by_agent


def library(name: str, asks: str) -> Any:
    """Import a library that needs JAX, for `asks`.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        with _silence():
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{asks}: {name} cannot be imported ({error}); run: pip install 'menv-rl[jax]'"
        ) from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep from standard output what JaxMARL prints on import; it sets `sys.stdout` and `sys.stderr` itself."""
    quiet, before = io.StringIO(), sys.__stdout__
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(sys.stderr):
        vars(sys)["__stdout__"] = quiet
        try:
            yield
        finally:
            vars(sys)["__stdout__"] = before


def _drawn(keys: Any, count: Any) -> Any:
    """Return [E, 2] keys for a step and for a reset of each world."""
    import jax

    return jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, count)))(keys)


def _typed(value: Any) -> Any:
    """Return a number or an array without JAX's weak type, which no step would return."""
    from jax import numpy as jnp

    array = jnp.asarray(value)
    return array.astype(array.dtype)


def _converted(name: str, obs: Any) -> Any:
    if isinstance(obs, Mapping):
        return {key: _converted(key, part) for key, part in obs.items()}
    return obs.astype("int8" if name == "action_mask" else "float32")


def _space_of(name: str, shapes: Any) -> gym.Space[Any]:
    if isinstance(shapes, Mapping):
        return gym.spaces.Dict({key: _space_of(key, part) for key, part in shapes.items()})
    if name == "action_mask":
        return gym.spaces.MultiBinary(shapes.shape[0])
    return gym.spaces.Box(-np.inf, np.inf, shapes.shape, np.float32)
