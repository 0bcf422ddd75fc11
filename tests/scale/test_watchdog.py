"""What a watchdog wrote, and when it looks."""

from __future__ import annotations

import pytest

from menv.scale import watchdog
from menv.scale.last_words import in_a_line
from menv.scale.watchdog import where_it_hung

BEGUN = """Timeout (0:00:02)!
Thread 0x00007fe995cb96c0 (most recent call first):
  File "/lib/threading.py", line 324 in wait
"""
TORN = """Timeout (0:00:02)!
Thread 0x00007fe995cb96c0 (most recent call first):
  File "/lib/threading.py", line ??? in wait
"""
WHOLE = f"""{BEGUN}
Thread 0x00007fe995cb9700 (most recent call first):
  File "/games/world.py", line 41 in step
  File "/games/loop.py", line 7 in play
"""


def test_the_innermost_frame_of_the_main_thread_is_where_it_hung() -> None:
    assert where_it_hung(WHOLE) == "step (world.py:41)"


@pytest.mark.parametrize("words", [TORN, "Timeout (0:00:02)!\n"])
def test_a_process_that_crashed_while_it_wrote_that_down_hung_all_the_same(words: str) -> None:
    assert where_it_hung(words) == "a place that could not be written down"
    told = f"worker 1: did not return; the last lines of its stderr:\n{words}"
    assert in_a_line(told) == "worker 1: did not return"


@pytest.mark.parametrize("words", ["", "Killed", 'File "/games/world.py", line 41 in step'])
def test_nobody_hung_where_no_watchdog_wrote(words: str) -> None:
    assert where_it_hung(words) is None


@pytest.mark.parametrize("seconds", [0.2, 1.0, 2.0, 2.5, 30.0, 600.0])
def test_no_look_is_due_when_the_timer_rings(seconds: float) -> None:
    # Looks may be late, each by a little: the last one before the timer rings, and the one after it, are far from it.
    pause = watchdog._pause(seconds)
    before = int(seconds / pause) * pause
    assert pause <= 1.0
    assert min(seconds - before, before + pause - seconds) == pytest.approx(pause / 2)
