"""What a watchdog wrote, and when it looks."""

from __future__ import annotations

import pytest

from menv.workers.process_engine import in_a_line
from menv.workers.watchdog import last_of, where_it_hung

CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007fe995cb96c0 (most recent call first):
  File "/lib/threading.py", line 331 in wait

Current thread 0x00007fe995cb9700 (most recent call first):
  File "/games/world.py", line 41 in step

Extension modules: numpy.linalg._umath_linalg (total: 1)
"""
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


@pytest.mark.parametrize("depth", [0, 40])
def test_a_process_that_crashed_by_itself_did_not_hang_and_says_what_it_died_of(depth: int) -> None:
    # The crash may be in another thread than the main one, which is written down last.
    last = (
        "\nThread 0x00007fe995cb9800 (most recent call first):\n" + '  File "/a.py", line 1 in wait\n' * depth
    )
    words = "\n".join(last_of((CRASH + last * (depth > 0)).splitlines(), 20))
    assert where_it_hung(words) is None
    told = in_a_line(f"worker 1: ended; the last lines of its stderr:\n{words}")
    assert told == "worker 1: ended; its stderr: Fatal Python error: Segmentation fault"


def test_the_line_about_the_timer_is_kept_above_many_frames() -> None:
    kept = last_of((WHOLE + '  File "/games/loop.py", line 7 in play\n' * 40).splitlines(), 20)
    assert (kept[0], len(kept)) == ("Timeout (0:00:02)!", 20)
    assert where_it_hung("\n".join(kept)) == "step (world.py:41)"
