"""Four traffic lights of a small town in SUMO, as a `MultiAgentEnv`; `sumo_traffic_lights.py` trains them.

    pip install "menv-rl[train]" eclipse-sumo libsumo
    menv train examples/sumo_town.py:Town --stop time_total_s=240

First most cars drive north and south, then east and west. Every 5 seconds each light keeps its green or changes it,
with 3 seconds of yellow. libsumo has one simulation in each process; for more of them use workers.
"""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import libsumo
import numpy as np
import sumo

from menv import MultiAgentEnv

LIGHTS = ["A0", "A1", "B0", "B1"]
# The first and the last road of a car's way through the town.
NORTH_SOUTH = ["top0A1 A0bottom0", "bottom0A0 A1top0", "top1B1 B0bottom1", "bottom1B0 B1top1"]
EAST_WEST = ["left0A0 B0right0", "right0B0 A0left0", "left1A1 B1right1", "right1B1 A1left1"]
TURNING = ["top0A1 B0right0", "left1A1 B0bottom1", "right0B0 A1top0", "bottom1B0 A1left1"]
DAY, DECISION, YELLOW = 600, 5, 3  # seconds


def make_town(folder: str) -> None:
    """Write the network, and how likely a car starts in each second."""
    command = "netgenerate --grid --grid.number=2 --grid.length=150 --grid.attach-length=150 --no-turnarounds"
    command += " --default-junction-type=traffic_light --no-warnings -o town.net.xml"
    env = {"SUMO_HOME": sumo.SUMO_HOME, "PATH": f"{sumo.SUMO_HOME}/bin"}
    subprocess.run(command.split(), cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    flows: list[str] = []
    for begin, north_south, east_west in ((0, 0.1, 0.035), (DAY // 2, 0.035, 0.1)):
        for roads, chance in ((NORTH_SOUTH, north_south), (EAST_WEST, east_west), (TURNING, 0.03)):
            for pair in roads:
                first, last = pair.split()
                flows.append(
                    f'<flow id="{len(flows)}" begin="{begin}" end="{begin + DAY // 2}" departSpeed="max" '
                    f'from="{first}" to="{last}" probability="{chance}"/>'
                )
    Path(folder, "town.rou.xml").write_text(f"<routes>{''.join(flows)}</routes>")


class Town(MultiAgentEnv):
    """The lights are the agents. Green 0 is for north and south, green 1 for east and west."""

    possible_agents = LIGHTS
    # Of the four roads: waiting cars and cars. Then the green, and for how long.
    observation_space = gym.spaces.Box(0.0, np.inf, (10,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        make_town(self.folder.name)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        command = f"sumo -n {self.folder.name}/town.net.xml -r {self.folder.name}/town.rou.xml --no-step-log"
        command += f" --no-warnings --time-to-teleport=-1 --seed {self.np_random.integers(1 << 30)}"
        self.close()
        libsumo.start(command.split())
        self.roads = {light: libsumo.trafficlight.getControlledLanes(light)[::3] for light in LIGHTS}
        self.green = dict.fromkeys(LIGHTS, 0)
        self.green_for = dict.fromkeys(LIGHTS, 0)
        self.time = self.cars = self.waited = 0
        self.agents = list(LIGHTS)
        for light in LIGHTS:
            self.show(light, 0)
        return self.observe(), {}

    def step(self, action_dict: dict[str, int]) -> Any:
        changed = [light for light in LIGHTS if action_dict[light] != self.green[light]]
        for light in changed:
            self.show(light, 2 * self.green[light] + 1)
        rewards = dict.fromkeys(LIGHTS, 0.0)
        self.time += DECISION
        for second in range(DECISION):
            for light in changed if second == YELLOW else ():
                self.show(light, 2 * int(action_dict[light]))
            libsumo.simulationStep()
            self.cars += libsumo.simulation.getDepartedNumber()
            outside = len(libsumo.simulation.getPendingVehicles())
            self.waited += outside
            for light in LIGHTS:
                waiting = sum(self.waiting(light))
                self.waited += waiting
                rewards[light] -= 0.02 * waiting
        for light in LIGHTS:
            self.green_for[light] = 0 if light in changed else self.green_for[light] + DECISION
            self.green[light] = int(action_dict[light])
        self.mean_wait = self.waited / max(1, self.cars + outside)
        if self.time >= DAY:
            self.agents = []
        return self.observe(), rewards, {"__all__": False}, {"__all__": not self.agents}, {}

    def show(self, light: str, phase: int) -> None:
        """Show a phase of netgenerate's program until the next call: green 0, its yellow, green 1, its yellow."""
        libsumo.trafficlight.setPhase(light, phase)
        libsumo.trafficlight.setPhaseDuration(light, DAY)

    def waiting(self, light: str) -> list[int]:
        """Return the number of waiting cars from north, east, south and west."""
        return [libsumo.lane.getLastStepHaltingNumber(road) for road in self.roads[light]]

    def observe(self) -> dict[str, Any]:
        observations = {}
        for light, roads in self.roads.items():
            cars = [libsumo.lane.getLastStepVehicleNumber(road) / 10 for road in roads]
            waiting = [number / 10 for number in self.waiting(light)]
            green = [self.green[light], min(self.green_for[light], 60) / 30]
            observations[light] = np.array([*waiting, *cars, *green], np.float32)
        return observations

    def close(self) -> None:
        if libsumo.isLoaded():
            libsumo.close()
