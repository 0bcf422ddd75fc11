"""Cars and traffic lights on a small road network, all acting at once.

It shows what `MultiAgentEnv` allows: agents of two kinds with different spaces, cars that leave early and cars that
enter late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

BLOCK = 8
"""Cells from one crossing to the next, and from the last one to the end of a lane."""
MAX_SPEED = 3
"""Cells per step."""
AMBER_STEPS = 3
"""Steps of amber: enough for a car at any speed to stop or to pass in time."""
SIGHT = 16
"""Cells that cars and lights see ahead; farther things are observed at this distance."""
AGE_LIMIT = 32
"""Steps up to which a light knows how long its colour has lasted."""
QUEUE_LIMIT = 8
"""Cars up to which a light counts."""
MAIN, CROSS = 0, 1


@dataclass(slots=True, eq=False)
class Lane:
    """A one-way lane of cells, one car per cell; a car at `length` or beyond has arrived.

    Attributes:
        direction: MAIN or CROSS.
        length: In cells.
        crossings: `(position, light)` of each crossing, in driving order; cars stop before the position.
        cars: Cars on the lane, the first one in front.
    """

    direction: int
    length: int
    crossings: list[tuple[int, int]]
    cars: list[Car] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Car:
    """A car on its lane; position in cells, speed in cells per step, `moved` in the last step."""

    name: str
    lane: Lane
    position: int
    speed: int = 0
    moved: int = 0

    def next_crossing(self) -> tuple[int, int] | None:
        """Return `(position, light)` of the crossing ahead, None behind the last one."""
        return next((one for one in self.lane.crossings if one[0] > self.position), None)


@dataclass(slots=True, eq=False)
class Light:
    """A traffic light.

    Attributes:
        green: The direction with green, or with amber while `amber` counts down.
        amber: Steps until the other direction gets green; 0 if it does not switch.
        age: Steps since `green` turned green.
        entered: Cars that entered the crossing in the last step.
    """

    green: int = MAIN
    amber: int = 0
    age: int = 0
    entered: int = 0

    def advance(self, wish: int) -> None:
        """Advance one step; a wish for the other direction starts amber."""
        self.entered = 0
        self.age += 1
        if self.amber:
            self.amber -= 1
            if not self.amber:
                self.green, self.age = 1 - self.green, 0
        elif wish != self.green:
            self.amber = AMBER_STEPS


_SETTINGS: dict[str, Any] = {
    "num_cars": 2,
    "num_traffic_lights": 1,
    "max_cars": None,
    "entry_rate": 0.1,
    "horizon": 100,
}


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**_SETTINGS, **given}
    num_cars = settings["num_cars"]
    if settings["max_cars"] is None:
        settings["max_cars"] = 2 * num_cars
    lowest = {"max_cars": max(1, num_cars), "horizon": 1}
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise ConfigError(
                f"MultiAgentTrafficEnv: unknown setting {name!r}, expected some of {', '.join(_SETTINGS)}; correct it"
            )
        if value < lowest.get(name, 0) or (name == "entry_rate" and value > 1.0):
            most = " and at most 1" if name == "entry_rate" else ""
            raise ConfigError(
                f"MultiAgentTrafficEnv: {name} is {value!r}, expected at least {lowest.get(name, 0)}{most}; change it"
            )
    return settings


class MultiAgentTrafficEnv(MultiAgentEnv):
    """Cars want to arrive, lights want the traffic to flow; all present agents act at every step.

    - Agents: `"car_1"`, ... and `"traffic_light_1"`, .... A main road meets cross streets one after another, one per
      light. Cars with odd numbers take the main road, the others the cross streets in turn. A car that has arrived is
      terminated and gone. Cars beyond `num_cars` enter while the episode runs, in order, up to `max_cars`.
    - Action of a car: Discrete(3), brake, keep or accelerate by one cell per step; at most 3 cells per step.
      Cars cannot pass: a car that would run into the one ahead stops behind it.
    - Action of a light: Discrete(2), 0 for green on the main road, 1 on the cross street. Switching takes 3
      steps of amber, during which actions have no effect.
    - Reward of a car: 1 per cell; -1 for a step without progress; -10 for entering a crossing at red; -10 for
      a crash, into the car ahead or with cross traffic on a crossing; 10 for arriving.
    - Reward of a light: 1 for each car that enters its crossing, -1 for each that stands before it.
    - End: terminated when all cars have arrived and none will come, truncated after `horizon` steps.
    - Infos: `{"ran_red": True}` and `{"crashed": True}` for the cars concerned.

    A car observes float32 [8], from 0 to 1: speed; road left; distance to the next crossing; whether its
    light there is green, amber, red (all 0 behind the last crossing); distance to the car ahead; its speed.
    A light observes float32 [9]: green for the main road, its amber, green for the cross street, its amber;
    steps since it turned green; cars in sight on the main road, on the cross street; how many of them stand.

    Args:
        config: `"num_cars"` on the road at the start (default 2), `"num_traffic_lights"` (1), `"max_cars"` of one
            episode (default twice `num_cars`), `"entry_rate"`, the chance per step that the next car enters (0.1),
            `"horizon"` (100).
        **settings: The same as keywords; they win over `config`.

    Raises:
        ConfigError: A setting is unknown or out of its range.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        given = {**(config or {}), **settings}
        # It renders text, whatever is asked for.
        given.pop("render_mode", None)
        self.settings = _checked(given)
        self.render_mode = "ansi"
        num_lights, num_cars = self.settings["num_traffic_lights"], self.settings["num_cars"]
        first = [_lane_number(car, num_lights) for car in range(num_cars)]
        # Cells before the first crossing of each lane: room for its first cars.
        self._approaches = [max(BLOCK, 2 * first.count(lane)) for lane in range(num_lights + 1)]
        along = [(self._approaches[0] + BLOCK * light, light) for light in range(num_lights)]
        self.lanes = [Lane(MAIN, self._approaches[0] + BLOCK * max(1, num_lights), along)]
        for light, approach in enumerate(self._approaches[1:]):
            self.lanes.append(Lane(CROSS, approach + BLOCK, [(approach, light)]))
        self.lights = [Light() for _ in range(num_lights)]
        self._light_names = [f"traffic_light_{number + 1}" for number in range(num_lights)]
        self._car_names = [f"car_{number + 1}" for number in range(self.settings["max_cars"])]
        self.possible_agents = [*self._car_names, *self._light_names]
        car_space, light_space = (gym.spaces.Box(0.0, 1.0, (size,), np.float32) for size in (8, 9))
        pedals, colours = gym.spaces.Discrete(3), gym.spaces.Discrete(2)
        self.observation_spaces = {
            **dict.fromkeys(self._car_names, car_space),
            **dict.fromkeys(self._light_names, light_space),
        }
        self.action_spaces = {
            **dict.fromkeys(self._car_names, pedals),
            **dict.fromkeys(self._light_names, colours),
        }
        self._cars: dict[str, Car] = {}
        self._num_entered = 0
        self._steps_left = 0
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Put the first cars before the first crossings, at random places.

        Args:
            seed: Of the random numbers; None continues them.
            options: Ignored.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        for lane in self.lanes:
            lane.cars.clear()
        self.lights = [Light() for _ in self.lights]
        self._cars.clear()
        self._num_entered = 0
        self._steps_left = self.settings["horizon"]
        self._place_first_cars()
        self.agents = [*self._cars, *self._light_names]
        return self._observe(), {}

    def step(self, actions: AgentDict) -> StepDicts:
        """Move lights, then cars, then let the next car in.

        Raises:
            CallOrderError: The episode has ended, or never began.
            ContractError: The actions are not valid actions of exactly the present agents.
        """
        if not self._steps_left:
            raise CallOrderError(
                "MultiAgentTrafficEnv.step: no episode is running, expected reset first; call reset"
            )
        self._check(actions)
        self._steps_left -= 1
        for light, name in zip(self.lights, self._light_names, strict=True):
            light.advance(int(actions[name]))
        ran_red, crashed, arrived = self._drive(actions)
        rewards = self._rewards(ran_red, crashed)
        obs: AgentDict = {car.name: self._observe_car(car, None) for car in arrived}
        for car in arrived:
            rewards[car.name] += 10.0
            del self._cars[car.name]
        self._let_in()
        self.agents = [*self._cars, *self._light_names]
        obs |= self._observe()
        infos: AgentDict = {}
        for key, names in (("ran_red", ran_red), ("crashed", crashed)):
            for name in sorted(names):
                infos.setdefault(name, {})[key] = True
        return obs, rewards, *self._flags(arrived), infos

    def render(self) -> str:
        """Return one line per lane: its cars, and each crossing as `=` (green for it), `:` (amber) or `|`."""
        lines = []
        for lane in self.lanes:
            cells = ["."] * lane.length
            for position, number in lane.crossings:
                light = self.lights[number]
                cells[position] = "|" if light.green != lane.direction else ":" if light.amber else "="
            for car in lane.cars:
                cells[car.position] = ">"
            lines.append("".join(cells))
        return "\n".join(lines)

    def _place_first_cars(self) -> None:
        places: dict[int, list[int]] = {}
        for number in range(self.settings["num_cars"]):
            places.setdefault(_lane_number(number, len(self.lights)), []).append(number)
        for lane, numbers in sorted(places.items()):
            cells = self._rng.choice(self._approaches[lane], len(numbers), replace=False)
            for number, cell in zip(numbers, sorted(cells.tolist(), reverse=True), strict=True):
                self._enter(number, cell)
        # Lanes were filled one after another, but agents are listed by number.
        self._cars = {name: self._cars[name] for name in self._car_names[: self.settings["num_cars"]]}

    def _enter(self, number: int, cell: int) -> None:
        """Add a standing car behind the others on its lane, if there is room."""
        lane = self.lanes[_lane_number(number, len(self.lights))]
        if not lane.cars or lane.cars[-1].position > cell:
            car = Car(self._car_names[number], lane, cell)
            lane.cars.append(car)
            self._cars[car.name] = car
            self._num_entered += 1

    def _let_in(self) -> None:
        if self._num_entered < len(self._car_names) and self._rng.random() < self.settings["entry_rate"]:
            self._enter(self._num_entered, 0)

    def _check(self, actions: AgentDict) -> None:
        present = dict.fromkeys(self.agents)
        for agent in {**actions, **present}:
            choices = 3 if agent in self._cars else 2
            if agent not in present or actions.get(agent) not in range(choices):
                raise ContractError(
                    f"MultiAgentTrafficEnv.step: the action of {agent!r} is {actions.get(agent)!r}, expected valid "
                    f"actions of exactly {self.agents[:16]}; answer all agents that the last obs named"
                )

    def _drive(self, actions: AgentDict) -> tuple[set[str], set[str], list[Car]]:
        """Move the cars of each lane from the front; return who ran a red light, who crashed, and who arrived."""
        arrived: list[Car] = []
        ran_red: set[str] = set()
        crashed: set[str] = set()
        # Cars on each crossing, by direction.
        inside: list[tuple[list[Car], list[Car]]] = [([], []) for _ in self.lights]
        for lane in self.lanes:
            ahead: Car | None = None
            for car in list(lane.cars):
                start = car.position
                car.speed = min(MAX_SPEED, max(0, car.speed + int(actions[car.name]) - 1))
                car.position += car.speed
                if ahead is not None and car.position >= ahead.position:
                    car.position, car.speed = ahead.position - 1, 0
                    crashed.add(car.name)
                car.moved = car.position - start
                self._cross(car, start, ran_red, inside)
                if car.position >= lane.length:
                    lane.cars.remove(car)
                    arrived.append(car)
                else:
                    ahead = car
        for along, across in inside:
            for car in along + across if along and across else ():
                car.speed = 0
                crashed.add(car.name)
        return ran_red, crashed, arrived

    def _cross(
        self, car: Car, start: int, ran_red: set[str], inside: list[tuple[list[Car], list[Car]]]
    ) -> None:
        for position, number in car.lane.crossings:
            enters = start < position <= car.position
            if enters:
                self.lights[number].entered += 1
                if self.lights[number].green != car.lane.direction:
                    ran_red.add(car.name)
            if enters or car.position == position:
                inside[number][car.lane.direction].append(car)

    def _rewards(self, ran_red: set[str], crashed: set[str]) -> AgentDict:
        rewards: AgentDict = {}
        standing = [0] * len(self.lights)
        for name, car in self._cars.items():
            rewards[name] = float(car.moved or -1) - 10.0 * (name in ran_red) - 10.0 * (name in crashed)
            ahead = car.next_crossing()
            if ahead is not None and not car.moved:
                standing[ahead[1]] += 1
        for name, light, waiting in zip(self._light_names, self.lights, standing, strict=True):
            rewards[name] = float(light.entered - waiting)
        return rewards

    def _flags(self, arrived: list[Car]) -> tuple[AgentDict, AgentDict]:
        terminateds: AgentDict = {car.name: True for car in arrived}
        truncateds: AgentDict = {}
        done = not self._cars and self._num_entered == len(self._car_names)
        late = not done and not self._steps_left
        if done:
            terminateds |= dict.fromkeys(self._light_names, True)
        if late:
            truncateds |= dict.fromkeys(self.agents, True)
        if done or late:
            self._steps_left = 0
            self.agents = []
        terminateds[ALL], truncateds[ALL] = done, late
        return terminateds, truncateds

    def _observe(self) -> AgentDict:
        ahead = {
            car.name: front
            for lane in self.lanes
            for front, car in zip(lane.cars, lane.cars[1:], strict=False)
        }
        obs: AgentDict = {name: self._observe_car(car, ahead.get(name)) for name, car in self._cars.items()}
        for number, name in enumerate(self._light_names):
            obs[name] = self._observe_light(number)
        return obs

    def _observe_car(self, car: Car, ahead: Car | None) -> npt.NDArray[np.float32]:
        crossing, to_crossing, colours = car.next_crossing(), 1.0, (0.0, 0.0, 0.0)
        if crossing is not None:
            to_crossing = min(1.0, (crossing[0] - car.position) / SIGHT)
            light = self.lights[crossing[1]]
            mine = light.green == car.lane.direction
            colours = (float(mine and not light.amber), float(mine and light.amber > 0), float(not mine))
        to_car = 1.0 if ahead is None else min(1.0, (ahead.position - car.position) / SIGHT)
        other_speed = 0.0 if ahead is None else ahead.speed / MAX_SPEED
        left = max(0.0, 1.0 - car.position / car.lane.length)
        return np.array(
            (car.speed / MAX_SPEED, left, to_crossing, *colours, to_car, other_speed), dtype=np.float32
        )

    def _observe_light(self, number: int) -> npt.NDArray[np.float32]:
        light = self.lights[number]
        state = [0.0] * 4
        state[2 * light.green + (light.amber > 0)] = 1.0
        cars, standing = [0, 0], [0, 0]
        for car in self._cars.values():
            ahead = car.next_crossing()
            if ahead is not None and ahead[1] == number and ahead[0] - car.position <= SIGHT:
                cars[car.lane.direction] += 1
                standing[car.lane.direction] += car.speed == 0
        counts = [min(1.0, count / QUEUE_LIMIT) for count in (*cars, *standing)]
        return np.array((*state, min(1.0, light.age / AGE_LIMIT), *counts), dtype=np.float32)


def _lane_number(car: int, num_lights: int) -> int:
    """Return the lane of the car with this number, counted from 0: the main road is lane 0."""
    return 0 if num_lights == 0 or car % 2 == 0 else 1 + (car // 2) % num_lights
