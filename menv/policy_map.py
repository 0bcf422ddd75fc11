"""`PolicyMap`: which policy acts for which agent, and which policies learn.

The sampler asks it when an agent first appears in an episode; `menv.sampling.infer_policies` asks it about every
possible agent before the first step. It knows no weights and no environments.
"""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from menv.base_env import SINGLE_AGENT, AgentId
from menv.env_calls import OR_MANY_AGENTS
from menv.episode import Episode
from menv.errors import ConfigError, ContractError
from menv.policy_spec import PolicySpec, check_policy_id

DEFAULT_POLICY = "default_policy"

MappingFn = Callable[[AgentId, Episode, Any], str]
MappingSetting = Callable[..., Any] | Sequence[Sequence[str]] | None
"""A mapping function, or pairs of a pattern as of `fnmatch` and a policy id, which a checkpoint can hold."""

_GIVEN = ("agent_id", "episode", "worker")
_CALLS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (1, ("episode", "worker")), (1, ("worker",)), (1, ("episode",)), (3, ()), (2, ()), (1, ()),
)  # fmt: skip
"""How mapping functions may be called: how many arguments by position, and which others by name."""


class PolicyMap:
    """The policies by id, the mapping function and the policies to train.

    It never changes: an episode keeps the one that it began with, even if policies are added or removed meanwhile.

    Attributes:
        specs: Spec of each policy.
        only: Id of the policy of all agents, if there is one policy and no mapping function; else None.
    """

    def __init__(
        self,
        policies: Mapping[str, Any] | Iterable[str] | None = None,
        policy_mapping_fn: MappingSetting = None,
        policies_to_train: Iterable[str] | Callable[..., bool] | None = None,
    ) -> None:
        """Read RLlib's three settings.

        Args:
            policies: Specs by id, or ids alone; None means one policy, `default_policy`.
            policy_mapping_fn: `(agent_id, episode, worker, **kwargs) -> policy id`; fewer parameters are fine. Or pairs
                `(pattern, policy id)`, of which the first one whose pattern matches the agent's name counts; a `*` in
                the policy id is that name. None is allowed with one policy.
            policies_to_train: Ids, or `(policy_id, batch) -> bool`; None means all that can learn.

        Raises:
            ConfigError: An id, a spec or one of the two functions is not usable.
        """
        entries: Mapping[str, Any]
        if isinstance(policies, str):
            raise ConfigError(
                f"policies: the string {policies!r}, expected a dict or a list of ids; write [{policies!r}]"
            )
        if policies is None:
            entries = {DEFAULT_POLICY: None}
        elif isinstance(policies, Mapping):
            entries = policies
        else:
            entries = dict.fromkeys(_ids("policies", policies))
        if not entries:
            raise ConfigError(
                "policies: none given, expected at least one; leave the key out for a single policy"
            )
        self.specs = {check_policy_id(name): PolicySpec.of(name, value) for name, value in entries.items()}
        self._fn, self._trained = policy_mapping_fn, policies_to_train
        self.only = next(iter(self.specs)) if len(self.specs) == 1 and policy_mapping_fn is None else None
        self._mapping = self._only_one if policy_mapping_fn is None else adapt_mapping_fn(policy_mapping_fn)
        self._to_train = self._check_to_train(policies_to_train)

    def changed(
        self,
        *,
        add: Mapping[str, PolicySpec] = MappingProxyType({}),
        remove: Collection[str] = (),
        policy_mapping_fn: MappingSetting = None,
        policies_to_train: Iterable[str] | Callable[..., bool] | None = None,
    ) -> PolicyMap:
        """Return a map with policies added or removed; None keeps a setting.

        Raises:
            ConfigError: An id exists already or does not exist, nothing is left, or several policies are left without a
                mapping.
        """
        for policy_id in add:
            if policy_id in self.specs:
                raise ConfigError(
                    f"add_policy: {policy_id!r} exists already, expected a new id; remove it first or choose another"
                )
        for policy_id in remove:
            if not isinstance(policy_id, str) or policy_id not in self.specs:
                raise ConfigError(
                    f"remove_policy: {policy_id!r} does not exist, expected one of {sorted(self.specs)}; check the id"
                )
        specs = {name: spec for name, spec in self.specs.items() if name not in remove}
        trained: Any = self._trained if policies_to_train is None else policies_to_train
        if policies_to_train is None and not callable(trained) and trained is not None:
            trained = [policy_id for policy_id in self._to_train if policy_id not in remove]
        changed = PolicyMap(
            {**specs, **add}, self._fn if policy_mapping_fn is None else policy_mapping_fn, trained
        )
        if changed.only is None and policy_mapping_fn is None and self._fn is None:
            raise ConfigError(
                f"policies {sorted(changed.specs)}: no policy_mapping_fn, which several policies need; pass "
                "policy_mapping_fn=lambda agent_id, episode, worker, **kw: ..."
            )
        return changed

    def keep_spaces(self, resolved: Mapping[str, PolicySpec]) -> None:
        """Store inferred spaces in the specs, for this map and maps derived from it."""
        self.specs = {
            name: replace(spec, inferred=(resolved[name].observation_space, resolved[name].action_space))
            for name, spec in self.specs.items()
        }

    def policy_for(self, agent_id: AgentId, episode: Episode, worker: Any) -> str:
        """Return the policy that acts for an agent in an episode.

        Raises:
            ContractError: The mapping function returned an id that is not among the policies.
        """
        policy_id = self._mapping(agent_id, episode, worker)
        if not isinstance(policy_id, str) or policy_id not in self.specs:
            # A function that reads the worker sees policies that were added since the episode began.
            known = {*self.specs, *getattr(worker, "policy_map", self).specs}
            if isinstance(policy_id, str) and policy_id in known:
                return policy_id
            raise ContractError(
                f"policy_mapping_fn: returned {policy_id!r} for agent {agent_id!r}, expected one of "
                f"{sorted(known)}; add the policy to `policies` (to a run from a checkpoint by add_policy) or "
                f"fix the function{OR_MANY_AGENTS if agent_id == SINGLE_AGENT else ''}"
            )
        return policy_id

    def seat(self, agent_id: AgentId, episode: Episode, worker: Any) -> str:
        """Return an agent's policy in an episode; the mapping is asked when the agent first appears in it."""
        known = episode.seat_of(agent_id)
        return (known or episode.bind(agent_id, self.only or self.policy_for(agent_id, episode, worker)))[0]

    @property
    def needs_episode(self) -> bool:
        """Whether the mapping is a function, which may read the episode."""
        return callable(self._fn)

    @property
    def settings(self) -> tuple[Any, Any]:
        """The mapping function as it was given, and the policies to train: sorted ids, a function or None."""
        trained = (
            self._trained if callable(self._trained) or self._trained is None else sorted(self._to_train)
        )
        return self._fn, trained

    @property
    def table(self) -> Any:
        """The table of a mapping function that has one, which changes during a run; None for others."""
        return getattr(self._fn, "table", None)

    @table.setter
    def table(self, table: Any) -> None:
        vars(self._fn)["table"] = table

    def trains(self, policy_id: str, batch: Any = None) -> bool:
        """Return whether a policy learns from `batch`.

        Raises:
            ContractError: The function that decides it did not return a bool.
        """
        if callable(self._to_train):
            answer = self._to_train(policy_id, batch)
            if not isinstance(answer, int | np.bool_):
                raise ContractError(
                    f"policies_to_train: returned a {type(answer).__name__} for policy {policy_id!r}, expected True or "
                    "False; fix the function (is a `return` missing?)"
                )
            return bool(answer)
        return self._to_train is None or policy_id in self._to_train

    def is_frozen(self, policy_id: str) -> bool:
        """Return whether a policy never learns; False if a function decides for each batch."""
        return self._to_train is not None and not callable(self._to_train) and policy_id not in self._to_train

    @property
    def all_frozen(self) -> bool:
        """Whether no policy ever learns, so that nothing needs torch."""
        return all(map(self.is_frozen, self.specs))

    def _only_one(self, agent_id: AgentId, episode: Episode, worker: object) -> str:
        if len(self.specs) > 1:
            raise ConfigError(
                f"policy_mapping_fn: missing with policies {sorted(self.specs)}, expected a function; "
                'set multiagent={"policy_mapping_fn": lambda agent_id, episode, worker, **kw: ...}'
            )
        return next(iter(self.specs))

    def _check_to_train(self, value: object) -> Any:
        if value is None:
            return None
        if callable(value):
            return value
        chosen = {value} if isinstance(value, str) else set(_ids("policies_to_train", value))
        unknown = sorted(chosen - self.specs.keys(), key=str)
        if unknown:
            raise ConfigError(
                f"policies_to_train: {unknown} are not among the policies, expected ids of {sorted(self.specs)}; "
                "correct the ids or add the policies"
            )
        return chosen


def _ids(setting: str, value: object) -> list[Any]:
    ids = list(value) if isinstance(value, Iterable) else None
    if ids is None or not all(isinstance(one, Hashable) for one in ids):
        or_function = " or a function (policy_id, batch) -> bool" if setting == "policies_to_train" else ""
        raise ConfigError(
            f'{setting}: {value!r}, expected policy ids{or_function}; pass a list such as ["learner"]'
        )
    return ids


def adapt_mapping_fn(fn: Callable[..., Any] | Sequence[Sequence[str]]) -> MappingFn:
    """Return `fn` as a function of exactly (agent_id, episode, worker).

    The signature is read once, here: functions of one or two parameters, keyword-only ones and `**kwargs` all work.

    Raises:
        ConfigError: `fn` is neither callable nor pairs of patterns and policy ids, or needs another parameter.
    """
    if not callable(fn):
        return _by_patterns(fn)
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        # A builtin such as str, which has no signature: a function of the agent id.
        return lambda agent_id, episode, worker: fn(agent_id)
    for count, names in _CALLS:
        with suppress(TypeError):
            signature.bind(*_GIVEN[:count], **dict.fromkeys(names))
            break
    else:
        raise ConfigError(
            f"policy_mapping_fn: its parameters are {signature}, expected (agent_id, episode, worker, **kwargs) or the "
            "first of these; give the others defaults"
        )

    def mapping(agent_id: AgentId, episode: Episode, worker: Any) -> str:
        given = {"agent_id": agent_id, "episode": episode, "worker": worker}
        args = list(given.values())[:count]
        return fn(*args, **{name: given[name] for name in names})  # type: ignore[no-any-return]

    return mapping


def _by_patterns(pairs: object) -> MappingFn:
    """Return the mapping function of pairs (pattern, policy id)."""
    listed = list(pairs) if isinstance(pairs, list | tuple) else []
    if not listed or not all(
        isinstance(one, list | tuple) and list(map(type, one)) == [str, str] for one in listed
    ):
        raise ConfigError(
            f"policy_mapping_fn: {pairs!r:.200}, expected a function (agent_id, episode, worker, **kwargs) -> policy "
            "id, or a list of pairs (pattern, policy id); pass the function itself"
        )
    patterns: list[tuple[re.Pattern[str], str]] = [
        (re.compile(fnmatch.translate(pattern)), policy) for pattern, policy in listed
    ]

    def mapping(agent_id: AgentId, episode: Episode, worker: Any) -> str:
        name = str(agent_id)
        for pattern, policy in patterns:
            if pattern.match(name):
                return policy.replace("*", name)
        raise ConfigError(
            f"policy_mapping_fn: agent {agent_id!r} matches none of the patterns {[one for one, _ in listed]}, "
            "expected one for each agent; add a pattern for it, such as '*' as the last one"
        )

    return mapping
