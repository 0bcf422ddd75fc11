"""Rollouts of workers: their fragments put together as if one process had sampled them.

`menv.algorithms.algorithm` has one where `num_workers` is not 0. Each worker has its share of the sub-environments;
what comes out is in the order of these, whoever was ready first. How workers are asked, and replaced, is in `workers`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.fragment import Fragment
from menv.algorithms.rollouts.headlines import Headlines
from menv.algorithms.rollouts.inbox import Inbox
from menv.algorithms.rollouts.one_at_a_time import one_at_a_time
from menv.algorithms.rollouts.rollouts import Crew, Tree
from menv.algorithms.rollouts.stand import Stand, spread
from menv.algorithms.rollouts.workers import Workers
from menv.errors import EnvFaultWarning
from menv.loop.cohort import Cohort
from menv.loop.digest import Digest
from menv.loop.times import Times
from menv.metrics import Metrics
from menv.multi_agent_batch import MultiAgentBatch
from menv.sample_batch import SampleBatch
from menv.scale.engine import Engine, Peer
from menv.scale.same_spaces import Declared
from menv.segments import Column
from menv.serving.interrupts import Interrupts


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
        declared: The spaces of the driver's environment.

    Attributes:
        staleness: Updates between acting and learning, of the rows of the fragments since the last look.
        times: See `Rollouts`.
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
        declared: Declared | None = None,
    ) -> None:
        self.alone = threading.RLock()
        self._config = config
        self._crew = crew
        self._metrics = metrics
        self._engine = engine
        self._each = num_envs
        self._headlines = Headlines(crew)
        self._workers = Workers(
            config,
            self._headlines,
            seed,
            metrics,
            engine,
            num_envs,
            early,
            declared=declared,
            leaves_out=True,
        )
        # What workers have done that were there before a checkpoint.
        self._gone = Stand()
        self._unrolls = 0
        self._warned: set[str] = set()
        # Whether workers were told to begin and nobody has taken what they sample.
        self._begun = False
        # Whether a fragment of each has come and none has been taken.
        self._prepared = False
        self.taking = Interrupts(lambda: None)
        # Whether some workers do not know yet which policies there are.
        self._behind = False
        self.staleness: list[Column] = []
        self.times = Times()

    @property
    def env_steps(self) -> int:
        return self._total.env_steps

    @property
    def agent_steps(self) -> int:
        return self._total.agent_steps

    @property
    def left_out(self) -> int:
        return self._total.left_out

    @property
    def digest(self) -> Digest:
        return self._total.digest

    @property
    def num_envs(self) -> int:
        return self._each * len(self._workers)

    @property
    def lost(self) -> int:
        """Workers that have been lost so far."""
        return self._workers.lost

    @property
    def pids(self) -> list[int | None]:
        """Of the workers' processes."""
        return self._workers.pids

    def recreated(self) -> list[int]:
        """Return the numbers, from 1, of the workers that were replaced since the last look."""
        numbers, self._workers.recreated = self._workers.recreated, []
        return numbers

    @property
    def _total(self) -> Stand:
        """What all workers have done, those that are gone too."""
        each = ((inbox.gone, inbox.stand) for inbox in self._workers.inboxes)
        return Stand.sum((self._gone, *chain.from_iterable(each)))

    def begin(self) -> None:
        """Let workers that may run ahead sample what comes first, while this process gets ready to learn."""
        if self._workers.ahead:
            self._begun = True
            for index in range(len(self._workers)):
                self._workers.ask(index, times=1 + self._workers.ahead)

    @one_at_a_time
    def prepare(self) -> None:
        """Wait until every worker's fragment has come, and ask for those that may be sampled ahead of time.

        Raises:
            WorkerLostError: Workers are lost again and again.
        """
        self._catch_up()
        absent = self._workers.absent
        if self._prepared and all(inbox or i in absent for i, inbox in enumerate(self._workers.inboxes)):
            return
        news = self._headlines.news()
        self._workers.told.clear()
        try:
            parcel = None
            if not news.empty:
                parcel = self._engine.put(news)
                self.take_back()
            self._begun = False
            self._workers.prepare(parcel)
        finally:
            # It could not be sent, somebody was interrupted, or a fragment is still due that was asked for before.
            if len(self._workers.told | self._workers.absent) < len(self._workers):
                self._headlines.untold(news)
        self._prepared = True

    @one_at_a_time
    def sample(self) -> MultiAgentBatch:
        """Return the fragments of all workers as one; see `Rollouts.sample`.

        Raises:
            WorkerLostError: Workers are lost again and again.
        """
        self.prepare()
        self._prepared = False
        return self._together(
            {index: inbox.take() for index, inbox in enumerate(self._workers.inboxes) if inbox}
        )

    @one_at_a_time
    def follow(self, added: Sequence[Cohort] = ()) -> None:
        self._behind = True
        self.take_back()
        parcel = self._engine.put(self._headlines.company())
        self._workers.sure_of_all("follow", parcel=parcel)
        self._headlines.told()
        self._behind = False

    @one_at_a_time
    def retire(self, policy_id: str) -> None:
        for cohort in self._crew.cohorts:
            if policy_id in cohort.policy_ids:
                cohort.retire(policy_id)
        self._behind = True
        self.take_back()
        for index, inbox in enumerate(self._workers.inboxes):
            # What they were asked for before is of the policy that goes.
            self._workers.fetch(index)
            inbox.drop(policy_id)

    @one_at_a_time
    def running_ids(self) -> set[int] | None:
        self._catch_up()
        self.take_back()
        found = self._workers.sure_of_all("running_ids")
        return None if None in found else set().union(*found)

    @one_at_a_time
    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self._catch_up()
        return list(chain.from_iterable(self._workers.sure_of_all("call_envs", method, args)))

    @one_at_a_time
    def state(self) -> Tree:
        """Return the state of the episodes, without fragments that were sampled ahead of time."""
        self._catch_up()
        self.take_back()
        states = self._workers.sure_of_all("state")
        gone = Stand.sum((self._gone, *(inbox.before for inbox in self._workers.inboxes)))
        absent = self._workers.absent
        replaced = [times for index, times in enumerate(self._workers.replaced) if index not in absent]
        return {"workers": states, "gone": gone.state(), "pieces": self._unrolls, "replaced": replaced}

    @one_at_a_time
    def check_begins_again(self) -> None:
        self.take_back()
        for index in range(len(self._workers)):
            self._workers.sure(index, "check_begins_again")

    @one_at_a_time
    def begin_again(self, seed: int) -> None:
        self.take_back()
        self._gone = Stand()
        self._workers.begin_again(seed)

    @one_at_a_time
    def resume(self, tree: Mapping[str, Any]) -> int:
        tree = spread(tree, len(self._workers), self._each)
        self._gone, self._unrolls = Stand.of(tree["gone"]), tree["pieces"]
        # States of another layout do not have it.
        self._workers.stand_in(tree.get("replaced", [0] * len(self._workers)))
        lost = 0
        self._workers.present()
        for index, state in enumerate(tree["workers"]):
            lost += int(self._workers.sure(index, "resume", state) or 0)
            # A new one: of those that were lost before this answer nothing is left that counts.
            inbox = self._workers.inboxes[index] = Inbox()
            inbox.stand = Stand.of(state)
            inbox.running = inbox.stand.running
            if index in self._workers.absent:
                lost += inbox.running
                self._workers.begins_anew(index)
        return lost

    def stop(self) -> None:
        self._workers.stop()

    def take_back(self) -> None:
        """Make workers anew that began with policies that have changed before anybody took what they sampled."""
        if self._begun:
            self._begun = False
            self._workers.renew()

    def _catch_up(self) -> None:
        """Tell workers of the policies that there are, if somebody was interrupted in that."""
        if self._behind:
            self.follow()

    def _together(self, fragments: Mapping[int, Fragment]) -> MultiAgentBatch:
        for index, fragment in fragments.items():
            self._metrics.absorb(fragment.metrics)
            self.times.add(fragment.times)
            self._headlines.absorb(fragment.filters)
            self._warn(fragment.warnings)
            for batch in fragment.batch.policy_batches.values():
                batch.segments.env_id = batch.segments.env_id + index * self._each
        batches = [fragment.batch for fragment in fragments.values()]
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
            before = perf_counter()
            self._crew.completion.catch_up(together)
            self.times.complete += perf_counter() - before
        return together

    def _measure(self, batch: MultiAgentBatch) -> None:
        if self._workers.ahead:
            # None at all where all that was sampled ahead is of a policy that was removed.
            for rows in batch.policy_batches.values():
                self.staleness.append(self._headlines.version - rows[SampleBatch.WEIGHTS_SEQ_NO])

    def _warn(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self._warned:
                self._warned.add(line)
                warnings.warn(line, EnvFaultWarning, stacklevel=2)


def _own(batch: MultiAgentBatch) -> MultiAgentBatch:
    columns = [column for rows in batch.policy_batches.values() for column in rows.stored().values()]
    return batch if all(column.flags.writeable for column in columns) else batch.copy()
