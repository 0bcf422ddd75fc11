"""`menv sweep`: searches settings with Optuna or on a grid; each run of a trial is a `menv train` in another process.

    runs/sweep/
        sweep.db              Optuna's storage, from which the same command resumes
        trial-000-seed-0/     a run folder for each seed of a trial
        best.json             the best settings, for `menv train --config`

The score of a trial is the mean of its seeds' last values of the metric. The pruner follows the first seed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import shlex
import signal
import statistics
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, Literal

from menv.algorithms.config.setting import Settings, known_values, setting
from menv.cli.arguments import (
    IMPORT,
    Parser,
    count,
    merge,
    option,
    parsed,
    print_error,
    print_text,
    read_settings,
    switch,
    with_sections,
)
from menv.cli.reopen import as_opened
from menv.errors import ConfigError, MissingExtraError
from menv.interrupts import Terminations
from menv.plain_files import MOST_BYTES, inside, opened, read, replacing, writing
from menv.serialization import shell_line, shell_word
from menv.tracking.run_folder import Run, locked, scalars

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise MissingExtraError("menv sweep: no package optuna; run: pip install 'menv-rl[sweep]'") from error

_TRIALS = 20
_PRUNERS = {"none": "NopPruner", "median": "MedianPruner", "hyperband": "HyperbandPruner"}
_KINDS = {"float": FloatDistribution, "int": IntDistribution, "choice": CategoricalDistribution}
_RANGE = (
    "expected {float = [low, high]}, {int = [low, high]}, both with log = true or step, or a list of values"
)
_RULE = "expected what docs/how_to/sweeps.md says; correct the file"
_RUN = "run"
"""The parameter of trials that names the algorithm, where the file has several."""


def main(arguments: Sequence[str] | None = None, program: str = "menv sweep") -> int:
    """Run or resume the sweep of the arguments and return the exit status: 1 if no trial was completed."""
    parser = Parser(
        prog=program, description="Search settings with Optuna or on a grid, or resume the search."
    )
    option(parser, "sweep", "a .toml or .json file: docs/how_to/sweeps.md", metavar="SWEEP")
    option(parser, "--trials", "trials in all (default: 20, or all of a grid)", type=count)
    option(parser, "--jobs", "parallel runs", type=count, default=1)
    switch(parser, "--retry-failed", "continue failed trials, too")
    option(parser, "--dir", "the folder of the sweep (default: runs/NAME for NAME.toml)", metavar="DIR")
    args = parsed(parser, arguments)
    file = SweepFile(**known_values(SweepFile, read_settings(args.sweep), f"{args.sweep}: "))
    folder = Path(args.dir or Path("runs", Path(args.sweep).stem))
    imports = [word for module in args.modules for word in (IMPORT, module)]
    with writing("sweep", f"the folder {folder}"), Terminations(program=True) as termination:
        sweep = Sweep(file, folder, imports)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            try:
                asyncio.run(sweep.search(args.trials, args.jobs, retry=args.retry_failed))
            except KeyboardInterrupt:
                print_error(f"interrupted; running trials were saved\n  resume: {shell_line(args.typed)}")
                return 128 + (termination.number or signal.SIGINT)
    if not (best := sweep.study.best_trials):
        return 1
    with replacing(folder / "best.json") as draft:
        draft.write_text(json.dumps(sweep.settings(best[0]), indent=2) + "\n", "utf-8")
    train = shell_line(["menv", *sweep.command(best[0], str(folder / "best.json"), file.stop)])
    lines = [f"best:\n  {_line(best[0])}", f"train: {train}"]
    if sweep.file.combinations():
        runs = f"{shell_word(str(folder))}/trial-*-seed-*[0-9]"
        trust = " --trust" * as_opened(folder / f"trial-{_number(best[0]):03d}-seed-0").endswith("--trust")
        lines.append(f"plot: menv plot {runs} -o {shell_word(folder.name)}.pdf")
        lines.append(f"table: menv table {runs} --format latex{trust}")
    print_text("\n".join(lines), program)
    return 0


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
        """Return the range of each setting that trials differ in; several algorithms are values of `_RUN`."""
        several = {} if isinstance(self.run, str) else {_RUN: list(self.run)}
        return dict(_ranges({**several, **merge(with_sections(self.grid), with_sections(self.space))}, ""))

    def combinations(self) -> list[dict[str, Any]]:
        """Return the parameters of the trials of a grid; [] with a space, whose trials Optuna chooses."""
        if self.space:
            return []
        ranges = {name: one.choices for name, one in self.searched().items()}
        return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]


def _ranges(space: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the name of each setting that is searched, and its range as Optuna has it."""
    for name, entry in space.items():
        how = (
            {"choice": entry}
            if isinstance(entry, list)
            else dict(entry)
            if isinstance(entry, Mapping)
            else {}
        )
        kind = next(iter(_KINDS.keys() & how), "")
        if how and not kind:
            yield from _ranges(how, f"{path}{name}.")
            continue
        try:
            # Optuna stores no lists.
            ends = [[json.dumps(one) for one in how.pop(kind)]] if kind == "choice" else how.pop(kind)
            yield f"{path}{name}", _KINDS[kind](*ends, **how)
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"sweep: {path}{name}: {str(error).rstrip('.')}, {_RANGE}") from None


class Sweep:
    """A sweep in its folder; ConfigError if its file, the folder or all that its first run needs is wrong."""

    def __init__(self, file: SweepFile, folder: Path, imports: Sequence[str]) -> None:
        self.file, self.folder, self._imports = file, folder, imports
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            self._text = json.dumps(asdict(file))
            self._options = shlex.split(file.options or "")
            self._pruner = getattr(optuna.pruners, _PRUNERS[file.pruner])(**file.pruner_options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"sweep: {error}, {_RULE}") from None
        self._space = file.searched()
        if not file.stop or not self._space:
            raise ConfigError(f"sweep: no stop or no space, {_RULE}")

    async def search(self, trials: int | None, jobs: int, *, retry: bool = False) -> None:
        """Run trials until there are `trials` in all, by default 20 or the size of the grid, `jobs` at a time.

        A cancelled search saves its runs.
        """
        storage = inside(self.folder, "sweep.db")
        # A plain file, which this makes.
        opened(storage, "ab").close()
        try:
            self.study = optuna.create_study(
                storage=f"sqlite:///{storage}", study_name="sweep", direction=self.file.direction, load_if_exists=True,
                pruner=self._pruner,
            )  # fmt: skip
        except Exception as error:
            raise ConfigError(f"{storage}: damaged, expected one of Optuna; choose another --dir") from error
        found = self.study.direction.name.lower(), self.study.user_attrs.get("file") or self._text
        if found != (self.file.direction, self._text):
            raise ConfigError(f"{self.folder}: holds another sweep, expected the same; choose another --dir")
        self.study.set_user_attr("file", self._text)
        combinations = self.file.combinations()
        for params in combinations:
            self.study.enqueue_trial(params, skip_if_exists=True)
        trials = trials or len(combinations) or _TRIALS
        # A resumed sweep must not repeat its first samples.
        self.study.sampler = optuna.samplers.TPESampler(seed=len(self.study.trials))
        # The last attempt of each trial.
        known = {_number(one): one for one in self.study.trials}.values()
        left = iter(range(trials - sum(not self._is_repeated(one, retry) for one in known)))
        await asyncio.gather(*(self._run_trials(left) for _ in range(jobs)))

    def _is_repeated(self, one: FrozenTrial, retry: bool) -> bool:
        """Return whether a trial of an earlier process continues in its folder, and enqueue it if it is not yet."""
        if one.state is TrialState.RUNNING:
            self.study.tell(one.number, state=TrialState.FAIL)
        elif not (retry and one.state is TrialState.FAIL):
            return one.state is TrialState.WAITING
        self.study.enqueue_trial(one.params, {"number": _number(one)})
        return True

    async def _run_trials(self, left: Iterator[int]) -> None:
        for _ in left:
            trial = self.study.ask(self._space)
            score, state = None, TrialState.COMPLETE
            try:
                score = statistics.fmean([await self._score(trial, seed) for seed in range(self.file.seeds)])
            except optuna.TrialPruned:
                state = TrialState.PRUNED
            except (ConfigError, SubprocessError) as error:
                if isinstance(error, ConfigError) and not self.study.best_trials:
                    # The file may be corrected.
                    self.study.set_user_attr("file", "")
                    raise
                trial.set_user_attr("error", str(error))
                state = TrialState.FAIL
            print_text(_line(self.study.tell(trial, score, state)), "menv sweep")

    def settings(self, trial: optuna.Trial | FrozenTrial) -> dict[str, Any]:
        """Return the settings with which a trial trains."""
        own = {name: json.loads(one) if isinstance(one, str) else one for name, one in trial.params.items()}
        own.pop(_RUN, None)
        return merge(with_sections(self.file.config), with_sections(own))

    def command(self, trial: optuna.Trial | FrozenTrial, config: str, stop: Mapping[str, float]) -> list[str]:
        """Return the arguments of `menv` that train the algorithm of a trial with a config."""
        run = json.loads(trial.params[_RUN]) if _RUN in trial.params else str(self.file.run)
        words = ["train", self.file.env, "--run", run, *self._options, *self._imports]
        bounds = (word for key, bound in stop.items() for word in ("--stop", f"{key}={bound}"))
        return [*words, "--config", config, *bounds]

    async def _score(self, trial: optuna.Trial, seed: int) -> float:
        """Return the last value of the metric of one run; report all to Optuna if its seed is the first."""
        metric = self.file.metric
        folder = inside(self.folder, f"trial-{_number(trial):03d}-seed-{seed}")
        log = folder.with_suffix(".log")
        # A bound of the metric, as `menv train` refuses one that no result can have.
        config, stop = json.dumps(self.settings(trial)), {metric: math.inf, **self.file.stop}
        command = [sys.executable, "-m", "menv.cli", *self.command(trial, config, stop), "--seed", str(seed)]
        command += ["--run-dir", str(folder), "--resume-or-start", "--json"]
        with opened(log, "a") as stderr:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=PIPE, stderr=stderr, limit=MOST_BYTES, start_new_session=True
            )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                result: Any = None
                # The environment may print too.
                with suppress(ValueError):
                    result = json.loads(line)
                if seed == 0 and isinstance(result, dict) and "training_iteration" in result:
                    trial.report(dict(scalars(result)).get(metric, math.nan), result["training_iteration"])
                    if trial.should_prune():
                        raise optuna.TrialPruned
        except BaseException:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            raise
        if status := await process.wait():
            last = read(log).decode(errors="replace").strip().rpartition("\n")[2]
            kind = ConfigError if status == 2 else SubprocessError
            raise kind(f"{last.removeprefix('menv train: error: ')} (exit status {status}, see {log})")
        log.unlink()
        found = list(filter(math.isfinite, Run(folder).progress().get(metric, ())))
        if not found:
            where = folder / "progress.csv"
            raise ConfigError(f"sweep: {metric} is never a number, expected one; {where} lists the keys")
        return float(found[-1])


def _number(trial: Any) -> int:
    """Return the number of a trial, or of the one that it repeats."""
    return int(trial.user_attrs.get("number", trial.number))


def _line(trial: FrozenTrial) -> str:
    why = trial.user_attrs.get("error", "")
    shown = f" {trial.value:.6g}" if trial.state is TrialState.COMPLETE else f": {why}" if why else ""
    return f"trial {_number(trial)}: {trial.state.name.lower()}{shown}  {trial.params}"
