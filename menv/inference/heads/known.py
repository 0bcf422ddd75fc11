"""The heads that menv has, by the space of the actions or by their name in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import ActionHead, in_a_line
from menv.inference.heads.mixed import Mixed
from menv.inference.heads.q_values import MultiQValues, QValues
from menv.inference.heads.squashed_gaussian import SquashedGaussian

HEADS: dict[str, type[ActionHead]] = {
    head.kind: head
    for head in (Categorical, MultiCategorical, Gaussian, Mixed, QValues, MultiQValues, SquashedGaussian)
}


def head_for_space(space: gym.Space[Any]) -> ActionHead:
    """Return the head for the actions of a flat space, of a policy without Q-values; ConfigError if there is none."""
    found = [head for head in (kind.for_space(space) for kind in HEADS.values()) if head is not None]
    if not found:
        raise ConfigError(
            f"action space: {in_a_line(space)}, expected Discrete, MultiDiscrete with a 1-D nvec, a float Box, or a "
            "Tuple or Dict of these; wrap the environment"
        )
    return found[0]


def head_from_json(value: Mapping[str, Any]) -> ActionHead:
    """Return the head that `ActionHead.to_json` described."""
    try:
        return HEADS[value["kind"]](tuple(int(size) for size in value["sizes"]))
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"ActionHead: {type(error).__name__} {error!s:.60}, expected 'kind', one of {', '.join(HEADS)}, and a list "
            "'sizes'; pass what to_json returned"
        ) from error
