"""Cars and traffic lights on a small road network, all acting at once.

It shows what `MultiAgentEnv` allows: agents of two kinds with different spaces, cars that leave early and cars that
enter late. `Road` is the simulation, `MultiAgentTrafficEnv` the environment.
"""

from __future__ import annotations

import difflib
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
MAIN, CROSS = 0, 1


@dataclass(slots=True, eq=False)
class Lane:
    """A one-way lane of cells, one car per cell; a car at `length` or beyond has arrived.

    Attributes:
        direction: MAIN or CROSS.
        crossings: `(position, light)` of each crossing, in driving order; cars stop before the position.
        cars: Cars on the lane, the first one in front.
    """

    direction: int
    length: int
    crossings: list[tuple[int, int]]
    cars: list[Car] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Car:
    """A car on its lane; position in cells, speed in cells per step."""

    name: str
    lane: Lane
    position: int
    speed: int = 0

    def next_crossing(self) -> tuple[int, int] | None:
        """Return `(position, light)` of the crossing ahead, None behind the last one."""
        return next((one for one in self.lane.crossings if one[0] > self.position), None)

    def car_ahead(self) -> Car | None:
        """Return the next car on the same lane."""
        place = self.lane.cars.index(self)
        return self.lane.cars[place - 1] if place else None

    @property
    def arrived(self) -> bool:
        """True once the car has left its lane at the far end."""
        return self.position >= self.lane.length


@dataclass(slots=True, eq=False)
class Light:
    """A traffic light.

    Attributes:
        green: The direction with green, or with amber while `amber` counts down.
        amber: Steps until the other direction gets green; 0 if it does not switch.
        age: Steps since `green` turned green.
    """

    green: int = MAIN
    amber: int = 0
    age: int = 0

    def advance(self, wish: int) -> None:
        """Advance one step; a wish for the other direction starts amber."""
        self.age += 1
        if self.amber:
            self.amber -= 1
            if not self.amber:
                self.green = 1 - self.green
                self.age = 0
        elif wish != self.green:
            self.amber = AMBER_STEPS


@dataclass(slots=True)
class RoadEvents:
    """The events of one step.

    Attributes:
        progress: Cells by car name.
        entered: How many cars entered the crossing of each light.
        ran_red: Cars that entered a crossing although the light forbade it.
        crashed: Cars that ran into the car ahead, or met cross traffic on a crossing.
        arrived: Cars that left the road.
    """

    progress: dict[str, int]
    entered: list[int]
    ran_red: set[str]
    crashed: set[str]
    arrived: list[Car]


class Road:
    """The lanes, their cars and the lights: a main road that meets cross streets one after another.

    Args:
        num_lights: Crossings along the main road.
        first_cars: How many cars there is room for before the first crossing of each lane: the main road, then each
            cross street.
    """

    def __init__(self, num_lights: int, first_cars: list[int]) -> None:
        approaches = [max(BLOCK, 2 * cars) for cars in first_cars]
        along = [(approaches[0] + BLOCK * light, light) for light in range(num_lights)]
        main = Lane(MAIN, approaches[0] + BLOCK * max(1, num_lights), along)
        streets = [
            Lane(CROSS, approach + BLOCK, [(approach, light)])
            for light, approach in enumerate(approaches[1:])
        ]
        self.approaches = approaches
        self.lanes = [main, *streets]
        self.lights = [Light() for _ in range(num_lights)]

    def clear(self) -> None:
        """Remove all cars and set all lights to green for the main road."""
        for lane in self.lanes:
            lane.cars.clear()
        self.lights = [Light() for _ in self.lights]

    def enter(self, name: str, lane: Lane, position: int = 0) -> Car | None:
        """Add a standing car behind the others on `lane`; None if there is no room."""
        if lane.cars and lane.cars[-1].position <= position:
            return None
        car = Car(name, lane, position)
        lane.cars.append(car)
        return car

    def advance(self, speed_changes: dict[str, int], wishes: dict[int, int]) -> RoadEvents:
        """Advance one step: the lights first, then the cars of each lane from the front.

        Args:
            speed_changes: -1, 0 or 1 by car name; a missing car keeps its speed.
            wishes: The direction that should get green, by light; a missing light does not switch.
        """
        for number, light in enumerate(self.lights):
            light.advance(wishes.get(number, light.green))
        seen = RoadEvents({}, [0] * len(self.lights), set(), set(), [])
        inside: dict[tuple[int, int], list[Car]] = {}
        for lane in self.lanes:
            self._drive(lane, speed_changes, seen, inside)
        for number in range(len(self.lights)):
            along, across = inside.get((number, MAIN), []), inside.get((number, CROSS), [])
            if along and across:
                for car in along + across:
                    car.speed = 0
                    seen.crashed.add(car.name)
        return seen

    def _drive(
        self,
        lane: Lane,
        speed_changes: dict[str, int],
        seen: RoadEvents,
        inside: dict[tuple[int, int], list[Car]],
    ) -> None:
        ahead: Car | None = None
        for car in list(lane.cars):
            start = car.position
            car.speed = min(MAX_SPEED, max(0, car.speed + speed_changes.get(car.name, 0)))
            car.position += car.speed
            if ahead is not None and car.position >= ahead.position:
                car.position, car.speed = ahead.position - 1, 0
                seen.crashed.add(car.name)
            seen.progress[car.name] = car.position - start
            self._cross(car, start, seen, inside)
            if car.arrived:
                lane.cars.remove(car)
                seen.arrived.append(car)
            else:
                ahead = car

    def _cross(
        self, car: Car, start: int, seen: RoadEvents, inside: dict[tuple[int, int], list[Car]]
    ) -> None:
        direction = car.lane.direction
        for position, number in car.lane.crossings:
            if start < position <= car.position:
                seen.entered[number] += 1
                if self.lights[number].green != direction:
                    seen.ran_red.add(car.name)
            if start < position <= car.position or car.position == position:
                inside.setdefault((number, direction), []).append(car)


_LOOKS = ".·>v=:|"
_COLOURS = np.array(
    [
        (86, 125, 70),
        (70, 70, 75),
        (240, 200, 60),
        (90, 180, 240),
        (60, 210, 90),
        (250, 150, 40),
        (220, 60, 60),
    ],
    np.uint8,
)
_CELL_PIXELS = 8


def _seen_from_above(road: Road) -> npt.NDArray[np.uint8]:
    """Return the map as kinds of cells [rows, columns], numbered as in `_LOOKS`."""
    main, *streets = road.lanes
    middle = max(road.approaches[1:], default=0)
    cells = np.zeros((middle + (BLOCK if streets else 1), main.length), np.uint8)
    cells[middle] = 1
    for lane, approach, (column, number) in zip(streets, road.approaches[1:], main.crossings, strict=True):
        top = middle - approach
        cells[top : top + lane.length, column] = 1
        light = road.lights[number]
        cells[middle - 1, column - 1] = 5 if light.amber else 4 if light.green == MAIN else 6
        for car in lane.cars:
            cells[top + car.position, column] = 3
    for car in main.cars:
        cells[middle, car.position] = 2
    return cells


def text_of(road: Road) -> str:
    """Return the map as text.

    `>` is a car on the main road, `v` one on a cross street; next to each crossing `=` means green for the main road,
    `|` green for the cross street, `:` amber.
    """
    return "\n".join("".join(_LOOKS[kind] for kind in row) for row in _seen_from_above(road).tolist())


def picture_of(road: Road) -> npt.NDArray[np.uint8]:
    """Return the map as a uint8 picture [8 * rows, 8 * columns, 3].

    Next to each crossing green means green for the main road, red for the cross street.
    """
    cells = _seen_from_above(road).repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)
    return _COLOURS[cells]


SIGHT = 16
"""Cells that cars and lights see ahead; farther things are observed at this distance."""
AGE_LIMIT = 32
"""Steps up to which a light knows how long its colour has lasted."""
QUEUE_LIMIT = 8
"""Cars up to which a light counts."""

CAR_OBS = 8
LIGHT_OBS = 9


_RENDER_MODES = ("ansi", "rgb_array")
_SETTINGS: dict[str, Any] = {
    "num_cars": 2,
    "num_traffic_lights": 1,
    "max_cars": None,
    "entry_rate": 0.1,
    "horizon": 100,
    "render_mode": "ansi",
}


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in _SETTINGS:
            near = difflib.get_close_matches(str(name), _SETTINGS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "remove it"
            raise ConfigError(
                f"MultiAgentTrafficEnv: unknown setting {name!r}, expected some of {', '.join(_SETTINGS)}; {hint}"
            )
    settings = {**_SETTINGS, **given}
    num_cars = settings["num_cars"]
    if settings["max_cars"] is None:
        settings["max_cars"] = 2 * num_cars
    for name, holds, rule in (
        ("num_cars", num_cars >= 0, "0 or more"),
        ("num_traffic_lights", settings["num_traffic_lights"] >= 0, "0 or more"),
        ("max_cars", settings["max_cars"] >= max(1, num_cars), f"at least 1 and num_cars ({num_cars})"),
        ("entry_rate", 0.0 <= settings["entry_rate"] <= 1.0, "a chance from 0 to 1"),
        ("horizon", settings["horizon"] >= 1, "1 or more"),
        ("render_mode", settings["render_mode"] in _RENDER_MODES, " or ".join(_RENDER_MODES)),
    ):
        if not holds:
            raise ConfigError(
                f"MultiAgentTrafficEnv: {name} is {settings[name]!r}, expected {rule}; change the setting of that name"
            )
    return settings


class MultiAgentTrafficEnv(MultiAgentEnv):
    """Cars want to arrive, lights want the traffic to flow; all present agents act at every step.

    - Agents: `"car_1"`, ... and `"traffic_light_1"`, .... Cars with odd numbers take the main road, the
      others the cross streets in turn. A car that has arrived is terminated and gone. Cars beyond `num_cars`
      enter while the episode runs, in order, up to `max_cars`.
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
            `"horizon"` (100), `"render_mode"`, `"ansi"` (default), a text, or `"rgb_array"`, a picture.
        **settings: The same as keywords; they win over `config`.

    Raises:
        ConfigError: A setting is unknown or out of its range.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(_RENDER_MODES), "render_fps": 4}

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self.settings = _checked({**(config or {}), **settings})
        self.render_mode = self.settings["render_mode"]
        num_lights, num_cars = self.settings["num_traffic_lights"], self.settings["num_cars"]
        first = [_lane_number(car, num_lights) for car in range(num_cars)]
        self.road = Road(num_lights, [first.count(lane) for lane in range(num_lights + 1)])
        self._lights = [f"traffic_light_{number + 1}" for number in range(num_lights)]
        self._car_names = [f"car_{number + 1}" for number in range(self.settings["max_cars"])]
        self.possible_agents = [*self._car_names, *self._lights]
        car_space, light_space = _unit_box(CAR_OBS), _unit_box(LIGHT_OBS)
        pedals, colours = gym.spaces.Discrete(3), gym.spaces.Discrete(2)
        self.observation_spaces = {
            **dict.fromkeys(self._car_names, car_space),
            **dict.fromkeys(self._lights, light_space),
        }
        self.action_spaces = {
            **dict.fromkeys(self._car_names, pedals),
            **dict.fromkeys(self._lights, colours),
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
        self.road.clear()
        self._cars.clear()
        self._num_entered = 0
        self._steps_left = self.settings["horizon"]
        self._place_first_cars()
        self.agents = [*self._cars, *self._lights]
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
        pedals, wishes = self._read(actions)
        self._steps_left -= 1
        seen = self.road.advance(pedals, wishes)
        rewards = self._rewards(seen)
        obs: AgentDict = {car.name: self._observe_car(car) for car in seen.arrived}
        for car in seen.arrived:
            del self._cars[car.name]
        self._let_in()
        self.agents = [*self._cars, *self._lights]
        obs |= self._observe()
        terminateds, truncateds = self._flags(seen)
        infos: AgentDict = {}
        for key, names in (("ran_red", seen.ran_red), ("crashed", seen.crashed)):
            for name in sorted(names):
                infos.setdefault(name, {})[key] = True
        return obs, rewards, terminateds, truncateds, infos

    def render(self) -> Any:
        """Return the map as text or as a picture, as `render_mode` says."""
        return picture_of(self.road) if self.render_mode == "rgb_array" else text_of(self.road)

    def _place_first_cars(self) -> None:
        places: dict[int, list[int]] = {}
        for number in range(self.settings["num_cars"]):
            places.setdefault(_lane_number(number, len(self._lights)), []).append(number)
        for lane, numbers in sorted(places.items()):
            cells = self._rng.choice(self.road.approaches[lane], len(numbers), replace=False)
            for number, cell in zip(numbers, sorted(cells.tolist(), reverse=True), strict=True):
                self._enter(number, self.road.lanes[lane], cell)
        # Lanes were filled one after another, but agents are listed by number.
        self._cars = {name: self._cars[name] for name in self._car_names[: self.settings["num_cars"]]}

    def _enter(self, number: int, lane: Lane, cell: int) -> None:
        car = self.road.enter(self._car_names[number], lane, cell)
        if car is not None:
            self._cars[car.name] = car
            self._num_entered += 1

    def _let_in(self) -> None:
        if self._num_entered < len(self._car_names) and self._rng.random() < self.settings["entry_rate"]:
            number = self._num_entered
            self._enter(number, self.road.lanes[_lane_number(number, len(self._lights))], 0)

    def _read(self, action_dict: AgentDict) -> tuple[dict[str, int], dict[int, int]]:
        if action_dict.keys() != set(self.agents):
            raise ContractError(
                f"MultiAgentTrafficEnv.step: got actions for {_names(action_dict)}, expected "
                f"{_names(self.agents)}; answer all agents that the last obs named, and no others"
            )
        for agent_id, action in action_dict.items():
            choices = 3 if agent_id in self._cars else 2
            if action not in range(choices):
                raise ContractError(
                    f"MultiAgentTrafficEnv.step: the action of {agent_id!r} is {action!r}, expected "
                    f"an integer from 0 to {choices - 1}; choose one from get_action_space({agent_id!r})"
                )
        pedals = {name: int(action_dict[name]) - 1 for name in self._cars}
        return pedals, {number: int(action_dict[name]) for number, name in enumerate(self._lights)}

    def _rewards(self, seen: RoadEvents) -> AgentDict:
        rewards: AgentDict = {}
        for name, cells in seen.progress.items():
            rewards[name] = float(cells or -1) - 10.0 * (name in seen.ran_red) - 10.0 * (name in seen.crashed)
        for car in seen.arrived:
            rewards[car.name] += 10.0
        standing = [0] * len(self._lights)
        for car in self._cars.values():
            ahead = car.next_crossing()
            if ahead is not None and not seen.progress[car.name]:
                standing[ahead[1]] += 1
        for name, entered, waiting in zip(self._lights, seen.entered, standing, strict=True):
            rewards[name] = float(entered - waiting)
        return rewards

    def _flags(self, seen: RoadEvents) -> tuple[AgentDict, AgentDict]:
        terminateds: AgentDict = {car.name: True for car in seen.arrived}
        truncateds: AgentDict = {}
        done = not self._cars and self._num_entered == len(self._car_names)
        late = not done and not self._steps_left
        if done:
            terminateds |= dict.fromkeys(self._lights, True)
        if late:
            truncateds |= dict.fromkeys(self.agents, True)
        if done or late:
            self._steps_left = 0
            self.agents = []
        terminateds[ALL], truncateds[ALL] = done, late
        return terminateds, truncateds

    def _observe(self) -> AgentDict:
        obs: AgentDict = {name: self._observe_car(car) for name, car in self._cars.items()}
        for number, name in enumerate(self._lights):
            obs[name] = self._observe_light(number)
        return obs

    def _observe_car(self, car: Car) -> npt.NDArray[np.float32]:
        crossing, ahead = car.next_crossing(), None if car.arrived else car.car_ahead()
        to_crossing, colours = 1.0, (0.0, 0.0, 0.0)
        if crossing is not None:
            to_crossing = min(1.0, (crossing[0] - car.position) / SIGHT)
            light = self.road.lights[crossing[1]]
            mine = light.green == car.lane.direction
            colours = (float(mine and not light.amber), float(mine and light.amber > 0), float(not mine))
        to_car = 1.0 if ahead is None else min(1.0, (ahead.position - car.position) / SIGHT)
        other_speed = 0.0 if ahead is None else ahead.speed / MAX_SPEED
        left = max(0.0, 1.0 - car.position / car.lane.length)
        return np.array(
            (car.speed / MAX_SPEED, left, to_crossing, *colours, to_car, other_speed), dtype=np.float32
        )

    def _observe_light(self, number: int) -> npt.NDArray[np.float32]:
        light = self.road.lights[number]
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
    if num_lights == 0 or car % 2 == 0:
        return 0
    return 1 + (car // 2) % num_lights


def _unit_box(size: int) -> gym.spaces.Box:
    return gym.spaces.Box(0.0, 1.0, (size,), np.float32)


def _names(agents: Any) -> str:
    return ", ".join(sorted(repr(agent_id) for agent_id in agents)) or "no agent"
