"""`menv evaluate`: runs episodes with the policies of a checkpoint, and prints the returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv.algorithms.algorithm import Algorithm
from menv.cli.arguments import (
    Parser,
    count,
    merge,
    parsed,
    print_text,
    take_imports,
    take_settings,
    with_objects,
)
from menv.cli.reopen import take_trust
from menv.cli.train import from_checkpoint
from menv.env_context import EnvContext
from menv.episode import Episode
from menv.playing.exploitability import exploitability
from menv.policy_map import PolicyMap
from menv.registry import make_env
from menv.tracking.report import interval
from menv.tracking.run_folder import json_text


def main(arguments: Sequence[str] | None = None, program: str = "menv evaluate") -> int:
    """Evaluate the policies of a checkpoint in this process and return the exit status."""
    parser = Parser(prog=program, description="Evaluate the policies of a run without learning.")
    parser.add_argument("folder", help="a run folder, or a folder of checkpoints")
    parser.add_argument("--env", help="the environment, as for train, if the checkpoint cannot name it")
    parser.add_argument(
        "--episodes", type=count, default=100, help="number of episodes (default: %(default)s)"
    )
    take_settings(parser)
    take_trust(parser)
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object")
    take_imports(parser)
    args = parsed(parser, arguments)
    asked = {"evaluation_duration": args.episodes, "evaluation_duration_unit": "episodes", "num_workers": 0}
    config = merge(asked, with_objects(args.config))
    with from_checkpoint(Algorithm, args, args.folder, config, learns=False) as algo:
        result: dict[str, Any] = {**algo.evaluate()["evaluation"]}
        if (found := _exploitability(algo)) is not None:
            result["exploitability"] = found
    print_text(json_text(result) if args.json else "\n".join(_lines(result)), program)
    return 0


def _exploitability(algo: Algorithm) -> float | None:
    """Return what `menv.playing.exploitability` says of the policies of players in a game that is known by its name."""
    config = algo.config
    if not isinstance(config.env, str) or not config.env.startswith(("openspiel:", "pgx:")):
        return None
    multi, episode = config.multiagent, Episode(1, 0)
    names = PolicyMap(multi.policies, multi.policy_mapping_fn)
    policies = [algo.get_policy(names.policy_for(f"player_{number}", episode, None)) for number in (0, 1)]
    return exploitability(make_env(config.env, EnvContext(dict(config.env_config))), policies)


def _lines(result: Mapping[str, Any]) -> list[str]:
    count = result["episodes_this_iter"]
    lines = [f"{count} episode{'s' if count != 1 else ''}, {_spread(result, 'episode_reward')}"]
    returns = np.array(result["hist_stats"]["episode_reward"])
    if len(returns) > 1:
        low, high = interval(returns)
        lines[0] += f", standard deviation {returns.std(ddof=1):.2f}, 95 % interval {low:.2f} to {high:.2f}"
    if result["episode_len_mean"] is not None:
        lines[0] += f", {result['episode_len_mean']:.1f} env steps long"
    means = result["policy_reward_mean"]
    width = max(map(len, means), default=0)
    by_policy = {key: result[f"policy_reward_{key}"] for key in ("mean", "min", "max")}
    for name in means if len(means) > 1 else ():
        own = {f"policy_{key}": values[name] for key, values in by_policy.items()}
        lines.append(f"  {name:<{width}}  {_spread(own, 'policy')}")
    if "exploitability" in result:
        lines.append(f"  exploitability {result['exploitability']:.4f}, half of NashConv")
    if result.get("first_fault"):
        lines.append(f"  {result['num_faulty_episodes']} broken off: {result['first_fault']}")
    return lines


def _spread(figures: Mapping[str, Any], name: str) -> str:
    mean, least, most = (figures[f"{name}_{key}"] for key in ("mean", "min", "max"))
    return "no return" if mean is None else f"mean return {mean:.2f} ({least:.2f} to {most:.2f})"
