"""`menv evaluate` plays episodes with the policies of a checkpoint, and `menv table` prints the scores of runs."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv.algorithms.algorithm import Algorithm
from menv.cli.arguments import (
    Parser,
    count,
    merge,
    option,
    parsed,
    print_text,
    switch,
    take_settings,
    with_objects,
)
from menv.cli.reopen import take_env
from menv.cli.train import from_checkpoint
from menv.env_context import EnvContext
from menv.episode import Episode
from menv.errors import ConfigError
from menv.playing.exploitability import exploitability
from menv.policy_map import PolicyMap
from menv.registry import make_env
from menv.tracking.report import STEPS, TIME, Group, groups_of, interval, runs_of
from menv.tracking.run_folder import json_text

_HEAD = ("algorithm", "seeds", "score", "95 % interval", "env steps", "minutes")
_ESCAPED = str.maketrans({one: rf"\{one}" for one in "&%$#_{}"} | {"\\": r"\textbackslash{}"})


def main(arguments: Sequence[str] | None = None, program: str = "menv evaluate") -> int:
    """Evaluate the policies of a checkpoint in this process and return the exit status."""
    parser = Parser(prog=program, description="Evaluate the policies of a run without learning.")
    option(parser, "folder", "a run folder, or a folder of checkpoints")
    _take_episodes(parser, "number of episodes")
    take_settings(parser)
    switch(parser, "--json", "print the result as a JSON object")
    args = parsed(parser, arguments)
    with _opened(args, args.folder, with_objects(args.config)) as algo:
        result: dict[str, Any] = {**algo.evaluate()["evaluation"]}
        if (found := _exploitability(algo)) is not None:
            result["exploitability"] = found
    print_text(json_text(result) if args.json else "\n".join(_lines(result)), program)
    return 0


def table(arguments: Sequence[str], program: str) -> int:
    """Evaluate the runs of the arguments, print their table and return the exit status."""
    parser = Parser(
        prog=program,
        description="Evaluate the last policies of runs of one environment. Runs that differ by their seed alone are "
        "one row: the mean score over seeds, its 95 % bootstrap interval, env steps and minutes.",
    )
    option(parser, "runs", "run folders", metavar="RUN", nargs="+")
    option(parser, "--format", "the format", choices=("markdown", "latex", "csv"), default="markdown")
    _take_episodes(parser, "number of episodes of each run")
    args = parsed(parser, arguments)
    rows = [_row(args, group) for group in groups_of(runs_of(args.runs))]
    print_text(_table(rows, args.format), program)
    return 0


def _take_episodes(parser: Parser, text: str) -> None:
    option(parser, "--episodes", text, type=count, default=100)
    take_env(parser)


def _opened(args: argparse.Namespace, folder: str, config: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm of a run, which evaluates in this process."""
    asked = {"evaluation_duration": args.episodes, "evaluation_duration_unit": "episodes", "num_workers": 0}
    return from_checkpoint(Algorithm, args, folder, merge(asked, config), learns=False)


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


def _row(args: argparse.Namespace, group: Group) -> list[str]:
    scores = np.array([_score(args, str(run.path)) for run in group.runs])
    low, high = interval(scores)
    steps, seconds = (np.mean([table[key][-1] for table in group.tables]) for key in (STEPS, TIME))
    figures = f"{scores.mean():.4g}", f"{low:.4g} to {high:.4g}", f"{steps:,.0f}", f"{seconds / 60:.1f}"
    return [group.name, str(len(scores)), *figures]


def _score(args: argparse.Namespace, run: str) -> float:
    """Return the mean return of the last policies of a run."""
    with _opened(args, run, {}) as algo:
        score = algo.evaluate()["evaluation"]["episode_reward_mean"]
    if score is None:
        raise ConfigError(f"{run}: no episode was completed, expected {args.episodes}; give more --episodes")
    return float(score)


def _table(rows: Sequence[Sequence[str]], form: str) -> str:
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_HEAD, *rows])
        return text.getvalue().rstrip("\n")
    if form == "markdown":
        lines = [_HEAD, ("---", *["---:"] * (len(_HEAD) - 1)), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    body = [" & ".join(cell.translate(_ESCAPED) for cell in line) + r" \\" for line in (_HEAD, *rows)]
    body.insert(1, r"\midrule")
    columns = "l" + "r" * (len(_HEAD) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
    )
