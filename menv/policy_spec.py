"""`PolicySpec`: what a user defines about one policy; everything left out is inferred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from menv.errors import ConfigError

_BAD_IN_IDS = '<>:"/\\|?*'
_MOST_BYTES = 200


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One entry of the `policies` dict.

    Attributes:
        policy_class: A custom `menv.Policy` subclass, or a subclass of a trained policy such as
            `menv.algorithms.PPOPolicy` with another loss; None means the algorithm's own.
        observation_space: None means that of the agents that map to the policy; for a Dict space keyed by these agents,
            such as `env.observation_space` of a PettingZoo wrapper, their entry in it.
        action_space: As `observation_space`, of actions.
        config: Settings that override the main ones for this policy, such as `{"gamma": 0.85}`.
        algorithm: Name of the algorithm that trains it; None means the one that is built. Another algorithm's settings,
            such as its `lr`, have its defaults unless `config` sets them; `gamma` is the main one.
        inferred: The observation and the action space that were found for the policy earlier. menv sets it, so that a
            policy keeps its spaces while no agent maps to it.
    """

    policy_class: type[Any] | None = None
    observation_space: Any = None
    action_space: Any = None
    config: Mapping[str, Any] | None = None
    _: KW_ONLY
    algorithm: str | None = None
    inferred: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.policy_class is not None and not isinstance(self.policy_class, type):
            raise ConfigError(
                f"PolicySpec: policy_class is {self.policy_class!r:.100}, expected a class; write "
                "PolicySpec(policy_class=RandomPolicy), or leave it out for the algorithm's own"
            )
        if vars(self.policy_class or object).get("stock", False):
            object.__setattr__(self, "policy_class", None)
        own = getattr(self.policy_class, "algorithm", None)
        if self.policy_class is not None and self.algorithm not in (None, own):
            raise ConfigError(
                f"PolicySpec: policy_class={self.policy_class.__name__}, which {own or 'no algorithm'} trains, and "
                f"algorithm={self.algorithm!r}, expected one of them; leave algorithm out"
            )
        if self.config is not None and not isinstance(self.config, Mapping):
            raise ConfigError(
                f"PolicySpec: config is {type(self.config).__name__}, expected a dict of overrides; "
                'write PolicySpec(config={"gamma": 0.9})'
            )

    @property
    def answers_itself(self) -> bool:
        """Whether it is a custom class that no algorithm trains."""
        return self.policy_class is not None and getattr(self.policy_class, "algorithm", None) is None

    @property
    def trained_by(self) -> str | None:
        """Name of the algorithm that trains it, None for the one that is built."""
        own: str | None = getattr(self.policy_class, "algorithm", None)
        return self.algorithm if own is None else own

    @classmethod
    def of(cls, policy_id: str, value: Any) -> PolicySpec:
        """Return the spec that a value of the `policies` dict means.

        Args:
            policy_id: Its key, for messages.
            value: A PolicySpec, None, a policy class, or RLlib's 4-tuple `(class, observation_space, action_space,
                config)`.
        """
        if isinstance(value, PolicySpec):
            return value
        if value is None:
            return cls()
        if isinstance(value, type):
            return cls(policy_class=value)
        if isinstance(value, tuple) and len(value) == 4:
            return cls(*value)
        count = f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
        raise ConfigError(
            f"policies[{policy_id!r}]: {count}, expected a PolicySpec, None or (class, observation_space, "
            "action_space, config); write PolicySpec() for a policy that infers everything, "
            "PolicySpec(config={...}) for one with other settings"
        )


def spec_like(policy_id: str, spec: Any, policy: Any) -> PolicySpec:
    """Return a spec with spaces and settings of a policy where the given spec has none."""
    if not hasattr(policy, "connectors_state"):
        raise ConfigError(
            f"add_policy: policy={policy!r:.100}, expected one policy with a network; pass get_policy(id) of an "
            "algorithm, Policy.from_checkpoint(folder)[id], or your own policy_class=..."
        )
    given = PolicySpec.of(policy_id, spec)
    # Of its config the items that its own spec gave, without what the settings of its algorithm add.
    taken = {
        "observation_space": policy.observation_space, "action_space": policy.action_space,
        "config": dict(policy.config),
    }  # fmt: skip
    return replace(given, **{name: own for name, own in taken.items() if getattr(given, name) is None})


def ids_given(where: str, policy_ids: object) -> list[str]:
    """Return policy ids that a user gave, one or several, each once; `where` begins the message."""
    ids = [policy_ids] if isinstance(policy_ids, str) else policy_ids
    found = list(ids) if isinstance(ids, Iterable) else []
    if not isinstance(ids, Iterable) or not all(isinstance(one, str) for one in found):
        raise ConfigError(
            f"{where}: policy_ids is {policy_ids!r:.100}, expected a list of policy ids, or one; pass strings"
        )
    return list(dict.fromkeys(found))


def check_policy_id(policy_id: Any) -> str:
    """Return a policy id, which must be usable as the name of a folder."""
    bad = not isinstance(policy_id, str) or not policy_id or policy_id[-1] in " ."
    # Control characters and halves of characters are not printable.
    bad = bad or not policy_id.isprintable() or any(char in _BAD_IN_IDS for char in policy_id)
    if bad or len(policy_id.encode()) > _MOST_BYTES:
        raise ConfigError(
            f"policies: id {policy_id!r:.300}, expected a string of at most {_MOST_BYTES} printable bytes without any "
            f"of {_BAD_IN_IDS} that does not end in a space or a dot, because it names a folder in checkpoints; choose "
            "another id"
        )
    return str(policy_id)


class SpecConfig(dict[str, Any]):
    """A `PolicySpec.config` as a policy's `config`; other keys are looked up in `settings`, if there are any."""

    def __init__(self, own: Mapping[str, Any], settings: Any = None) -> None:
        super().__init__(own)
        self._settings = settings

    def __reduce__(self) -> Any:
        # Settings hold whatever users give an algorithm, which need not travel; who needs them elsewhere brings them.
        return SpecConfig, (dict(self),)

    def __missing__(self, key: str) -> Any:
        if self._settings is not None:
            return self._settings[key]
        raise KeyError(
            f"policy config: no {key!r}, expected one of {sorted(self, key=str)}, as the PolicySpec has them; add it "
            "there, or read algorithm.config in callbacks"
        )

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (self._settings is not None and key in self._settings)

    def get(self, key: str, default: Any = None) -> Any:
        with suppress(KeyError):
            return self[key]
        return default
