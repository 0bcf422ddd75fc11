"""Cars and traffic lights on a small road network, all acting at once.

Shows what the contract of `MultiAgentEnv` allows: agents of two kinds with different spaces, cars that leave
early and cars that enter late. The road itself is `menv.envs.traffic_road`; `menv.envs.traffic_rules` drives
by fixed rules, as a baseline. Nothing here knows policies.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL
from menv.envs.traffic_road import (
    MAX_SPEED,
    Car,
    Happenings,
    Lane,
    Road,
    picture_of,
    text_of,
)
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

SIGHT = 16
"""Cells that cars and lights see ahead; farther things look as if they were here."""
AGE_LIMIT = 32
"""Steps up to which a light knows how long its colour has lasted."""
QUEUE_LIMIT = 8
"""Cars up to which a light counts."""

CAR_OBS = 8
LIGHT_OBS = 9


@dataclass(frozen=True, kw_only=True)
class TrafficSettings:
    """What `MultiAgentTrafficEnv` takes, as keywords or in its config.

    Raises:
        ConfigError: A number is out of its range.
    """

    num_cars: int = 2
    """Cars that are on the road at the start."""
    num_traffic_lights: int = 1
    """Crossings, each with a light of its own."""
    max_cars: int | None = None
    """Cars that may appear in one episode; twice `num_cars` if None."""
    entry_rate: float = 0.1
    """Chance per step that the next car enters, if there is room for it."""
    horizon: int = 100
    """Steps after which the episode is truncated."""
    render_mode: str = "ansi"
    """`"ansi"` for text, `"rgb_array"` for a picture."""

    def __post_init__(self) -> None:
        most = 2 * self.num_cars if self.max_cars is None else self.max_cars
        object.__setattr__(self, "max_cars", most)
        _expect("num_cars", self.num_cars, self.num_cars >= 0, "0 or more")
        _expect("num_traffic_lights", self.num_traffic_lights, self.num_traffic_lights >= 0, "0 or more")
        _expect("max_cars", most, most >= max(1, self.num_cars), f"at least 1 and num_cars ({self.num_cars})")
        _expect("entry_rate", self.entry_rate, 0.0 <= self.entry_rate <= 1.0, "a chance from 0 to 1")
        _expect("horizon", self.horizon, self.horizon >= 1, "1 or more")
        _expect(
            "render_mode", self.render_mode, self.render_mode in _RENDER_MODES, " or ".join(_RENDER_MODES)
        )


_RENDER_MODES = ("ansi", "rgb_array")


def _expect(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ConfigError(
            f"MultiAgentTrafficEnv: {name} is {value!r}, expected {rule}; change the setting of that name"
        )


def _settings(given: Mapping[str, Any]) -> TrafficSettings:
    known = [one.name for one in fields(TrafficSettings)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "remove it"
            raise ConfigError(
                f"MultiAgentTrafficEnv: unknown setting {name!r}, expected some of {', '.join(known)}; {hint}"
            )
    return TrafficSettings(**given)


class MultiAgentTrafficEnv(MultiAgentEnv):
    """Cars want to arrive, lights want the traffic to flow; everybody who is there acts at every step.

    - Agents: `"car_1"`, ... and `"traffic_light_1"`, .... Cars with odd numbers take the main road, the
      others the cross streets in turn. A car that has arrived is terminated and gone. Cars beyond `num_cars`
      enter while the episode runs, in order, up to `max_cars`.
    - Action of a car: Discrete(3), brake, keep or accelerate by one cell per step; at most 3 cells per step.
      Nobody passes: who would run into the car ahead stops behind it.
    - Action of a light: Discrete(2), 0 for green on the main road, 1 on the cross street. Switching takes 3
      steps of amber, during which wishes are not heard.
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
        self.settings = _settings({**(config or {}), **settings})
        self.render_mode = self.settings.render_mode
        num_lights, num_cars = self.settings.num_traffic_lights, self.settings.num_cars
        first = [_lane_number(car, num_lights) for car in range(num_cars)]
        self.road = Road(num_lights, [first.count(lane) for lane in range(num_lights + 1)])
        self._lights = [f"traffic_light_{number + 1}" for number in range(num_lights)]
        self._car_names = [f"car_{number + 1}" for number in range(self.settings.max_cars or 0)]
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
            seed: Starts the random numbers anew; None goes on with them.
            options: Not read.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.road.clear()
        self._cars.clear()
        self._num_entered = 0
        self._steps_left = self.settings.horizon
        self._place_first_cars()
        self.agents = [*self._cars, *self._lights]
        return self._observe(), {}

    def step(self, actions: AgentDict) -> StepDicts:
        """Move lights, then cars, then let the next car in.

        Raises:
            CallOrderError: The episode has ended, or never began.
            ContractError: The actions are not those of the live agents, or none that they have.
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
        for number in range(self.settings.num_cars):
            places.setdefault(_lane_number(number, len(self._lights)), []).append(number)
        for lane, numbers in sorted(places.items()):
            cells = self._rng.choice(self.road.approaches[lane], len(numbers), replace=False)
            for number, cell in zip(numbers, sorted(cells.tolist(), reverse=True), strict=True):
                self._enter(number, self.road.lanes[lane], cell)
        # Lanes were filled one after another, but agents are listed by number.
        self._cars = {name: self._cars[name] for name in self._car_names[: self.settings.num_cars]}

    def _enter(self, number: int, lane: Lane, cell: int) -> None:
        car = self.road.enter(self._car_names[number], lane, cell)
        if car is not None:
            self._cars[car.name] = car
            self._num_entered += 1

    def _let_in(self) -> None:
        if self._num_entered < len(self._car_names) and self._rng.random() < self.settings.entry_rate:
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

    def _rewards(self, seen: Happenings) -> AgentDict:
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

    def _flags(self, seen: Happenings) -> tuple[AgentDict, AgentDict]:
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
    return ", ".join(sorted(repr(agent_id) for agent_id in agents)) or "nobody"
