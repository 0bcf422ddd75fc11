"""`menv train`: builds an algorithm from the arguments, trains until a `--stop` bound is reached, and saves.

With `--seeds N` each seed is a `menv train` in another process with its run folder.
"""

from __future__ import annotations

import argparse
import math
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import gymnasium as gym

import menv
from menv.algorithms.algorithm import Algorithm, algorithm_class
from menv.algorithms.config.zoo import ZooSettings, required_zoo_settings, zoo_settings
from menv.algorithms.training.learn import (
    TIMESTEPS,
    Saving,
    StopRule,
    env_name,
    folder_trackers,
    headline,
    playable_agents,
    run_folder,
    train_until,
)
from menv.base_env import SINGLE_AGENT
from menv.cli.arguments import (
    Parser,
    count,
    discard_output,
    merge,
    option,
    parsed,
    print_error,
    repeated,
    seed,
    stdout_error,
    stop_bounds,
    switch,
    take_settings,
    with_objects,
)
from menv.cli.reopen import as_opened, reopened, take_trust
from menv.env_calls import close_unused
from menv.env_context import EnvContext
from menv.errors import ConfigError, message_of
from menv.inference.checkpoint_folder import (
    LATEST,
    RUN_CHECKPOINTS,
    SNAPSHOTS,
    find_checkpoint,
    read_manifest,
)
from menv.interrupts import Terminations
from menv.plain_files import opened, path_given
from menv.policy_spec import PolicySpec
from menv.registry import describe_env, make_env, names_module
from menv.sampling.infer_policies import AgentSpaces
from menv.serialization import shell_line, shell_word
from menv.tracking.progress import progress
from menv.tracking.run_folder import Run, RunFolder, cut_after, locked, next_run_dir
from menv.tracking.services import services_of
from menv.tracking.tracker import Tracker
from menv.wrappers.group_agents import as_team, with_equal_spaces

_VARIANTS = {"MAPPO": ("PPO", {"critic_obs": "state"}), "VDN": ("QMIX", {"mixer": "vdn"})}
"""Names of papers for an algorithm with a setting."""

Choice = tuple[str, str, str | None]
"""A pattern, a policy id, and the algorithm of the policy; None for the one of the run."""

_EXAMPLES = """\
examples:
  menv train CartPole-v1 --stop episode_reward_mean=450
  menv train tictactoe --policies per-agent --config gamma=1.0 --stop time_total_s=60
  menv train pettingzoo:classic/connect_four_v3 --self-play --stop time_total_s=600
  menv train pettingzoo:mpe/simple_tag_v3 --policies auto --seed 1
  menv train my_traffic.py:Streets --policy 'car_*=cars' --policy 'light_*=lights:DQN'
  menv train my_game:Corridor --run DQN --config settings.toml --stop num_env_steps_sampled=100000
  menv train --resume runs/tictactoe-PPO-001 --stop training_iteration=200
  menv train CartPole-v1 --run-dir runs/job --resume-or-start --stop training_iteration=200"""


def main(arguments: Sequence[str] | None = None, program: str = "menv train") -> int:
    """Train as the arguments say and return the exit status."""
    args = parsed(train_parser(program), arguments)
    return train(args) if args.seeds is None else train_seeds(args)


def train_parser(program: str) -> Parser:
    """Return the parser of the arguments."""
    parser = Parser(
        prog=program, description="Train policies in an environment.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    env = parser.add_mutually_exclusive_group()
    option(
        env, "env", "a name that menv envs lists, package.module:Class or file.py:Class; optional with --resume",
        nargs="?",
    )  # fmt: skip
    option(env, "--env", "the same as the argument env", dest="named", metavar="ENV")
    option(
        parser, "--run",
        "PPO (default), MAPPO, DQN, SAC, QMIX, VDN, a registered name, module:Class or file.py:Class",
        metavar="ALGORITHM",
    )  # fmt: skip
    take_policies(parser)
    switch(
        parser, "--self-play",
        "play against a league of frozen snapshots of the policies; --config self_play.KEY=VALUE has its settings",
    )  # fmt: skip
    option(parser, "--seeds", "train N runs with the seeds 0 to N - 1, in folders of --run-dir", type=count)
    option(parser, "--jobs", "parallel runs of --seeds", type=count, default=1)
    option(parser, "--seed", "the seed; the same seed gives the same run", type=seed)
    repeated(
        parser, "--stop",
        "stop when this result reaches VALUE, such as evaluation/episode_reward_mean=450; the first bound that is "
        "reached counts; without it, train until Ctrl-C", metavar="KEY=VALUE", type=stop_bounds,
    )  # fmt: skip
    _take_folders(parser)
    option(parser, "--wandb", "log to Weights & Biases", metavar="PROJECT", nargs="?", const="menv")
    option(parser, "--mlflow", "log to MLflow", metavar="EXPERIMENT", nargs="?", const="menv")
    zoo = parser.add_mutually_exclusive_group()
    option(
        zoo, "--zoo",
        "the table of the settings that menv/zoo has for ENV, such as MAPPO (default: that of the algorithm); or your "
        "own file, my.toml or my.toml:TABLE", metavar="TABLE",
    )  # fmt: skip
    switch(zoo, "--no-zoo", "start from the default settings")
    take_settings(parser)
    take_trust(parser)
    switch(parser, "--json", "print results as JSON, one object per line")
    return parser


def _take_folders(parser: Parser) -> None:
    option(parser, "--run-dir", "the run folder (default: runs/ENV-ALGORITHM-NNN)", metavar="DIR")
    switch(parser, "--no-save", "write no run folder")
    option(
        parser, "--save-every", "save after every N iterations (default: each minute, keeping 3)", type=count
    )
    option(
        parser, "--keep-best",
        "save and keep the checkpoint with the highest value of a result, such as evaluation/episode_reward_mean",
        metavar="KEY",
    )  # fmt: skip
    option(parser, "--keep", "keep only the N latest checkpoints", type=count)
    option(parser, "--resume", "resume a run, or start a new run from a folder of checkpoints", metavar="RUN")
    switch(
        parser, "--resume-or-start",
        "resume the run in --run-dir if it has a checkpoint, else start it there; for jobs that may be restarted",
    )  # fmt: skip


def train(args: argparse.Namespace, serve: Sequence[str] | None = None, more: Sequence[Tracker] = ()) -> int:
    """Train until a bound is reached or the user stops the run, and return the exit status.

    Args:
        args: Of `train_parser`.
        serve: The command that serves the run; None for `menv train`.
        more: Trackers in addition to the ones that the arguments name.
    """
    if args.no_save and (args.run_dir or args.save_every or args.keep or args.keep_best):
        raise ConfigError(
            "--no-save: given with an option about the run folder, expected one of them; leave one out"
        )
    args.env = args.named if args.env is None else args.env
    zoo = _zoo_unless_resumed(args)
    shown = progress(args.json)
    does = "resuming" if serve is None else "serving"
    what = f"{does} {args.resume}" if args.resume else f"starting {args.run or 'PPO'} in {args.env}"
    shown.announce(f"menv {menv.__version__}, {what}")
    if zoo is not None:
        mine = [f"{key}={value}" for key, value in zoo.settings.items() if key not in args.config]
        shown.announce(f"settings of {zoo.source}: {', '.join(mine)}; --no-zoo ignores them")
    with algorithm_of(args, zoo) as algo, Terminations(program=True) as termination:
        folder, services = _begun(args, algo, None if zoo is None else zoo.source)
        # A bound that no result reaches, so that a key that no result has is refused.
        bounds = args.stop if args.keep_best is None else {args.keep_best: math.inf, **args.stop}
        rule = StopRule(bounds, evaluates=algo.config.evaluation_interval is not None)
        saving = Saving(
            None if folder is None else folder.checkpoints, args.save_every, args.keep, args.keep_best
        )
        trackers = [shown, *folder_trackers(folder, services), *more]
        status, agents = 0, playable_agents(algo)
        # From here on Ctrl-C saves the run.
        shown.announce(headline(algo, folder))
        if done := rule.reached(algo.counts()):
            print_error(f"menv train: nothing to train: {done} already, the bound of --stop")
        try:
            train_until(algo, rule, saving, trackers, lambda: "stdout is closed" if shown.failed else "")
        except KeyboardInterrupt:
            status = 128 + (termination.number or signal.SIGINT)
    if isinstance(shown.failed, OSError):
        discard_output(sys.stdout)
        if status == 0:
            print_error(
                f"menv train: error: {stdout_error(shown.failed)}; stopped after the current iteration"
            )
            return 1
    if status == 0 and shown.failed is not None:
        raise shown.failed
    if folder is not None:
        again = "" if status == 0 else _resumed(args, folder.path, serve)
        lines = _next_steps(folder.path, agents, again)
        if saving.best is not None:
            lines.append(f"  best: {shell_word(str(saving.best))}")
        print_error("\n".join(lines))
    return status


def _zoo_unless_resumed(args: argparse.Namespace) -> ZooSettings | None:
    """Return the settings of the zoo for a new run, and complete the arguments with what they say."""
    zoo = _zoo(args)
    if zoo is not None:
        args.run = args.run if _is_own(args.run) else zoo.algorithm
        if not args.stop and zoo.env_steps is not None:
            args.stop = {TIMESTEPS: zoo.env_steps}
    if args.resume_or_start and _has_checkpoint(args):
        # The checkpoint has policies and all settings.
        args.resume, args.policies, args.policy = args.run_dir, None, []
        return None
    return zoo


def _has_checkpoint(args: argparse.Namespace) -> bool:
    """Return whether `--resume-or-start` resumes; otherwise the results of a run that has saved nothing are removed."""
    if args.run_dir is None or args.resume is not None:
        raise ConfigError(
            "--resume-or-start: given without --run-dir or with --resume, expected --run-dir, which says what to "
            "resume; write --run-dir DIR --resume-or-start"
        )
    path = path_given("run_dir", args.run_dir)
    if (path / RUN_CHECKPOINTS / LATEST).exists():
        return True
    # The run folder is refused later where this is not possible.
    with suppress(OSError, ConfigError), locked(Run(path).path):
        cut_after(path, 0)
    return False


def _begun(
    args: argparse.Namespace, algo: Algorithm, zoo: str | None
) -> tuple[RunFolder | None, list[Tracker]]:
    """Return the run folder and the trackers of services; a service that refuses the run leaves no folder."""
    algo.run_dir = None if args.no_save else _run_dir(args, algo)
    services = services_of(algo.run_dir, {"wandb": args.wandb, "mlflow": args.mlflow})
    try:
        for service in services:
            service.begin(algo)
        return None if algo.run_dir is None else run_folder(algo, algo.run_dir, zoo), services
    except BaseException as error:
        for service in services:
            service.raised(error)
            service.end(message_of(error))
        raise


def _run_dir(args: argparse.Namespace, algo: Algorithm) -> Path:
    if args.run_dir is not None:
        return path_given("run_dir", args.run_dir)
    if args.resume is not None and (Path(args.resume) / RUN_CHECKPOINTS).is_dir():
        return Path(args.resume)
    return next_run_dir(env_name(algo.config.env), algo.recipe.name)


def _resumed(args: argparse.Namespace, path: Path, serve: Sequence[str] | None) -> str:
    """Return the command that resumes a run, "" if it needs what no command can name."""
    if serve is None:
        opened = as_opened(path)
        return opened and f"menv train --resume {opened}"
    # A server that began with a checkpoint has written a run folder since then.
    words = [str(path) if word == args.resume else word for word in serve]
    return shell_line([*words, *["--trust"] * (args.trust and "--trust" not in words)])


def _next_steps(path: Path, agents: list[str] | None, again: str) -> list[str]:
    where, opened = shell_word(str(path)), as_opened(path)
    levels = bool(read_manifest(find_checkpoint(str(path))).get(SNAPSHOTS))
    steps = {"run folder": where, "  resume": again, "  report": f"menv report {where}"}
    if opened:
        steps["  evaluate"] = f"menv evaluate {opened}"
    if opened and agents is not None:
        steps["  watch"] = f"menv watch {opened}"
    if opened and agents:
        steps["  play"] = f"menv play {opened} --as {shell_word(agents[0])}{' --level easy' * levels}"
    if opened and levels:
        steps["  match"] = f"menv match {shell_word(f'{path}:easy')} {shell_word(f'{path}:hard')} {opened}"
    return [f"{name}: {command}" for name, command in steps.items() if command]


def _zoo(args: argparse.Namespace) -> ZooSettings | None:
    """Return the settings of the zoo for a new run, None for a run without them."""
    env = args.env or args.config.get("env")
    if args.no_zoo or args.resume is not None or not isinstance(env, str):
        return None
    if args.zoo is None:
        return zoo_settings(env, args.run or "PPO")
    # The table of an algorithm of yours has the name of its recipe.
    name = algorithm_class(args.run, "--run").recipe.name if _is_own(args.run) else args.run
    found = required_zoo_settings(env, args.zoo, name or "PPO")
    if name not in (None, found.algorithm):
        raise ConfigError(
            f"--run {args.run}: given with --zoo {args.zoo}, which is for {found.algorithm}, expected one algorithm; "
            "leave --run out"
        )
    return found


def _is_own(run: str | None) -> bool:
    return run is not None and names_module(run)


def algorithm_of(args: argparse.Namespace, zoo: ZooSettings | None) -> Algorithm:
    """Return a new algorithm, or one resumed from a checkpoint."""
    config = with_objects(args.config)
    if args.self_play:
        config = merge({"self_play": {"enabled": True}}, config)
    if args.seed is not None:
        config = merge(config, {"seed": args.seed})
    if args.resume is not None:
        if args.policies is not None or args.policy:
            raise ConfigError(
                "--policies, --policy: given with --resume, expected neither, because a checkpoint has policies; leave "
                "them out"
            )
        kind = Algorithm if args.run is None else algorithm_class(args.run, "--run")
        return from_checkpoint(kind, args, args.resume, config, learns=True)
    env = args.env or config.get("env")
    if env is None:
        raise ConfigError(
            "env: none is given, expected a name that menv envs lists, package.module:Class or file.py:Class; write "
            "menv train CartPole-v1"
        )
    run, known = _VARIANTS.get(args.run, (args.run or "PPO", {}))
    kind = algorithm_class(run, "--run")
    known = dict(known if zoo is None else with_objects(zoo.settings))
    merged = merge(known, config)
    if kind.recipe.config_class.groups_agents and not args.policy:
        found = {} if "multiagent" in merged else _policy_for_each_group(env, merged)
    else:
        found = chosen_policies(args.policies, args.policy, env, merged)
    for section, chosen in found.items():
        known[section] = {**known.get(section, {}), **chosen}
    return kind(config=merge(known, config), env=env)


def from_checkpoint(
    kind: type[Algorithm], args: argparse.Namespace, folder: str, config: Mapping[str, Any], *, learns: bool
) -> Algorithm:
    """Return an algorithm resumed from a checkpoint, with what the run names if `--trust` is given."""
    load = partial(kind.from_checkpoint, folder, config, args.env)
    return reopened(args, folder, load, learns=learns)


# `--policies` and `--policy`: they become the settings `multiagent.policies` and, as pairs of patterns and policy ids,
# `multiagent.policy_mapping_fn`.


def take_policies(parser: argparse.ArgumentParser) -> None:
    """Add the options, stored as `policies` and `policy`."""
    either = parser.add_mutually_exclusive_group()
    option(
        either, "--policies",
        "one policy for all agents, one for each of possible_agents, or one for all agents with equal spaces (shared)",
        metavar="{shared,per-agent,auto}", type=_policies_kind,
    )  # fmt: skip
    repeated(
        either, "--policy",
        "the policy of the agents whose names match, such as 'car_*=cars' or 'light_*=lights:DQN'; the first pattern "
        "that matches counts", metavar="PATTERN=ID[:ALGORITHM]", type=_policy_choice,
    )  # fmt: skip


def _policies_kind(text: str) -> str:
    if text not in ("shared", "per-agent", "auto"):
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected shared, per-agent or auto; per-agent gives each agent its policy"
        )
    return text


def _policy_choice(text: str) -> Choice:
    pattern, _, policy = text.rpartition("=")
    name, colon, algorithm = policy.partition(":")
    if not pattern or not name or (colon and not algorithm):
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected PATTERN=ID or PATTERN=ID:ALGORITHM, such as 'car_*=cars:DQN'"
        )
    return pattern, name, algorithm or None


def chosen_policies(
    kind: str | None, choices: Sequence[Choice], env: Any, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that the two options mean for an environment.

    Raises:
        ConfigError: A policy has two algorithms, or the environment does not list its agents or their spaces.
    """
    policies: dict[str, PolicySpec | None] = {}
    if kind == "per-agent":
        policies = dict.fromkeys(_spaces_by_agent(env, config, "--policies per-agent"))
        choices = [("*", "*", None)]
    elif kind == "auto":
        spaces = _spaces_by_agent(env, config, "--policies auto")
        choices = [] if [*spaces] == [SINGLE_AGENT] else _by_spaces(spaces)
    for _, policy, algorithm in choices if kind != "per-agent" else ():
        spec = None if algorithm is None else PolicySpec(algorithm=algorithm)
        if policies.setdefault(policy, spec) != spec:
            raise ConfigError(
                f"--policy: {policy} has two algorithms, expected one; give {policy} the same one each time"
            )
    if not policies:
        return {}
    mapping = [(pattern, policy) for pattern, policy, _ in choices]
    return {"multiagent": {"policies": policies, "policy_mapping_fn": mapping}}


def _spaces_by_agent(env: Any, config: Mapping[str, Any], option: str) -> dict[str, Any]:
    made = make_env(env, EnvContext(config.get("env_config", {})))
    try:
        single = [SINGLE_AGENT] if isinstance(made, gym.Env) else []
        agents = getattr(made, "possible_agents", None) or single
        kinds = [AgentSpaces(made, kind, config.get(f"{kind}_space")) for kind in ("observation", "action")]
        found = {str(agent): [kind.found(agent) for kind in kinds] for agent in agents}
    finally:
        close_unused(made)
    if not found:
        raise ConfigError(
            f"{option}: {describe_env(env)} lists no possible_agents, expected their ids; write --policy 'PATTERN=ID'"
        )
    return found


def _policy_for_each_group(env: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one policy for each group of agents that the run forms, {} for one group or none."""
    made = as_team(make_env(env, EnvContext(config.get("env_config", {}))), None, grouped=True)
    groups: Mapping[str, Any] = getattr(made, "run_groups", {})
    close_unused(made)
    if len(groups) < 2:
        return {}
    # A game of policies on disk asks for members.
    mapping = [
        (escape(str(agent)), group) for group, members in groups.items() for agent in (group, *members)
    ]
    return {"multiagent": {"policies": dict.fromkeys(groups), "policy_mapping_fn": mapping}}


def _by_spaces(spaces: Mapping[str, Any]) -> list[Choice]:
    """Return one policy for all agents with equal spaces, with the name of the agents without their numbers."""
    choices: list[Choice] = []
    for stem, agents in with_equal_spaces(spaces):
        taken = not stem or len(agents) == 1 or stem in {*spaces, *(policy for _, policy, _ in choices)}
        choices += [(escape(agent), agents[0] if taken else stem, None) for agent in agents]
    return choices


def train_seeds(args: argparse.Namespace) -> int:
    """Train with the seeds 0, 1, ... and return the highest exit status."""
    if args.seed is not None or args.resume is not None or args.no_save:
        raise ConfigError(
            "--seeds: given with --seed, --resume or --no-save, expected none of them, because each seed is a run with "
            "its own folder; leave them out"
        )
    env = args.env or args.named or args.config.get("env")
    base = Path(args.run_dir) if args.run_dir else next_run_dir(env_name(env), args.run or "PPO")
    base.mkdir(parents=True, exist_ok=True)
    folders = [base / f"seed-{seed}" for seed in range(args.seeds)]
    # The options that say which seeds there are, and where.
    own = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in ("--seeds", "--jobs", "--run-dir"):
        own.add_argument(name)
    words = [sys.executable, "-m", "menv.cli", "train", *own.parse_known_args(args.typed[2:])[1]]
    commands = [
        [*words, "--seed", str(seed), "--run-dir", str(folder)] for seed, folder in enumerate(folders)
    ]
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(args.jobs) as pool, Terminations(program=True) as termination:
        try:
            statuses = list(pool.map(partial(_trained, running), commands, folders))
        except KeyboardInterrupt:
            # They save what they have learned.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            return 128 + (termination.number or signal.SIGINT)
    print_error(f"plot: menv plot {shell_word(str(base))}/seed-*[0-9] -o {shell_word(base.name)}.png")
    return max(statuses)


def _trained(running: list[subprocess.Popen[bytes]], command: Sequence[str], folder: Path) -> int:
    log = folder.with_suffix(".log")
    with opened(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        running.append(process)
        status = process.wait()
    print_error(f"{folder}: {'trained' if status == 0 else f'exit status {status}, see {log}'}")
    return status
