"""The base class of both PettingZoo wrappers: the game, its spaces and its action masks.

It recognises games by their methods and never imports PettingZoo. The functions at the end find the shortest way to a
game's state through PettingZoo's own wrappers.
"""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from menv.base_env import AgentId
from menv.errors import CallOrderError, ConfigError, ContractError, MissingExtraError, in_words, message_of
from menv.multi_agent_env import AgentDict, MultiAgentEnv
from menv.spaces import flags_of, flat_mask

_AEC_TO_PARALLEL = "turn_based_aec_to_parallel_wrapper"
_WRAPPERS = {"AEC": "PettingZooEnv", "parallel": "ParallelPettingZooEnv"}
_MAKERS = {"AEC": "env", "parallel": "parallel_env"}


def check_kind(env: object, wrapper: str, wanted: str) -> None:
    """Raise unless `env` is a PettingZoo environment of the `wanted` kind, "AEC" or "parallel"."""
    is_other = isinstance(env, ModuleType | type | MultiAgentEnv | gym.Env)
    kind = "" if is_other else kind_of(env)
    if kind == wanted:
        return
    if not is_other and not kind and importlib.util.find_spec("pettingzoo") is None:
        raise MissingExtraError(
            f"{wrapper}: got {type(env).__name__} and PettingZoo is not installed, expected one of its environments; "
            'run pip install "menv-rl[pettingzoo]"'
        )
    got = getattr(env, "__name__", type(env).__name__)
    todo = f"pass what {_MAKERS[wanted]}() of a PettingZoo module returns, and other environments without a wrapper"
    if kind:
        # The other wrapper would ask agents that cannot act.
        is_converted = any(one.__name__ == _AEC_TO_PARALLEL for one in type(env).__mro__)
        todo = f"use {_WRAPPERS[kind]}"
        if is_converted:
            todo = "pass the game as it was before turn_based_aec_to_parallel"
    raise ConfigError(
        f"{wrapper}: {got} has {f'the {kind}' if kind else 'no'} interface of PettingZoo, expected the {wanted} one; "
        f"{todo}"
    )


_METHODS = ("reset", "step", "last", "observe", "render", "close")


def kind_of(env: object) -> str:
    """Return "AEC", "parallel", or "" for neither.

    Raises:
        ContractError: An attribute hides one of PettingZoo's methods, such as `last`.
    """
    own = getattr(env, "__dict__", {})
    for name in _METHODS:
        if name in own and callable(getattr(type(env), name, None)) and not callable(own[name]):
            raise ContractError(
                f"{type(env).__name__}: its attribute `{name}` is a {type(own[name]).__name__} and hides PettingZoo's "
                "method of this name, expected a method; rename the attribute",
                "ME007",
            )
    if not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        return ""
    if callable(getattr(env, "last", None)) and callable(getattr(env, "observe", None)):
        return "AEC"
    # The spaces of a parallel game are by agent, where gymnasium has one space.
    by_agent = callable(getattr(env, "observation_space", None)) or hasattr(env, "observation_spaces")
    return "parallel" if by_agent or hasattr(env, "possible_agents") else ""


MASK = "action_mask"
OBSERVATION = "observation"


def _dict_space(name: str) -> Any:

    def get(self: Any) -> Any:
        spaces: list[tuple[Any, gym.Space[Any]]] = list(getattr(self, f"{name}s").items())
        return vars(self).get(name) or (gym.spaces.Dict(spaces) if spaces else None)

    def set_value(self: Any, value: Any) -> None:
        vars(self)[name] = value

    doc = "A Dict space of the spaces by agent, or the value it was set to; None while no agent is known."
    return property(get, set_value, doc=doc)


class PettingZooBase(MultiAgentEnv):
    """A PettingZoo environment as a `MultiAgentEnv`; the subclasses step it."""

    interface: ClassVar[str]
    """The PettingZoo interface of the subclass: "AEC" or "parallel"."""

    def __init__(self, env: Any, action_mask_from_infos: bool | None = None) -> None:
        check_kind(env, type(self).__name__, self.interface)
        super().__init__()
        self.env = env
        self.possible_agents = list(getattr(env, "possible_agents", None) or ())
        self.render_mode = getattr(env, "render_mode", None)
        self.render_for = getattr(env, "render_for", None)
        # Set on the instance: the class attribute is shared by all environments.
        vars(self)["metadata"] = dict(getattr(env, "metadata", None) or self.metadata)
        # The caller's option, and the decision: None until the first reset.
        self._mask_option = action_mask_from_infos
        self._uses_masks = action_mask_from_infos
        self._closed = self._running = False
        self._spaces: dict[AgentId, tuple[gym.Space[Any], gym.spaces.Dict]] = {}

    @property
    def observation_spaces(self) -> Mapping[Any, gym.Space[Any]]:  # type: ignore[override]
        """Observation spaces of the possible agents, or of the living agents if the game does not name any."""
        return {agent: self.get_observation_space(agent) for agent in self.possible_agents or self.agents}

    @property
    def action_spaces(self) -> Mapping[Any, gym.Space[Any]]:  # type: ignore[override]
        """Action spaces of the same agents."""
        return {agent: self.get_action_space(agent) for agent in self.possible_agents or self.agents}

    observation_space = _dict_space("observation_space")
    action_space = _dict_space("action_space")

    def get_observation_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the observation space of one agent.

        If the game has its masks in `infos`, it is a Dict of `"observation"` and `"action_mask"`. To find
        out, a game with discrete actions that was never reset is reset once.

        Raises:
            ContractError: The game has no space for this agent.
        """
        space = self._declared("observation", agent_id)
        if isinstance(space, gym.spaces.Dict) and MASK in space.spaces:
            return space
        action_space = self._declared("action", agent_id)
        if not flags_of(action_space):
            return space
        if self._uses_masks is None:
            self.reset()
        return self._with_mask_space(agent_id, space, action_space) if self._uses_masks else space

    def get_action_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the action space of one agent.

        Raises:
            ContractError: The game has no space for this agent.
        """
        return self._declared("action", agent_id)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the PettingZoo environment in a list, or as `{0: env}`."""
        return {0: self.env} if as_dict else [self.env]

    def render(self) -> Any:
        return self.env.render()

    def state(self) -> Any:
        """Return the view of the whole game that PettingZoo's `state` gives, for centralised training."""
        return self.env.state()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()

    def _reset_env(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        try:
            return self.env.reset(**given)
        except TypeError as error:
            if "keyword argument" not in message_of(error):
                raise
            raise ContractError(
                f"{type(self).__name__}.reset: {error}, expected reset(self, seed=None, options=None); declare both in "
                f"{self._game}"
            ) from error

    def _check_infos(self, method: str, infos: object) -> None:
        each = infos.values() if isinstance(infos, Mapping) else [infos]
        for info in each:
            if not isinstance(info, Mapping):
                raise ContractError(
                    f"{type(self).__name__}.{method}: {self._game} returned infos that are or hold "
                    f"{type(info).__name__}, expected dicts by agent; return an empty dict where there is no info"
                )

    def _find_masks(self, infos: Iterable[Any]) -> None:
        """Decide at the first reset whether the game has its masks in `infos`."""
        if self._uses_masks is None:
            self._uses_masks = any(MASK in info for info in infos if info)

    def _masked_obs(self, agent: AgentId, obs: object, info: Mapping[str, Any]) -> Any:
        """Return an observation with the mask of `info` added, unless it has one or needs none."""
        if self._mask_option is False or (isinstance(obs, dict) and MASK in obs):
            return obs
        space = self._declared("action", agent)
        if not flags_of(space):
            if MASK not in info:
                return obs
            raise ContractError(
                f"{type(self).__name__}: infos[{agent!r}] hold an {MASK!r} for {space}, expected one for discrete "
                "actions only; put it into the observation, or pass action_mask_from_infos=False"
            )
        if not self._uses_masks:
            raise ContractError(
                f"{type(self).__name__}: infos[{agent!r}] hold an {MASK!r} and the infos of the first reset held none, "
                "expected masks from the start; pass action_mask_from_infos=True (False leaves them in infos)"
            )
        mask = flat_mask(info[MASK], space) if MASK in info else np.ones(flags_of(space), np.int8)
        return {OBSERVATION: obs, MASK: np.asarray(mask, np.int8)}

    def _with_mask_space(
        self, agent: AgentId, space: gym.Space[Any], actions: gym.Space[Any]
    ) -> gym.spaces.Dict:
        """Return `space` with a mask; the same object as long as the game's space is the same."""
        known = self._spaces.get(agent)
        if known is None or known[0] is not space:
            mask = gym.spaces.Box(0, 1, (flags_of(actions),), np.int8)
            known = self._spaces[agent] = (space, gym.spaces.Dict({OBSERVATION: space, MASK: mask}))
        return known[1]

    def _declared(self, kind: str, agent: AgentId) -> gym.Space[Any]:
        """Return the space from the game's method, or else from its dict."""
        space: Any = None
        cause: Exception | None = None
        try:
            with warnings.catch_warnings():
                # PettingZoo's own methods warn of games that have only the dicts, which are valid.
                warnings.filterwarnings("ignore", "Your environment should override")
                space = getattr(self.env, f"{kind}_space")(agent)
        except (AttributeError, KeyError, TypeError, NotImplementedError) as error:
            space, cause = (getattr(self.env, f"{kind}_spaces", None) or {}).get(agent), error
        if isinstance(space, gym.Space):
            return space
        got = f"{kind}_space(agent) raised {in_words(cause)}" if cause else f"it is {space!r:.80}"
        raise ContractError(
            f"{type(self).__name__}.get_{kind}_space: {self._game} has no {kind} space for agent {agent!r} ({got}), "
            f"expected one from {kind}_space(agent) or {kind}_spaces; known agents: {_listed(self.possible_agents)}"
        ) from cause

    def _check_answers(self, asked: Iterable[AgentId], answers: AgentDict) -> None:
        where = f"{_WRAPPERS[self.interface]}.step"
        if not self._running:
            raise CallOrderError(
                f'{where}: no episode is running, expected reset first and again after "__all__"; call reset'
            )
        check_answers(where, asked, answers)

    @property
    def _game(self) -> str:
        return game_name(self.env)


def game_name(env: object) -> str:
    """Return the name in a PettingZoo environment's metadata, or its class name."""
    metadata = getattr(env, "metadata", None)
    named = metadata.get("name") if isinstance(metadata, Mapping) else None
    return str(named or type(env).__name__)


def check_answers(where: str, asked: Iterable[AgentId], answers: AgentDict) -> None:
    """Raise if the answered agents are not exactly the agents that were asked."""
    asked = list(asked)
    missing = sorted(repr(agent) for agent in asked if agent not in answers)
    extra = sorted(repr(agent) for agent in answers if agent not in asked)
    if missing or extra:
        raise ContractError(
            f"{where}: actions missing for {missing[:8]} and not expected from {extra[:8]}, expected exactly "
            f"{sorted(map(repr, asked))[:16]}; answer the agents that the last obs named"
        )


def _listed(agents: list[Any]) -> str:
    return ", ".join(map(repr, agents[:8])) or "none before the game is reset"


_WRAPPER_PACKAGE = "pettingzoo.utils.wrappers"
_ORDER_CHECKS = f"{_WRAPPER_PACKAGE}.order_enforcing.OrderEnforcingWrapper"
_PASS_OBSERVATIONS = {
    _ORDER_CHECKS,
    f"{_WRAPPER_PACKAGE}.assert_out_of_bounds.AssertOutOfBoundsWrapper",
    f"{_WRAPPER_PACKAGE}.clip_out_of_bounds.ClipOutOfBoundsWrapper",
}
_TRANSPARENT = {*_PASS_OBSERVATIONS, f"{_WRAPPER_PACKAGE}.terminate_illegal.TerminateIllegalWrapper"}
"""PettingZoo's wrappers that pass the state through unchanged and keep nothing across steps."""


def state_owner(env: Any) -> Any:
    """Return the object with the state of the turn, or None if only `env.last` may be used.

    PettingZoo's own wrappers pass the state through. Other wrappers, and custom `last` methods, may change it.
    """
    while _name(env) in _TRANSPARENT:
        env = env.env
    last = getattr(type(env), "last", None)
    return env if str(getattr(last, "__module__", "")).startswith("pettingzoo.") else None


def without_order_checks(env: Any) -> Any:
    """Return the environment inside PettingZoo's check of the order of calls, which `PettingZooEnv` makes itself."""
    return env.env if _name(env) == _ORDER_CHECKS else env


def observer(env: Any) -> Callable[[Any], Any]:
    """Return `env.observe` without the wrappers that only pass the call on."""
    while _name(env) in _PASS_OBSERVATIONS:
        env = env.env
    observe: Callable[[Any], Any] = env.observe
    return observe


def parallel_stepper(env: Any) -> Callable[[Any], Any]:
    """Return `env.step` of a parallel game; for a converted AEC game, without its order checks."""
    step: Callable[[Any], Any] = env.step
    if _name(env) != "pettingzoo.utils.conversions.aec_to_parallel_wrapper":
        return step
    unchecked = copy.copy(env)
    unchecked.aec_env = without_order_checks(env.aec_env)
    return partial(_step_unchecked, env, unchecked)


def _step_unchecked(env: Any, unchecked: Any, actions: Any) -> Any:
    result = unchecked.step(actions)
    # The wrapper's own step sets them too.
    env.agents = unchecked.agents
    return result


def _name(env: object) -> str:
    return f"{type(env).__module__}.{type(env).__name__}"
