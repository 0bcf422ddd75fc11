"""What remote environments hand out is what those of this process hand out, to the last number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from menv import to_base_env
from menv.base_env import BaseEnv, EpisodeEnd, Ready
from tests.contract.adapters import rotated
from tests.contract.crashing import CrashingEnv, World
from tests.contract.remote import LOCK_STEP, Make, remote
from tests.contract.scripted import IRREGULAR, SOLO, TOGETHER, TURNS, Script, SoloGym

SCRIPTS = {"gym": SOLO, "turns": TURNS, "together": TOGETHER, "irregular": IRREGULAR}
every_script = pytest.mark.parametrize("name", SCRIPTS)


class Crashing:
    """Creates environments that raise now and then, each with a history of its own."""

    def __init__(self, script: Script, solo: bool) -> None:
        self.script, self.solo = script, solo
        self.worlds: dict[int, World] = {}

    def __call__(self, index: int) -> CrashingEnv | SoloGym:
        if index not in self.worlds:
            self.worlds[index] = World(
                rotated(self.script, index), index, steps=[2, 7, 8, 19][: index + 2], resets=[3, 4], salt=True
            )
            if self.solo:
                self.worlds[index].settings["agents"] = "a"
        return self.worlds[index].make_solo() if self.solo else self.worlds[index].make()


def plain(value: Any) -> Any:
    """Return a value that can be compared."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def paid_before(ready: Ready, episode: EpisodeEnd) -> int:
    """Return how many unclaimed rewards of an episode's sub-environment came before its end."""
    before = ready.unclaimed[: episode.unclaimed]
    return sum(one.env_index == episode.env_index for one in before)


def told(ready: Ready) -> dict[str, Any]:
    """Return all that a poll says, without slots, which may be numbered in another way."""
    assert ready.infos is not None
    rows = [
        (*ready.seats[slot], plain(ready.obs[row]), float(ready.rewards[row]), dict(ready.infos[row]))
        for row, slot in enumerate(ready.slots.tolist())
    ]
    return {
        "rows": rows,
        "env_steps": ready.env_steps.tolist(),
        "joined": sorted((one.env_id, one.agent_id, one.env_index) for one in ready.joined),
        "ended": sorted(
            (one.env_id, one.agent_id, one.reward, one.terminated, one.truncated, plain(one.obs), one.withdrawn)
            for one in ready.ended
        ),
        "episodes": sorted((*one[:5], one.faulty, paid_before(ready, one)) for one in ready.episodes),
        "unclaimed": sorted(tuple(one) for one in ready.unclaimed),
        "faults": sorted((one.env_id, one.where, one.line, one.origin) for one in ready.faults),
    }  # fmt: skip


def play(base_env: BaseEnv, polls: int) -> list[dict[str, Any]]:
    """Return what each poll says; actions depend on what is seen."""
    polled = []
    for _ in range(polls):
        ready = base_env.poll()
        polled.append(told(ready))
        assert [slot for slot in ready.slots.tolist() if ready.seats[slot][1] == ""] == []
        base_env.send_actions(ready.slots, [int(obs[4]) % 3 for obs in ready.obs])
    return polled


@every_script
@pytest.mark.parametrize("crashes", [False, True])
def test_every_poll_says_the_same(name: str, crashes: bool) -> None:
    check_polls(name, crashes, "process")


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
@pytest.mark.parametrize(
    "name", [name if name == "irregular" else pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS]
)
def test_every_poll_says_the_same_on_ray(name: str) -> None:
    check_polls(name, True, "ray")


def check_polls(name: str, crashes: bool, on: Any) -> None:
    script, solo = SCRIPTS[name], name == "gym"
    scripts: Sequence[Script] = [rotated(script, world) for world in range(3)]

    def maker() -> Callable[[int], Any]:
        return Crashing(script, solo) if crashes else Make(scripts, solo, salt=True)

    here = maker()
    expected = play(to_base_env(here(0), here, 3, seed=3, first_index=5), 60)
    found = play(remote(maker(), 3, on=on, seed=3, first_index=5), 60)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one == other, f"poll {number}"
    assert sum(len(poll["episodes"]) for poll in found) > 10
    assert bool(sum(len(poll["faults"]) for poll in found)) == crashes


@pytest.mark.slow
@every_script
def test_agents_that_are_ready_play_the_same_trajectories(name: str) -> None:
    """The order of the polls is a matter of luck; what each sub-environment does is not."""
    make = Make([rotated(SCRIPTS[name], world) for world in range(3)], name == "gym", salt=True)

    def rows(base_env: BaseEnv) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {0: [], 1: [], 2: []}
        while min(map(len, found.values())) < 40:
            ready = base_env.poll()
            for row, slot in enumerate(ready.slots.tolist()):
                env_id, agent = ready.seats[slot]
                found[int(str(env_id))].append((agent, plain(ready.obs[row]), float(ready.rewards[row])))
            base_env.send_actions(ready.slots, [int(obs[4]) % 3 for obs in ready.obs])
        return {index: mine[:40] for index, mine in found.items()}

    expected = rows(to_base_env(make(0), make, 3, seed=3))
    assert rows(remote(make, 3, wait=0, seed=3)) == expected


def test_a_poll_waits_for_more_rows_as_long_as_the_setting_says() -> None:
    make = Make([TOGETHER] * 4, False)
    for wait, rounds in ((LOCK_STEP, 30), (0, 30)):
        base_env = remote(make, 4, wait=wait)
        sizes = set()
        for _ in range(rounds):
            ready = base_env.poll()
            sizes.add(len({ready.seats[slot][0] for slot in ready.slots.tolist()}))
            base_env.send_actions(ready.slots, [1] * len(ready.slots))
        assert min(sizes) >= 1
        assert (sizes == {4}) or not wait
