"""`menv evaluate`: lets the policies of a checkpoint play, tells how well, and records it if that is wanted."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from menv.algorithms.algorithm import Algorithm
from menv.cli.arguments import put_over, with_objects
from menv.cli.command_line import tell
from menv.cli.display import as_json
from menv.cli.policies import from_checkpoint, known_env
from menv.env_context import EnvContext
from menv.registry import is_ready_made, make_env
from menv.wrappers import RecordEpisodes


def evaluate(given: argparse.Namespace) -> int:
    """Play as many episodes as the command line says, in this process, without learning.

    Raises:
        ConfigError: A setting is wrong, or there is no checkpoint.
        SystemExit: With status 1, if nothing takes what is printed.
    """
    asked = {"evaluation_duration": given.episodes, "evaluation_duration_unit": "episodes", "num_workers": 0}
    config = put_over(asked, with_objects(given.config))
    if given.record is not None:
        config = put_over(_recording(given, config), config)
    with from_checkpoint(Algorithm, given.folder, config, given.env, "--env ") as algo:
        result = algo.evaluate()["evaluation"]
    tell(as_json(result) if given.json else "\n".join(_lines(result)), "menv evaluate")
    return 0


class _Recorded:
    """Creates environments whose episodes are recorded.

    Args:
        env: What the environment is called.
        folder: Where the episodes go.
    """

    def __init__(self, env: str, folder: str) -> None:
        self._env = env
        self._folder = folder

    def __call__(self, context: EnvContext) -> Any:
        return RecordEpisodes(make_env(self._env, context), self._folder)


def _recording(given: argparse.Namespace, config: Mapping[str, Any]) -> Mapping[str, Any]:
    env = given.env or config.get("env") or known_env(Path(given.folder))
    if not isinstance(env, str):
        return {}
    settings = {"render_mode": "rgb_array"} if is_ready_made(env) else {}
    return {"evaluation_config": {"env": _Recorded(env, given.record), "env_config": settings}}


def _lines(result: Mapping[str, Any]) -> list[str]:
    lines = [f"{result['episodes_this_iter']} episodes, {_spread(result, 'episode_reward')}"]
    if result["episode_len_mean"] is not None:
        lines[0] += f", {result['episode_len_mean']:.1f} env steps long"
    means = result["policy_reward_mean"]
    width = max(map(len, means), default=0)
    by_policy = {key: result[f"policy_reward_{key}"] for key in ("mean", "min", "max")}
    for name in means if len(means) > 1 else ():
        own = {f"policy_{key}": values[name] for key, values in by_policy.items()}
        lines.append(f"  {name:<{width}}  {_spread(own, 'policy')}")
    if result.get("first_fault"):
        lines.append(f"  {result['num_faulty_episodes']} broken off: {result['first_fault']}")
    return lines


def _spread(figures: Mapping[str, Any], name: str) -> str:
    mean, least, most = (figures[f"{name}_{key}"] for key in ("mean", "min", "max"))
    return "no return" if mean is None else f"mean return {mean:.2f} ({least:.2f} to {most:.2f})"
