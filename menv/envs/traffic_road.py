"""A small road network: one main road, a cross street and a light at every crossing.

`menv.envs.traffic` plays it as an environment. Nothing here knows agents' observations, rewards or episodes.

All lanes go one way and consist of cells; a cell holds one car. The main road (direction 0) meets the cross
streets (direction 1) one after another, so a lane is a list of cells with crossings at known positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

BLOCK = 8
"""Cells from one crossing to the next, and from the last one to the end of a lane."""
MAX_SPEED = 3
"""Cells per step."""
AMBER_STEPS = 3
"""Steps from the wish to switch until the other direction gets green.

Long enough for fairness: a car that sees amber either stops in time or passes in time, at any speed.
"""
MAIN, CROSS = 0, 1


@dataclass(slots=True, eq=False)
class Lane:
    """A one-way lane.

    Attributes:
        direction: MAIN or CROSS.
        length: Cells; a car at `length` or beyond has arrived.
        crossings: `(position, light)` of each crossing, in driving order; cars stop before the position.
        cars: Cars on the lane, the foremost first.
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
        green: The direction that has green, or amber while `amber` counts down.
        amber: Steps until the other direction gets green; 0 while nothing changes.
        age: Steps since `green` turned green.
    """

    green: int = MAIN
    amber: int = 0
    age: int = 0

    def advance(self, wish: int) -> None:
        """Pass one step; a wish for the other direction starts amber, and amber runs its course."""
        self.age += 1
        if self.amber:
            self.amber -= 1
            if not self.amber:
                self.green = 1 - self.green
                self.age = 0
        elif wish != self.green:
            self.amber = AMBER_STEPS


@dataclass(slots=True)
class Happenings:
    """What one step brought.

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
    """The lanes, their cars and the lights.

    Args:
        num_lights: Crossings along the main road.
        first_cars: How many cars shall find room before the first crossing of each lane: the main road,
            then each cross street.
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
        """Take all cars off the road and set all lights to green for the main road."""
        for lane in self.lanes:
            lane.cars.clear()
        self.lights = [Light() for _ in self.lights]

    def enter(self, name: str, lane: Lane, position: int = 0) -> Car | None:
        """Put a standing car behind those that are on `lane`; None if the place is taken."""
        if lane.cars and lane.cars[-1].position <= position:
            return None
        car = Car(name, lane, position)
        lane.cars.append(car)
        return car

    def advance(self, speed_changes: dict[str, int], wishes: dict[int, int]) -> Happenings:
        """Pass one step: the lights first, then the cars of each lane from the foremost.

        Args:
            speed_changes: -1, 0 or 1 by car name; a missing car keeps its speed.
            wishes: The direction that shall have green, by light; a missing light stays as it is.
        """
        for number, light in enumerate(self.lights):
            light.advance(wishes.get(number, light.green))
        seen = Happenings({}, [0] * len(self.lights), set(), set(), [])
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
        seen: Happenings,
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
        self, car: Car, start: int, seen: Happenings, inside: dict[tuple[int, int], list[Car]]
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

    `>` is a car on the main road, `v` one on a cross street; beside each crossing `=` means green for the
    main road, `|` green for the cross street, `:` amber.
    """
    return "\n".join("".join(_LOOKS[kind] for kind in row) for row in _seen_from_above(road).tolist())


def picture_of(road: Road) -> npt.NDArray[np.uint8]:
    """Return the map as a uint8 picture [8 * rows, 8 * columns, 3].

    Beside each crossing green means that the main road may go, red that the cross street may.
    """
    cells = _seen_from_above(road).repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)
    return _COLOURS[cells]
