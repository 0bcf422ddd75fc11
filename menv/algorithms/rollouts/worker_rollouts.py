"""Rollouts of workers: their fragments put together as if one process had sampled them.

`menv.algorithms.algorithm` has one where `num_workers` is not 0. Each worker has its share of the sub-environments;
what comes out is in the order of these, whoever was ready first. A worker that is lost costs the episodes that ran in
it: another one takes its place, with the policies of now, and samples its fragment.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from menv import draws
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.experience import Place
from menv.algorithms.rollouts.fragment import Fragment, Plan, Settings
from menv.algorithms.rollouts.headlines import Headlines
from menv.algorithms.rollouts.inbox import Inbox
from menv.algorithms.rollouts.one_at_a_time import one_at_a_time
from menv.algorithms.rollouts.rollout_worker import WorkerSeat
from menv.algorithms.rollouts.rollouts import Crew, Tree
from menv.algorithms.rollouts.stand import Stand, spread
from menv.errors import CallOrderError, EnvFaultWarning, WorkerLostError
from menv.loop.cohort import Cohort
from menv.loop.digest import Digest
from menv.metrics import Metrics
from menv.multi_agent_batch import MultiAgentBatch
from menv.sample_batch import SampleBatch
from menv.scale.engine import Engine, Peer
from menv.scale.known_names import known_here
from menv.scale.last_words import in_a_line
from menv.scale.packing import Sealed, can_be_pickled
from menv.scale.peer_group import PeerGroup
from menv.scale.watchdog import creation_limit, where_it_hung
from menv.segments import Column


class WorkerRollouts:
    """Workers that sample.

    Args:
        config: The settings.
        crew: The policies.
        seed: Key of every random draw.
        metrics: Where episodes are recorded.
        engine: Starts the workers.
        num_envs: Sub-environments of each.
        early: Seats that the engine has started already.

    Attributes:
        staleness: Updates between acting and learning, of the rows of the fragments since the last look.
        recreated: Numbers, from 1, of the workers that were replaced since the last look.
    """

    idle = False

    def __init__(
        self,
        config: AlgorithmConfig,
        crew: Crew,
        seed: int,
        metrics: Metrics,
        engine: Engine,
        num_envs: int,
        early: Sequence[Peer] = (),
    ) -> None:
        self.alone = threading.RLock()
        self._config = config
        self._crew = crew
        self._seed = seed
        self._metrics = metrics
        self._engine = engine
        self._each = num_envs
        self._count = config.num_workers
        self._depth = config.max_staleness if config.overlap else 0
        self._headlines = Headlines(crew)
        self._inboxes = [Inbox() for _ in range(self._count)]
        # What workers have done that were there before a checkpoint.
        self._gone = Stand()
        self._unrolls = 0
        self._warned: set[str] = set()
        # Whether workers were told to begin and nobody has taken what they sample.
        self._begun = self._stopped = False
        # Whether some workers do not know yet which policies there are.
        self._behind = False
        self.staleness: list[Column] = []
        self.recreated: list[int] = []
        self._group = PeerGroup(engine, WorkerSeat, self._plan, self._count, "worker", early)
        self._first = Sealed(self._settings())

    @property
    def env_steps(self) -> int:
        """See `Rollouts`."""
        return self._total.env_steps

    @property
    def agent_steps(self) -> int:
        """See `Rollouts`."""
        return self._total.agent_steps

    @property
    def left_out(self) -> int:
        """See `Rollouts`."""
        return self._total.left_out

    @property
    def digest(self) -> Digest:
        """See `Rollouts`."""
        return self._total.digest

    @property
    def num_envs(self) -> int:
        """See `Rollouts`."""
        return self._each * self._count

    @property
    def lost(self) -> int:
        """Workers that have been lost so far."""
        return self._group.lost

    @property
    def pids(self) -> list[int | None]:
        """Of the workers' processes."""
        return [peer.pid for peer in self._group.peers]

    @property
    def _total(self) -> Stand:
        """What all workers have done, those that are gone too."""
        total = Stand()
        for stand in (self._gone, *chain.from_iterable((one.gone, one.stand) for one in self._inboxes)):
            total.add(stand)
        return total

    def begin(self) -> None:
        """Let workers that may run ahead sample what comes first, while this process gets ready to learn."""
        if self._depth:
            self._begun = True
            for index in range(self._count):
                for _ in range(1 + self._depth):
                    self._ask(index)

    @one_at_a_time
    def sample(self) -> MultiAgentBatch:
        """See `Rollouts.sample`.

        Raises:
            WorkerLostError: Workers are lost again and again.
        """
        self._catch_up()
        parcel = self._news()
        if parcel is not None:
            self.take_back()
        self._begun = False
        for index in range(self._count):
            if not self._inboxes[index].asked and not self._inboxes[index]:
                self._ask(index, parcel)
        for index in range(self._count):
            # None is taken before all are there: whatever one of them raises, the others' wait for the next time.
            while not self._inboxes[index]:
                self._fetch(index)
        fragments = [inbox.take() for inbox in self._inboxes]
        for index in range(self._count):
            # Ahead of time: with the weights of now, which the learner will have left behind by then.
            while self._inboxes[index].asked + len(self._inboxes[index]) < self._depth:
                self._ask(index, parcel)
        return self._together(fragments)

    @one_at_a_time
    def follow(self, added: Sequence[Cohort] = ()) -> None:
        """See `Rollouts.follow`."""
        self._behind = True
        self.take_back()
        parcel = self._engine.put(self._headlines.company())
        for index in range(self._count):
            self._sure(index, "follow", parcel=parcel)
        self._headlines.told()
        self._behind = False

    @one_at_a_time
    def retire(self, policy_id: str) -> None:
        """See `Rollouts.retire`."""
        for cohort in self._crew.cohorts:
            if policy_id in cohort.policy_ids:
                cohort.retire(policy_id)
        self._behind = True
        self.take_back()
        for index in range(self._count):
            # What they were asked for before is of the policy that goes.
            self._fetch(index)
            self._inboxes[index].drop(policy_id)

    @one_at_a_time
    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """See `Rollouts.call_envs`."""
        self._catch_up()
        found = [self._sure(index, "call_envs", method, args) for index in range(self._count)]
        return list(chain.from_iterable(found))

    @one_at_a_time
    def state(self) -> Tree:
        """See `Rollouts.state`; what has been sampled ahead of time is not in it."""
        self._catch_up()
        self.take_back()
        states = [self._sure(index, "state") for index in range(self._count)]
        gone = Stand()
        for stand in (self._gone, *(inbox.before for inbox in self._inboxes)):
            gone.add(stand)
        return {"workers": states, "gone": gone.state(), "pieces": self._unrolls}

    @one_at_a_time
    def begin_again(self, seed: int) -> None:
        """See `Rollouts.begin_again`."""
        self.take_back()
        self._seed = seed
        self._gone = Stand()
        for index in range(self._count):
            self._sure(index, "begin_again", seed)
            self._inboxes[index] = Inbox()

    @one_at_a_time
    def resume(self, tree: Mapping[str, Any]) -> int:
        """See `Rollouts.resume`."""
        tree = spread(tree, self._count, self._each)
        self._gone, self._unrolls = Stand.of(tree["gone"]), tree["pieces"]
        lost = 0
        for index, state in enumerate(tree["workers"]):
            lost += int(self._sure(index, "resume", state))
            inbox = self._inboxes[index]
            inbox.stand = Stand.of(state)
            inbox.running = inbox.stand.running
        return lost

    def stop(self) -> None:
        """See `Rollouts.stop`."""
        self._stopped = True
        self._engine.stop()

    def take_back(self) -> None:
        """Make workers anew that began with policies that have changed before anybody took what they sampled."""
        if self._begun:
            self._begun = False
            for index in range(self._count):
                self._group.renew(index)
                self._inboxes[index] = Inbox()

    def _plan(self, index: int, times: int) -> tuple[Any, ...]:
        """Return what a seat is asked to make a worker; one that takes another's place draws other numbers."""
        settings: Settings | Sealed = self._settings()
        seed = self._seed
        if times:
            if not can_be_pickled(settings):
                # A function among them uses what the program has opened since; the first workers do without it.
                settings = self._first
            seed = draws.key(seed, index, times) >> 2
        place = Place(index + 1, recreated=times > 0)
        return "take", Plan(settings, place, self._headlines.company(), seed)

    def _settings(self) -> Settings:
        """Return what workers are told of the settings."""
        config = replace(self._config, evaluation_config=None, input=None)
        return Settings(config, known_here(config.env, config.env_config))

    def _catch_up(self) -> None:
        """Tell workers of the policies that there are, if somebody was interrupted in that."""
        if self._behind:
            self.follow()

    def _news(self) -> Any:
        """Return a parcel with what has changed of the policies, None if nothing has."""
        news = self._headlines.news()
        return None if news.empty else self._engine.put(news)

    def _ask(self, index: int, parcel: Any = None) -> None:
        """Ask a worker for a fragment."""
        number = self._headlines.version if self._depth else None
        if not self._inboxes[index].asked:
            self._group.settle(index)
        self._group.ask(index, "sample", number, self._config.explore, parcel=parcel)
        self._inboxes[index].asked += 1

    def _fetch(self, index: int) -> None:
        """Wait for everything that a worker has been asked for; for another worker's, if it is lost."""
        inbox = self._inboxes[index]
        asked = inbox.asked
        while inbox.asked:
            try:
                fragment = self._group.answer(index)
            except WorkerLostError as error:
                self._replace(index, error)
                for _ in range(asked):
                    self._ask(index)
                continue
            except Exception:
                # That was an answer, too. Of a worker that could not be made nothing else is worth waiting for.
                inbox.asked = inbox.asked - 1 if self._group.is_briefed(index) else 0
                raise
            asked -= 1
            inbox.put(fragment)
            if not self._depth:
                return

    def _sure(self, index: int, method: str, *args: Any, parcel: Any = None) -> Any:
        """Return what a worker answers to something else than for a fragment; of another worker, if it is lost."""
        self._fetch(index)
        self._group.settle(index)
        while True:
            self._group.ask(index, method, *args, parcel=parcel)
            try:
                return self._group.answer(index)
            except WorkerLostError as error:
                self._replace(index, error)

    def _replace(self, index: int, error: WorkerLostError) -> None:
        """Put another worker in the place of one that is lost; the episodes that ran in it are counted."""
        self._check_running()
        hung = where_it_hung(str(error))
        if hung is not None and self._config.env_timeout is not None:
            head, expected, rest = str(error).partition(", expected ")
            told = f"{head}: {self._overdue(index)}, from {hung}"
            if not self._group.lost and not self._group.is_briefed(index):
                raise WorkerLostError(
                    f"{told}, expected it to be there; mend what it waits for, or raise env_timeout above that"
                ) from error
            error = WorkerLostError(f"{told}{expected}{rest}")
        line = in_a_line(str(error))
        for _ in range(self._inboxes[index].running or self._each):
            self._metrics.record_faulty(line)
        self._inboxes[index].lose()
        self._group.replace(index, error)
        self._check_running()
        self.recreated.append(index + 1)
        warnings.warn(
            f"{line}: the episodes that ran in it are lost and another worker was started, expected none to end; "
            "look at what it wrote to stderr",
            EnvFaultWarning,
            stacklevel=2,
        )

    def _overdue(self, index: int) -> str:
        """Return what an environment of a worker took too long for."""
        seconds = self._config.env_timeout
        if self._group.is_briefed(index):
            return f"an environment did not return for env_timeout={seconds:g} s"
        return f"an environment was not created within {creation_limit(seconds):g} s"

    def _check_running(self) -> None:
        """Raise where another thread has stopped the algorithm meanwhile."""
        if self._stopped:
            # There may be a worker that was started since.
            self._engine.stop()
            raise CallOrderError("sample: this algorithm was stopped meanwhile; build a new one")

    def _together(self, fragments: Sequence[Fragment]) -> MultiAgentBatch:
        """Return the fragments of all workers as one, as if one process had sampled it."""
        for index, fragment in enumerate(fragments):
            self._metrics.absorb(fragment.metrics)
            self._headlines.absorb(fragment.filters)
            self._warn(fragment.warnings)
            for batch in fragment.batch.policy_batches.values():
                batch.segments.env_id = batch.segments.env_id + index * self._each
        batches = [fragment.batch for fragment in fragments]
        found = MultiAgentBatch.concat_samples(batches) if len(batches) > 1 else _own(batches[0])
        order = [name for name in self._crew.policy_map.specs if name in found]
        for name in order:
            pieces = found[name].segments
            pieces.unroll_id = np.arange(self._unrolls, self._unrolls + len(pieces.lengths))
            self._unrolls += len(pieces.lengths)
        self._measure(found)
        together = MultiAgentBatch({name: found[name] for name in order}, found.env_steps())
        if self._config.overlap:
            # Workers left what gets better: these networks have learned since the rows were sampled.
            self._crew.completion.catch_up(together)
        return together

    def _measure(self, batch: MultiAgentBatch) -> None:
        """Note how old the weights are that acted."""
        if self._depth:
            # None at all where all that was sampled ahead is of a policy that was removed.
            for rows in batch.policy_batches.values():
                self.staleness.append(self._headlines.version - rows[SampleBatch.WEIGHTS_SEQ_NO])

    def _warn(self, lines: Sequence[str]) -> None:
        """Warn of faults of environments, of each cause once."""
        for line in lines:
            if line not in self._warned:
                self._warned.add(line)
                warnings.warn(line, EnvFaultWarning, stacklevel=2)


def _own(batch: MultiAgentBatch) -> MultiAgentBatch:
    """Return a batch whose arrays may be written."""
    columns = [column for rows in batch.policy_batches.values() for column in rows.stored().values()]
    return batch if all(column.flags.writeable for column in columns) else batch.copy()
