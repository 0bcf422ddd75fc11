"""Errands: requests for weights that cannot be answered at once, made by a thread of their own or kept for later.

Sessions hand them in, in the server's loop, and are called back there. Neither the loop nor the sampler waits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from menv.errors import MenvError
from menv.serving.wire.bad_message import BadMessageError, Code

Then = Callable[[Any], None]


class Errands:
    """Answers that are being made, and clients that wait for new weights.

    Args:
        wake: Lets a sampler that waits for callers see who waits.
        post: Has the loop call something.
    """

    def __init__(self, wake: Callable[[], None], post: Callable[[Callable[[], object]], None]) -> None:
        self.look_again = wake
        self._post = post
        self._maker = ThreadPoolExecutor(1, "menv-serving-weights")
        self._later: dict[object, list[Then]] = {}
        self._over: MenvError | None = None

    def add(self, do: Callable[[], Any], then: Then) -> None:
        """Have something made that may take some time.

        Args:
            do: Called in the thread that makes answers.
            then: Called in the server's loop with what `do` returned, or with the `MenvError` that it raised.
        """
        try:
            made = self._maker.submit(do)
        except RuntimeError:
            # It was stopped, perhaps this very moment.
            then(self._over)
            return
        made.add_done_callback(lambda made: self._post(lambda: self._tell(made, then)))

    def add_later(self, who: object, then: Then) -> None:
        """Call `then` in the server's loop once the weights have changed, with None; `who` may wait several times."""
        self._later.setdefault(who, []).append(then)
        if self._over is not None:
            self._release(self._over)
        self.look_again()

    def drop(self, who: object) -> None:
        """Forget what a client waits for."""
        self._later.pop(who, None)
        self.look_again()

    @property
    def waiting(self) -> int:
        """How many different `who` wait for new weights."""
        return len(self._later)

    def waits(self, who: object) -> bool:
        """Return whether `who` waits for new weights."""
        return who in self._later

    def weights_changed(self) -> None:
        """Answer those who wait for new weights. From any thread."""
        self._release(None)

    def stop(self, error: MenvError) -> None:
        """Answer all who wait with an error, now and from now on. From any thread."""
        self._over = error
        self._maker.shutdown(cancel_futures=True)
        self._release(error)

    def _release(self, error: MenvError | None) -> None:
        """Answer those who wait now, but not those who come before the loop has its turn."""
        later, self._later = self._later, {}
        if later:
            self._post(lambda: [then(error) for thens in later.values() for then in thens])

    def _tell(self, made: Future[Any], then: Then) -> None:
        if made.cancelled():
            then(self._over)
            return
        error = made.exception()
        if error is None or isinstance(error, MenvError):
            then(error or made.result())
            return
        then(
            BadMessageError(
                Code.INTERNAL, "weights: could not be made, expected them; see the server's report"
            )
        )
        raise error
