"""`menv sweep`: searches settings with Optuna; each run of a trial is a `menv train` in a separate process.

    runs/sweep/
        sweep.json            the sweep of this folder
        journal.log           Optuna's storage, from which the same command resumes
        trial-000-seed-0/     a run folder for each seed of a trial
        trials.csv            all trials: state, score, settings, errors
        report.html           curves of the completed trials
        best.json             the best settings, for `menv train --config`

The score of a trial is the mean of its seeds' last values of the metric. The pruner follows the first seed; the other
seeds of a pruned trial do not run.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from menv import algorithms
from menv.algorithms.config.setting import Settings, known_values, setting, table
from menv.algorithms.learn import StopRule
from menv.algorithms.results import TrainResult
from menv.cli.arguments import (
    IMPORT,
    Parser,
    count,
    merge,
    parsed,
    print_error,
    print_text,
    read_settings,
    take_imports,
    with_objects,
    with_sections,
)
from menv.cli.train import train_parser
from menv.errors import ConfigError, MissingExtraError, message_of
from menv.plain_files import inside, opened, read, replacing, writing
from menv.serialization import read_json, shell_line
from menv.serving.interrupts import Terminations
from menv.tracking.report import write_report
from menv.tracking.run_folder import Run, locked, scalars

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError as error:
    raise MissingExtraError(
        "menv sweep: the package optuna is not installed, expected it; run: pip install 'menv-rl[sweep]'"
    ) from error

_RANGE = "expected {float = [low, high]}, {int = [low, high]}, both with log = true or step, or {choice = [values]}"
_TAIL, _MOST_JOURNAL = 1 << 16, 1 << 28
"""Bytes at the end of a log that are read, and of a journal."""
_RETRIES = "retries"
"""The attribute of a trial that repeats a failed one: its number."""
_REQUIRED = {"stop": "num_env_steps_sampled = 20_000", "space": "lr = {float = [1e-4, 1e-2]}"}


@dataclass(frozen=True)
class SweepFile(Settings):
    """What a sweep file says; `menv sweep --help` explains the keys."""

    _where = "sweep"
    env: str = ""
    run: Literal["PPO", "DQN", "QMIX"] = "PPO"
    metric: str = "episode_reward_mean"
    direction: Literal["maximize", "minimize"] = "maximize"
    seeds: int = 1
    pruner: Literal["none", "median", "hyperband"] = "none"
    pruner_options: Mapping[str, Any] = setting({})
    options: str | None = None
    stop: Mapping[str, float] = setting({})
    config: Mapping[str, Any] = setting({})
    space: Mapping[str, Any] = setting({})


_EPILOG = """\
a sweep file:
  env = "CartPole-v1"
  run = "PPO"                       # the algorithm
  metric = "episode_reward_mean"    # a result key, evaluation/episode_reward_mean for a nested one
  direction = "maximize"            # or "minimize"
  seeds = 3                         # runs of each trial; its score is their mean
  pruner = "median"                 # or "hyperband", "none"; pruner_options has the arguments of Optuna's class
  options = "--no-zoo"              # more options of menv train, such as "--policies per-agent"

  [stop]                            # when a run ends, as menv train --stop
  num_env_steps_sampled = 20_000

  [config]                          # settings of all trials
  num_envs_per_worker = 8

  [space]                           # settings that are searched
  lr = {float = [1e-4, 1e-2], log = true}
  num_sgd_iter = {int = [2, 10]}
  model.fcnet_hiddens = {choice = [[64, 64], [256, 256]]}"""


def main(arguments: Sequence[str] | None = None, program: str = "menv sweep") -> int:
    """Run or resume the sweep of the arguments and return the exit status: 1 if no trial was completed."""
    parser = Parser(
        prog=program, description="Search settings with Optuna; the same command resumes a sweep.", epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("sweep", metavar="SWEEP", help="a .toml or .json file, see below")
    parser.add_argument(
        "--trials", metavar="N", type=count, default=20,
        help="trials of the whole sweep, with those before it was resumed (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", metavar="N", type=count, default=1, help="runs at the same time (%(default)s)"
    )
    parser.add_argument(
        "--retry-failed", action="store_true",
        help="run failed trials again, as new ones with the same settings that do not count for --trials",
    )  # fmt: skip
    parser.add_argument("--dir", metavar="DIR", help="the folder of the sweep (runs/NAME for NAME.toml)")
    take_imports(parser)
    args = parsed(parser, arguments)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = SweepFile(**known_values(SweepFile, read_settings(args.sweep), f"{args.sweep}: "))
    space, pruner = _checked(file), _pruner(file)
    folder = Path(args.dir or Path("runs", Path(args.sweep).stem))
    imports = [word for module in args.modules for word in (IMPORT, module)]
    with writing("sweep", f"the folder {folder}"), Terminations(program=True) as termination:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            sweep = Sweep(file, space, pruner, folder, imports)
            if args.retry_failed:
                sweep.retry_failed()
            try:
                sweep.search(args.trials, args.jobs, lambda line: print_text(line, program))
            except KeyboardInterrupt:
                print_error(f"interrupted; running trials were saved\n  resume: {shell_line(args.typed)}")
                return 128 + (termination.number or signal.SIGINT)
    print_text("\n".join(sweep.summary()), program)
    return 0 if sweep.ranking() else 1


class TrialFailedError(Exception):
    """A run of a trial ended with an error, or was stopped."""


class Sweep:
    """A sweep in its folder; raises ConfigError if the folder holds something else."""

    def __init__(
        self,
        file: SweepFile,
        space: Mapping[str, Dimension],
        pruner: optuna.pruners.BasePruner,
        folder: Path,
        imports: Sequence[str],
    ) -> None:
        self.file, self.space, self.folder, self._imports = file, space, folder, imports
        self._options = shlex.split(file.options or "")
        self._write_file()
        self.study = self._open_study(pruner)
        self._running = [trial for trial in self.study.trials if not trial.state.is_finished()]
        self._lock = threading.RLock()
        self._processes: list[subprocess.Popen[str]] = []
        self._is_stopped = False
        # Until a run has reported the metric, a wrong setting ends the sweep.
        self._has_reported = bool(self.ranking())

    def _write_file(self) -> None:
        path, mine = self.folder / "sweep.json", json.loads(json.dumps(asdict(self.file)))
        self._is_new = not path.exists()
        if not self._is_new:
            before: dict[str, Any] = {}
            data = read(path)
            with suppress(ValueError, TypeError, RecursionError):
                before = dict(read_json(data))
            if other := [key for key in mine if mine[key] != before.get(key)]:
                raise ConfigError(
                    f"{self.folder}: holds another sweep ({', '.join(other)} differ), expected the same one; choose "
                    "another --dir, or delete it"
                )
        elif any(one.name != ".lock" for one in self.folder.iterdir()):
            raise ConfigError(
                f"{self.folder}: holds something else, expected a new folder; choose another --dir"
            )
        else:
            with opened(path, "x", encoding="utf-8") as file:
                file.write(json.dumps(mine, indent=2))

    def _open_study(self, pruner: optuna.pruners.BasePruner) -> optuna.Study:
        journal = self.folder / "journal.log"
        with suppress(FileNotFoundError), opened(journal, "r+b") as file:
            # A sweep that was killed, or had no room, may have written half a line.
            file.truncate(read(journal, _MOST_JOURNAL).rfind(b"\n") + 1)
        try:
            return optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))), study_name="sweep",
                direction=self.file.direction, load_if_exists=True, pruner=pruner,
            )  # fmt: skip
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{journal}: damaged ({error}), expected Optuna's journal; delete the folder, or choose another --dir"
            ) from error

    def retry_failed(self) -> None:
        """Begin a trial with the settings of each failed one that has none yet."""
        begun = {one.user_attrs.get(_RETRIES) for one in self.study.trials}
        for one in self.study.get_trials(states=(TrialState.FAIL,)):
            if one.number not in begun and one.params.keys() == self.space.keys():
                again = optuna.trial.create_trial(
                    state=TrialState.RUNNING, params=one.params, distributions=one.distributions,
                    user_attrs={_RETRIES: one.number},
                )  # fmt: skip
                self.study.add_trial(again)
        self._running = [trial for trial in self.study.trials if not trial.state.is_finished()]

    def _count(self) -> int:
        """Return how many trials there are, a failed one and the one that repeats it counted once."""
        return sum(_RETRIES not in trial.user_attrs for trial in self.study.trials)

    def search(self, trials: int, jobs: int, show: Callable[[str], None]) -> None:
        """Run trials until there are `trials` in all, `jobs` runs at a time.

        Raises:
            ConfigError: A setting is wrong in every trial, or the first run that ended has no value of the metric.
        """
        if done := self._count() - len(self._running):
            show(f"resuming {self.folder}, {done} of {trials} trials are done")
        try:
            with ThreadPoolExecutor(jobs) as pool:
                workers = [pool.submit(self._work, trials, show) for _ in range(jobs)]
                try:
                    for worker in wait(workers, return_when=FIRST_EXCEPTION).done:
                        worker.result()
                finally:
                    self._stop()
        except ConfigError:
            if self._is_new and not any(trial.user_attrs for trial in self.study.trials):
                shutil.rmtree(self.folder)
            raise
        self._write()
        if best := self.ranking()[:10]:
            runs = [self._run_folder(trial.number, seed) for trial in best for seed in range(self.file.seeds)]
            write_report(runs, self.folder / "report.html")

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for process in self._processes:
                process.terminate()

    def _work(self, trials: int, show: Callable[[str], None]) -> None:
        while (trial := self._next(trials)) is not None:
            try:
                scores = [self._score(trial, seed) for seed in range(self.file.seeds)]
            except (ConfigError, TrialFailedError) as error:
                if self._is_stopped:
                    return
                if isinstance(error, ConfigError) and not self._has_reported:
                    raise
                trial.set_user_attr("error", message_of(error))
                self.study.tell(trial, state=TrialState.FAIL)
            except optuna.TrialPruned:
                self.study.tell(trial, state=TrialState.PRUNED)
            else:
                self.study.tell(trial, statistics.fmean(scores))
            with self._lock:
                self._write()
                show(self._line(self.study.trials[trial.number]))

    def _next(self, trials: int) -> optuna.Trial | None:
        with self._lock:
            while self._running:
                trial = self._running.pop(0)
                if trial.params.keys() == self.space.keys():
                    return optuna.Trial(self.study, trial._trial_id)
                self.study.tell(trial.number, state=TrialState.FAIL)
            number = len(self.study.trials)
            if self._is_stopped or self._count() >= trials:
                return None
            # The sampler of a resumed sweep must not repeat its first samples.
            self.study.sampler = optuna.samplers.TPESampler(seed=number)
            return self.study.ask({name: one.distribution for name, one in self.space.items()})

    def _score(self, trial: optuna.Trial, seed: int) -> float:
        key = f"seed {seed}"
        if key not in trial.user_attrs:
            self._run(trial, seed)
            run = Run(self._run_folder(trial.number, seed))
            found = list(filter(math.isfinite, run.progress().get(self.file.metric, ())))
            if not found:
                why = f"no result of a whole run has a number of {self.file.metric}"
                trial.set_user_attr("error", why)
                raise ConfigError(f"sweep: {why}, expected one; {run.path / 'progress.csv'} lists the keys")
            trial.set_user_attr(key, float(found[-1]))
        return float(trial.user_attrs[key])

    def _run(self, trial: optuna.Trial, seed: int) -> None:
        log = self._run_folder(trial.number, seed).with_suffix(".log")
        with opened(log, "a", encoding="utf-8") as stderr:
            # Held until the run ends, also where the sweep was killed: the next sweep waits for it here.
            with suppress(ImportError):
                import fcntl

                fcntl.flock(stderr, fcntl.LOCK_EX)
            with self._lock:
                if self._is_stopped:
                    raise TrialFailedError
                process = subprocess.Popen(
                    self._command(trial, seed), stdout=subprocess.PIPE, stderr=stderr, text=True,
                    env={"OMP_NUM_THREADS": "1", **os.environ}, start_new_session=True,
                )  # fmt: skip
                self._processes.append(process)
        with process:
            try:
                self._follow(trial, seed, process)
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            kind = ConfigError if process.returncode == 2 else TrialFailedError
            raise kind(_reason(log, process.returncode))
        log.unlink()

    def _command(self, trial: optuna.Trial, seed: int) -> list[str]:
        return [
            sys.executable, "-m", "menv.cli", "train", self.file.env, "--run", self.file.run, *self._options,
            "--run-dir", str(self._run_folder(trial.number, seed)), "--resume-or-start",
            "--config", json.dumps(self._settings(trial.params)),
            "--stop", json.dumps(dict(self.file.stop)), "--seed", str(seed), "--json", *self._imports,
        ]  # fmt: skip

    def _follow(self, trial: optuna.Trial, seed: int, process: subprocess.Popen[str]) -> None:
        """Report the results of a run to the pruner; raise if the run is not worth continuing."""
        reported = max(self.study.trials[trial.number].intermediate_values, default=0)
        for line in process.stdout or ():
            result: Any = None
            # The environment may print too.
            with suppress(ValueError):
                result = json.loads(line)
            if not isinstance(result, dict) or "training_iteration" not in result:
                continue
            config = Run(self._run_folder(trial.number, seed)).config["config"]
            _refuse_unknown_keys(self.file, result, bool(config.get("evaluation_interval")))
            value, iteration = dict(scalars(result)).get(self.file.metric), result["training_iteration"]
            self._has_reported |= value is not None
            if seed == 0 and value is not None and iteration > reported:
                trial.report(value, iteration)
                if trial.should_prune():
                    raise optuna.TrialPruned

    def _run_folder(self, number: int, seed: int) -> Path:
        return inside(self.folder, f"trial-{number:03d}-seed-{seed}")

    def _settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        own = [one.settings(params[name]) for name, one in self.space.items()]
        return reduce(merge, own, with_sections(self.file.config))

    def ranking(self) -> list[optuna.trial.FrozenTrial]:
        """Return the completed trials, the best first."""
        done = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return sorted(done, key=lambda one: one.value or 0.0, reverse=self.file.direction == "maximize")

    def _write(self) -> None:
        seeds = [f"seed {seed}" for seed in range(self.file.seeds)]
        with (
            replacing(self.folder / "trials.csv") as draft,
            opened(draft, "w", encoding="utf-8", newline="") as file,
        ):
            rows = csv.DictWriter(
                file, ["trial", "state", "score", *seeds, *self.space, "error"], extrasaction="ignore"
            )
            rows.writeheader()
            for one in self.study.get_trials(deepcopy=False):
                score = one.value if one.state is TrialState.COMPLETE else None
                about = {"trial": one.number, "state": one.state.name.lower(), "score": score}
                rows.writerow({**one.params, **one.user_attrs, **about})
        for best in self.ranking()[:1]:
            settings = json.dumps(self._settings(best.params), indent=2)
            with replacing(self.folder / "best.json") as draft:
                draft.write_text(settings + "\n", "utf-8")

    def _line(self, trial: optuna.trial.FrozenTrial) -> str:
        what = {
            TrialState.COMPLETE: f"{trial.value or 0.0:.6g}",
            TrialState.PRUNED: f"pruned after iteration {trial.last_step}",
        }.get(trial.state, f"failed: {trial.user_attrs.get('error')}")
        sampled = [
            f"{name}={f'{value:.4g}' if isinstance(value, float) else value}"
            for name, value in trial.params.items()
        ]
        return f"trial {trial.number}: {what}  ({', '.join(sampled)})"

    def summary(self) -> list[str]:
        """Return lines about all trials, the best settings and the files."""
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        kinds = {"completed": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        counts = ", ".join(f"{states.count(state)} {kind}" for kind, state in kinds.items())
        lines = [f"{len(states)} trials: {counts}", f"all trials: {self.folder / 'trials.csv'}"]
        if ranking := self.ranking():
            stop = [word for key, bound in self.file.stop.items() for word in ("--stop", f"{key}={bound}")]
            run = ["menv", "train", self.file.env, "--run", self.file.run, *self._options, *self._imports]
            lines += ["best:", *(f"  {self._line(trial)}" for trial in ranking[:3])]
            lines.append(f"curves: {self.folder / 'report.html'}")
            lines.append(f"train: {shell_line([*run, '--config', str(self.folder / 'best.json'), *stop])}")
        return lines


def _reason(log: Path, status: int) -> str:
    """Return why a run ended with a status other than 0."""
    with opened(log) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"exit status {status}")
    reason = f"killed by {signal.Signals(-status).name}" if status < 0 else last
    reason = reason.removeprefix("menv train: error: ")[:500]
    return reason if status == 2 else f"{reason}; {log} has more"


class Dimension(NamedTuple):
    """A setting that is searched, by its path; Optuna has choices as JSON, since it stores no lists."""

    path: tuple[str, ...]
    distribution: optuna.distributions.BaseDistribution

    def settings(self, sampled: Any) -> dict[str, Any]:
        """Return the settings that a parameter of Optuna stands for."""
        value = json.loads(sampled) if isinstance(sampled, str) else sampled
        return dict(reduce(lambda inner, part: {part: inner}, reversed(self.path), value))


def _checked(file: SweepFile) -> dict[str, Dimension]:
    """Return the settings that are searched, by their dotted names; refuse what no trial can run with."""
    try:
        json.dumps(asdict(file))
        options = shlex.split(file.options or "")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"sweep: {error}, expected numbers, strings, lists and tables, and options as in a shell; correct it"
        ) from None
    for key, example in _REQUIRED.items():
        if not getattr(file, key):
            raise ConfigError(f"sweep: no {key}, expected one; add [{key}] with {example}")
    stop = json.dumps(dict(file.stop))
    args = train_parser("menv sweep").parse_args([file.env, *options, "--stop", stop])
    # Callbacks may add keys to results.
    if not any("callbacks" in settings for settings in (file.config, file.space, *args.config)):
        keys = TrainResult.__required_keys__ | TrainResult.__optional_keys__ - {"evaluation"}
        _refuse_unknown_keys(file, dict.fromkeys(keys), evaluates=True)
    space = {".".join(one.path): one for one in _dimensions(with_sections(file.space))}
    _check(file.run, "config", with_sections(file.config))
    for one in space.values():
        ends: Any = one.distribution
        for sampled in getattr(ends, "choices", None) or (ends.low, ends.high):
            _check(file.run, "space", one.settings(sampled))
    return space


def _refuse_unknown_keys(file: SweepFile, result: Mapping[str, Any], evaluates: bool) -> None:
    """Raise ConfigError if no result will have the metric or the key of a bound, as far as this one shows."""
    metric = f"{file.metric}: "
    rule = StopRule({file.metric: math.inf, **file.stop}, evaluates)
    if wrong := rule.impossible(result).replace(f"stop {metric}", f"metric {metric}", 1):
        raise ConfigError(f"sweep: {wrong}")


def _check(run: str, where: str, settings: Mapping[str, Any]) -> None:
    """Refuse an unknown setting and a value that it cannot have."""
    config_class = getattr(algorithms, f"{run}Config")
    for name, value in known_values(config_class, with_objects(settings), f"{where}: ").items():
        table(config_class)[name].read(where, value)


def _dimensions(space: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Dimension]:
    for name, entry in space.items():
        inner = (*path, name)
        where = f"space.{'.'.join(inner)}"
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{where}: {entry!r:.60}, {_RANGE}")
        kinds = entry.keys() & {"float", "int", "choice"}
        if entry and not kinds:
            yield from _dimensions(entry, inner)
            continue
        try:
            yield Dimension(inner, _distribution(*kinds, **entry))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {str(error).rstrip('.')}, {_RANGE}") from None


def _distribution(kind: str, **entry: Any) -> optuna.distributions.BaseDistribution:
    values = entry.pop(kind)
    allowed: Any = {"choice": object, "float": (int, float), "int": int}[kind]
    if not isinstance(values, list) or not all(isinstance(value, allowed) for value in values):
        raise ValueError(f"{kind} = {values!r:.60}")
    if kind == "choice":
        return optuna.distributions.CategoricalDistribution([json.dumps(value) for value in values], **entry)
    name = "IntDistribution" if kind == "int" else "FloatDistribution"
    return cast(optuna.distributions.BaseDistribution, getattr(optuna.distributions, name)(*values, **entry))


def _pruner(file: SweepFile) -> optuna.pruners.BasePruner:
    name = {"none": "NopPruner", "median": "MedianPruner", "hyperband": "HyperbandPruner"}[file.pruner]
    try:
        return cast(optuna.pruners.BasePruner, getattr(optuna.pruners, name)(**file.pruner_options))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"sweep: pruner_options of {file.pruner!r}: {str(error).rstrip('.')}, expected arguments of Optuna's "
            f"{name}; see its documentation"
        ) from None
