"""`menv sweep`: searches settings with Optuna; each run of a trial is a `menv train` in a separate process.

    runs/sweep/
        sweep.db              Optuna's storage, from which the same command resumes
        trial-000-seed-0/     a run folder for each seed of a trial
        report.html           curves of the completed trials
        best.json             the best settings, for `menv train --config`

The score of a trial is the mean of its seeds' last values of the metric. The pruner follows the first seed.
"""

from __future__ import annotations

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from menv.algorithms.config.setting import Settings, known_values, setting
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
    with_sections,
)
from menv.errors import ConfigError, MissingExtraError
from menv.interrupts import Terminations
from menv.plain_files import inside, opened, read, replacing, writing
from menv.serialization import shell_line
from menv.tracking.report import write_report
from menv.tracking.run_folder import Run, locked, scalars

try:
    import optuna
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise MissingExtraError(
        "menv sweep: the package optuna is not installed; run: pip install 'menv-rl[sweep]'"
    ) from error

_RANGE = "expected {float = [low, high]}, {int = [low, high]}, both with log = true or step, or {choice = [values]}"
_SUGGEST = {"float": "suggest_float", "int": "suggest_int", "choice": "suggest_categorical"}
_PRUNERS = {"none": "NopPruner", "median": "MedianPruner", "hyperband": "HyperbandPruner"}


@dataclass(frozen=True)
class SweepFile(Settings):
    """What a sweep file says; `docs/how_to/sweeps.md` explains the keys."""

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


def main(arguments: Sequence[str] | None = None, program: str = "menv sweep") -> int:
    """Run or resume the sweep of the arguments and return the exit status: 1 if no trial was completed."""
    parser = Parser(
        prog=program, description="Search settings with Optuna; the same command resumes a sweep."
    )
    parser.add_argument(
        "sweep", metavar="SWEEP", help="a .toml or .json file, as docs/how_to/sweeps.md describes it"
    )
    parser.add_argument(
        "--trials", metavar="N", type=count, default=20,
        help="trials of the whole sweep, with those before it was resumed (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", metavar="N", type=count, default=1, help="runs at the same time (%(default)s)"
    )
    parser.add_argument("--retry-failed", action="store_true", help="continue failed trials, too")
    parser.add_argument("--dir", metavar="DIR", help="the folder of the sweep (runs/NAME for NAME.toml)")
    take_imports(parser)
    args = parsed(parser, arguments)
    file = SweepFile(**known_values(SweepFile, read_settings(args.sweep), f"{args.sweep}: "))
    folder = Path(args.dir or Path("runs", Path(args.sweep).stem))
    imports = [word for module in args.modules for word in (IMPORT, module)]
    with writing("sweep", f"the folder {folder}"), Terminations(program=True) as termination:
        sweep = Sweep(file, folder, imports, lambda line: print_text(line, program))
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            try:
                sweep.search(args.trials, args.jobs, retry=args.retry_failed)
            except KeyboardInterrupt:
                print_error(f"interrupted; running trials were saved\n  resume: {shell_line(args.typed)}")
                return 128 + (termination.number or signal.SIGINT)
    print_text("\n".join(sweep.summary()), program)
    return 0 if sweep.ranking() else 1


class TrialFailedError(Exception):
    """A run of a trial ended with an error, or was stopped."""


class Sweep:
    """A sweep in its folder; raises ConfigError if its file or the folder is wrong."""

    def __init__(
        self, file: SweepFile, folder: Path, imports: Sequence[str], show: Callable[[str], None]
    ) -> None:
        self.file, self.folder, self._imports, self._show = file, folder, imports, show
        self._processes: list[subprocess.Popen[str]] = []
        self._lock, self._is_stopped = threading.Lock(), False
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        name = _PRUNERS[file.pruner]
        try:
            self._text = json.dumps(asdict(file))
            self._options = shlex.split(file.options or "")
            self._pruner = getattr(optuna.pruners, name)(**file.pruner_options)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"sweep: {error}, expected numbers, strings, lists and tables, options as in a shell, and arguments of "
                f"Optuna's {name} as pruner_options; correct it"
            ) from None
        self.space = dict(_entries(with_sections(file.space), ""))
        if not file.stop or not self.space:
            raise ConfigError("sweep: no stop or no space, expected both; see docs/how_to/sweeps.md")
        self._suggest(optuna.create_study().ask())

    def search(self, trials: int, jobs: int, *, retry: bool = False) -> None:
        """Run trials until there are `trials` in all, `jobs` runs at a time; `retry` continues failed ones.

        Raises:
            ConfigError: The folder holds another sweep, or the first run was refused or has no value of the metric.
        """
        self._open()
        is_new, left = not self.study.trials, trials - self._take_up(retry)
        # Ctrl-C reaches the main thread only, which must not be in a trial.
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(
                    self.study.optimize, self._objective, max(left, 0), n_jobs=jobs, catch=TrialFailedError,
                    callbacks=[self._ended],
                ).result()  # fmt: skip
            except BaseException as error:
                self._stop()
                if is_new and isinstance(error, ConfigError) and not [*self.folder.glob("*/checkpoints")]:
                    shutil.rmtree(self.folder)
                raise
        if best := self.ranking()[:10]:
            runs = [self._run_folder(one, seed) for one in best for seed in range(self.file.seeds)]
            write_report(runs, self.folder / "report.html")

    def _open(self) -> None:
        storage = inside(self.folder, "sweep.db")
        # A plain file, which this makes.
        opened(storage, "ab").close()
        try:
            self.study = optuna.create_study(
                storage=f"sqlite:///{storage}", study_name="sweep", direction=self.file.direction, load_if_exists=True,
                pruner=self._pruner,
            )  # fmt: skip
        except Exception as error:
            raise ConfigError(
                f"{storage}: damaged ({type(error).__name__}), expected Optuna's storage; choose another --dir"
            ) from error
        if self.study.user_attrs.get("file", self._text) != self._text:
            raise ConfigError(f"{self.folder}: holds another sweep, expected the same; choose another --dir")
        self.study.set_user_attr("file", self._text)

    def _take_up(self, retry: bool) -> int:
        """Enqueue stopped trials, with `retry` failed ones, to continue in their folders; return how many are done."""
        done = 0
        for one in self.trials():
            was_running = one.state is TrialState.RUNNING
            failed = one.state is TrialState.FAIL and (retry or "error" not in one.user_attrs)
            if was_running:
                self.study.tell(one.number, state=TrialState.FAIL)
            if failed or was_running:
                self.study.enqueue_trial(one.params, {"again": one.number, "folder": _number(one)})
            else:
                done += one.state is not TrialState.WAITING
        return done

    def _objective(self, trial: optuna.Trial) -> float:
        with self._lock:
            # A resumed sweep must not repeat its first samples, and the number of jobs changes none.
            self.study.sampler = optuna.samplers.TPESampler(seed=trial.number)
            settings = self._settings(self._suggest(trial))
        try:
            return statistics.fmean(self._score(trial, seed, settings) for seed in range(self.file.seeds))
        except (ConfigError, TrialFailedError) as error:
            if isinstance(error, ConfigError) and not self.ranking():
                self._stop()
                raise
            if not self._is_stopped:
                trial.set_user_attr("error", str(error))
            raise TrialFailedError from error

    def _stop(self) -> None:
        self._is_stopped = True
        for process in self._processes:
            process.terminate()

    def _suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        for name, (kind, ends, how) in self.space.items():
            try:
                # Optuna stores no lists.
                args = [[json.dumps(one) for one in ends]] if kind == "choice" else ends
                getattr(trial, _SUGGEST[kind])(name, *args, **how)
            except (LookupError, TypeError, ValueError) as error:
                raise ConfigError(f"space.{name}: {str(error).rstrip('.')}, {_RANGE}") from None
        return trial.params

    def _settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: json.loads(one) if isinstance(one, str) else one for name, one in params.items()}
        return merge(with_sections(self.file.config), with_sections(own))

    def _score(self, trial: optuna.Trial, seed: int, settings: Mapping[str, Any]) -> float:
        folder = self._run_folder(trial, seed)
        log = folder.with_suffix(".log")
        # `menv train` refuses a metric that no result can have.
        stop = {self.file.metric: math.inf, **self.file.stop}
        command = [
            sys.executable, "-m", "menv.cli", "train", self.file.env, "--run", self.file.run, *self._options,
            "--run-dir", str(folder), "--resume-or-start", "--config", json.dumps(settings), "--seed",
            str(seed), "--json", *self._imports, *_bounds(stop),
        ]  # fmt: skip
        with opened(log, "a") as stderr, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        ) as process:  # fmt: skip
            self._processes.append(process)
            try:
                if self._is_stopped:
                    raise TrialFailedError
                for line in process.stdout or ():
                    result: Any = None
                    # The environment may print too.
                    with suppress(ValueError):
                        result = json.loads(line)
                    if seed == 0 and isinstance(result, dict) and "training_iteration" in result:
                        value = dict(scalars(result)).get(self.file.metric, math.nan)
                        trial.report(value, result["training_iteration"])
                        if trial.should_prune():
                            raise optuna.TrialPruned
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            last = read(log).decode(errors="replace").strip().rpartition("\n")[2]
            kind = ConfigError if process.returncode == 2 else TrialFailedError
            raise kind(
                f"{last.removeprefix('menv train: error: ')} (exit status {process.returncode}, see {log})"
            )
        log.unlink()
        found = list(filter(math.isfinite, Run(folder).progress().get(self.file.metric, ())))
        if not found:
            raise ConfigError(
                f"sweep: no result of a whole run has a number of {self.file.metric}, expected one; "
                f"{folder / 'progress.csv'} lists the keys"
            )
        return float(found[-1])

    def _run_folder(self, trial: Any, seed: int) -> Path:
        return inside(self.folder, f"trial-{_number(trial):03d}-seed-{seed}")

    def trials(self) -> list[FrozenTrial]:
        """Return the trials that no other one repeats."""
        known = self.study.get_trials(deepcopy=False)
        again = {one.user_attrs.get("again") for one in known}
        return [one for one in known if one.number not in again]

    def ranking(self) -> list[FrozenTrial]:
        """Return the completed trials, the best first."""
        done = [one for one in self.trials() if one.state is TrialState.COMPLETE]
        return sorted(done, key=lambda one: one.value or 0.0, reverse=self.file.direction == "maximize")

    def _ended(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if self._is_stopped:
            study.stop()
            return
        self._show(_line(trial))
        for best in self.ranking()[:1]:
            with replacing(self.folder / "best.json") as draft:
                draft.write_text(json.dumps(self._settings(best.params), indent=2) + "\n", "utf-8")

    def summary(self) -> list[str]:
        """Return lines about all trials, the best settings and the files."""
        states = Counter(one.state.name.lower() for one in self.trials())
        lines = [
            f"{states.total()} trials: {', '.join(f'{number} {state}' for state, number in states.items())}"
        ]
        if ranking := self.ranking():
            words = ["menv", "train", self.file.env, "--run", self.file.run, *self._options, *self._imports]
            command = shell_line(
                [*words, "--config", str(self.folder / "best.json"), *_bounds(self.file.stop)]
            )
            lines += ["best:", *(f"  {_line(trial)}" for trial in ranking[:3])]
            lines += [f"curves: {self.folder / 'report.html'}", f"train: {command}"]
        return lines


def _bounds(stop: Mapping[str, float]) -> list[str]:
    return [word for key, bound in stop.items() for word in ("--stop", f"{key}={bound}")]


def _number(trial: Any) -> int:
    """Return the number of a trial, or of the one that it repeats."""
    return int(trial.user_attrs.get("folder", trial.number))


def _line(trial: FrozenTrial) -> str:
    why = trial.user_attrs.get("error", "")
    shown = f" {trial.value:.6g}" if trial.state is TrialState.COMPLETE else f": {why}" if why else ""
    sampled = (
        f"{name}={f'{one:.4g}' if isinstance(one, float) else one}" for name, one in trial.params.items()
    )
    return f"trial {_number(trial)}: {trial.state.name.lower()}{shown}  ({', '.join(sampled)})"


def _entries(space: Mapping[str, Any], path: str) -> Iterator[tuple[str, tuple[str, Any, dict[str, Any]]]]:
    """Yield the name of each setting that is searched, and the kind, the values and the options of its range."""
    for name, entry in space.items():
        how = dict(entry) if isinstance(entry, Mapping) else {}
        kind = next(iter(_SUGGEST.keys() & how), "")
        if how and not kind:
            yield from _entries(how, f"{path}{name}.")
        else:
            yield f"{path}{name}", (kind, how.pop(kind, ()), how)
