"""The file of `menv sweep`: its keys, and the settings that are searched, as Optuna has them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from menv.algorithms.config.setting import Settings, setting
from menv.cli.arguments import with_sections
from menv.errors import ConfigError

RULE = "expected what docs/how_to/sweeps.md says; correct the file"
RUN = "run"
"""The parameter of trials that names the algorithm, where the file has several."""
_RANGE = "expected {float = [low, high]}, {int = [low, high]}, both with log = true or step, or {choice = [values]}"
_KINDS = {"float": FloatDistribution, "int": IntDistribution, "choice": CategoricalDistribution}


@dataclass(frozen=True)
class SweepFile(Settings):
    """What a sweep file says; `docs/how_to/sweeps.md` explains the keys."""

    _where = "sweep"
    env: str = ""
    run: str | Sequence[str] = "PPO"
    metric: str = "episode_reward_mean"
    direction: Literal["maximize", "minimize"] = "maximize"
    seeds: int = 1
    pruner: Literal["none", "median", "hyperband"] = "none"
    pruner_options: Mapping[str, Any] = setting({})
    options: str | None = None
    stop: Mapping[str, float] = setting({})
    config: Mapping[str, Any] = setting({})
    space: Mapping[str, Any] = setting({})
    grid: Mapping[str, Any] = setting({})

    def searched(self) -> dict[str, Any]:
        """Return the range of each setting that trials differ in; several algorithms are values of `RUN`."""
        several = {} if isinstance(self.run, str) else {RUN: {"choice": list(self.run)}}
        choices = {name: {"choice": values} for name, values in _leaves(with_sections(self.grid), "")}
        return dict(_ranges({**several, **with_sections({**choices, **self.space})}, ""))

    def combinations(self) -> list[dict[str, Any]]:
        """Return the parameters of the trials of a grid; [] with a space, whose trials Optuna chooses."""
        if self.space:
            return []
        ranges = {name: one.choices for name, one in self.searched().items()}
        return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]


def _leaves(grid: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, values in grid.items():
        if isinstance(values, Mapping):
            yield from _leaves(values, f"{path}{name}.")
        elif isinstance(values, list):
            yield f"{path}{name}", values
        else:
            raise ConfigError(
                f"grid.{path}{name}: {values!r:.60}, expected a list of values; correct the file"
            )


def _ranges(space: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the name of each setting that is searched, and its range as Optuna has it."""
    for name, entry in space.items():
        how = dict(entry) if isinstance(entry, Mapping) else {}
        kind = next(iter(_KINDS.keys() & how), "")
        if how and not kind:
            yield from _ranges(how, f"{path}{name}.")
            continue
        try:
            # Optuna stores no lists.
            ends = [[json.dumps(one) for one in how.pop(kind)]] if kind == "choice" else how.pop(kind)
            yield f"{path}{name}", _KINDS[kind](*ends, **how)
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"space.{path}{name}: {str(error).rstrip('.')}, {_RANGE}") from None
