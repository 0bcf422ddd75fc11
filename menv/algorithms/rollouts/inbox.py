"""What comes from one worker: fragments that wait for their turn, and what it and those before it have done.

`menv.algorithms.rollouts.worker_rollouts` has one for each. Fragments of a worker that has been lost since may still
wait, so that who samples and whose fragment is learned from are two things.
"""

from __future__ import annotations

from collections import deque

from menv.algorithms.rollouts.fragment import Fragment
from menv.algorithms.rollouts.stand import Stand


class Inbox:
    """Of one worker.

    Attributes:
        asked: Fragments that it has been asked for and has not sent.
        running: Episodes that ran in it after its last fragment, 0 if it has sent none.
        error: What was raised instead of a fragment, while nobody waited for one.
        stand: Where the worker stood whose fragment was taken last, after that.
        gone: What those did that were there before that one.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.running = 0
        self.error: Exception | None = None
        self.stand = Stand()
        self.gone = Stand()
        # Each with whether it is the first one of another worker than the one before it.
        self._waiting: deque[tuple[Fragment, bool]] = deque()
        self._other = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def before(self) -> Stand:
        """What those did that were there before the worker of now, as far as it was taken."""
        total = Stand()
        total.add(self.gone)
        if self._other or any(other for _, other in self._waiting):
            total.add(self.stand)
        return total

    def check(self) -> None:
        """Raise what was raised instead of a fragment, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def put(self, fragment: Fragment) -> None:
        """Note a fragment that came."""
        self.asked -= 1
        self._waiting.append((fragment, self._other))
        self._other, self.running = False, fragment.running

    def take(self) -> Fragment:
        """Return the oldest fragment that waits, which counts from now on."""
        fragment, other = self._waiting.popleft()
        if other:
            self.gone.add(self.stand)
        self.stand = Stand.after(fragment)
        return fragment

    def drop(self, policy_id: str) -> None:
        """Leave out of the fragments that wait what a policy saw that is removed; another one may have its id next."""
        for place, (fragment, other) in enumerate(self._waiting):
            fragment.batch.policy_batches.pop(policy_id, None)
            filters = {name: seen for name, seen in fragment.filters.items() if name != policy_id}
            self._waiting[place] = fragment._replace(filters=filters), other

    def lose(self) -> None:
        """Note that the worker is lost and another one takes its place; what it has sent still waits."""
        self.asked = self.running = 0
        self._other = True
