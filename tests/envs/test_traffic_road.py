"""The road below the traffic environment, by situations worked out by hand."""

from __future__ import annotations

import pytest

from menv.envs.traffic import AMBER_STEPS, BLOCK, CROSS, MAIN, Light, Road, picture_of, text_of

HERE = BLOCK
"""Where the first crossing is, on every lane."""


def road(num_lights: int = 1) -> Road:
    return Road(num_lights, [0] * (num_lights + 1))


def test_the_main_road_meets_the_cross_streets_one_block_apart() -> None:
    main, *streets = road(3).lanes
    assert main.crossings == [(8, 0), (16, 1), (24, 2)]
    assert main.length == 32
    assert [street.crossings for street in streets] == [[(8, 0)], [(8, 1)], [(8, 2)]]
    assert [street.length for street in streets] == [16] * 3


def test_a_road_without_lights_is_one_lane() -> None:
    (main,) = road(0).lanes
    assert (main.crossings, main.length) == ([], 16)


def test_lanes_grow_with_the_cars_that_start_before_the_first_crossing() -> None:
    assert Road(1, [7, 2]).lanes[0].crossings == [(14, 0)]


def test_a_car_gathers_speed_up_to_three_cells_and_brakes_to_a_stand() -> None:
    lanes = road(0)
    car = lanes.enter("a", lanes.lanes[0])
    assert car is not None
    places = []
    for change in (1, 1, 1, 1, -1, -1, -1, -1):
        lanes.advance({"a": change}, {})
        places.append(car.position)
    assert places == [1, 3, 6, 9, 11, 12, 12, 12]


def test_a_car_without_an_action_keeps_its_speed() -> None:
    lanes = road(0)
    car = lanes.enter("a", lanes.lanes[0])
    assert car is not None
    lanes.advance({"a": 1}, {})
    assert lanes.advance({}, {}).progress == {"a": 1}
    assert car.position == 2


def test_who_would_run_into_the_car_ahead_stops_behind_it() -> None:
    lanes = road(0)
    ahead, behind = lanes.enter("ahead", lanes.lanes[0], 5), lanes.enter("behind", lanes.lanes[0], 3)
    assert ahead is not None
    assert behind is not None
    behind.speed = 3
    seen = lanes.advance({}, {})
    assert seen.crashed == {"behind"}
    assert (behind.position, behind.speed) == (4, 0)
    assert seen.progress == {"ahead": 0, "behind": 1}


def test_following_at_the_same_speed_is_no_crash() -> None:
    lanes = road(0)
    for name, cell in (("ahead", 5), ("behind", 4)):
        car = lanes.enter(name, lanes.lanes[0], cell)
        assert car is not None
        car.speed = 2
    assert not lanes.advance({}, {}).crashed


def test_no_car_enters_where_one_stands() -> None:
    lanes = road(0)
    assert lanes.enter("a", lanes.lanes[0]) is not None
    assert lanes.enter("b", lanes.lanes[0]) is None


def test_cars_leave_at_the_end_of_their_lane_even_two_at_once() -> None:
    lanes = road(0)
    for name, cell in (("a", 15), ("b", 14)):
        car = lanes.enter(name, lanes.lanes[0], cell)
        assert car is not None
        car.speed = 3
    seen = lanes.advance({}, {})
    assert [car.name for car in seen.arrived] == ["a", "b"]
    assert not seen.crashed
    assert lanes.lanes[0].cars == []


@pytest.mark.parametrize(("lane", "runs"), [(MAIN, False), (CROSS, True)])
def test_entering_a_crossing_counts_and_at_red_it_is_an_offence(lane: int, runs: bool) -> None:
    lanes = road()
    car = lanes.enter("a", lanes.lanes[lane], HERE - 1)
    assert car is not None
    seen = lanes.advance({"a": 1}, {})
    assert car.position == HERE
    assert seen.entered == [1]
    assert (seen.ran_red == {"a"}) is runs
    assert lanes.advance({"a": 0}, {}).entered == [0]


def test_stopping_right_before_a_crossing_is_not_entering() -> None:
    lanes = road()
    car = lanes.enter("a", lanes.lanes[CROSS], HERE - 2)
    assert car is not None
    seen = lanes.advance({"a": 1}, {})
    assert car.position == HERE - 1
    assert (seen.entered, seen.ran_red) == ([0], set())


def test_cars_of_two_directions_crash_on_a_crossing() -> None:
    lanes = road()
    for lane in (MAIN, CROSS):
        car = lanes.enter(str(lane), lanes.lanes[lane], HERE - 1)
        assert car is not None
        car.speed = 2
    seen = lanes.advance({}, {})
    assert seen.crashed == {"0", "1"}
    assert seen.ran_red == {"1"}
    assert [lane.cars[0].speed for lane in lanes.lanes] == [0, 0]


def test_a_car_that_stands_on_a_crossing_is_run_into() -> None:
    lanes = road()
    lanes.enter("standing", lanes.lanes[MAIN], HERE)
    moving = lanes.enter("moving", lanes.lanes[CROSS], HERE - 1)
    assert moving is not None
    moving.speed = 1
    assert lanes.advance({}, {}).crashed == {"standing", "moving"}


def test_a_light_turns_after_three_steps_of_amber_and_hears_nothing_meanwhile() -> None:
    light = Light()
    states = []
    for wish in (MAIN, CROSS, MAIN, MAIN, MAIN, MAIN):
        light.advance(wish)
        states.append((light.green, light.amber, light.age))
    assert states == [(0, 0, 1), (0, 3, 2), (0, 2, 3), (0, 1, 4), (1, 0, 0), (1, 3, 1)]


@pytest.mark.parametrize("speed", [0, 1, 2, 3])
@pytest.mark.parametrize("distance", range(1, 12))
def test_amber_is_long_enough_to_stop_or_to_pass(speed: int, distance: int) -> None:
    # The car sees amber for the first time after the step in which the light began to switch.
    moves_at_amber = AMBER_STEPS - 1
    stops_after = sum(range(speed))
    assert stops_after < distance or speed * moves_at_amber >= distance


def test_clearing_takes_cars_away_and_turns_all_lights_green_for_the_main_road() -> None:
    lanes = road()
    lanes.enter("a", lanes.lanes[0])
    for _ in range(5):
        lanes.advance({}, {0: CROSS})
    lanes.clear()
    assert [lane.cars for lane in lanes.lanes] == [[], []]
    assert (lanes.lights[0].green, lanes.lights[0].amber) == (MAIN, 0)


def test_the_text_shows_cars_and_the_light() -> None:
    lanes = road()
    lanes.enter("a", lanes.lanes[MAIN], 3)
    lanes.enter("b", lanes.lanes[CROSS], 0)
    lines = text_of(lanes).split("\n")
    assert (len(lines), len(lines[0])) == (16, 16)
    assert lines[8] == "···>············"
    assert lines[0] == "........v......."
    assert lines[7] == ".......=·......."
    lanes.advance({}, {0: CROSS})
    assert text_of(lanes).split("\n")[7] == ".......:·......."
    for _ in range(AMBER_STEPS):
        lanes.advance({}, {})
    assert text_of(lanes).split("\n")[7] == ".......|·......."


def test_the_picture_has_eight_pixels_to_the_cell() -> None:
    lanes = road(2)
    empty = picture_of(lanes)
    assert empty.shape == (8 * 16, 8 * 24, 3)
    lanes.enter("a", lanes.lanes[MAIN], 3)
    changed = (picture_of(lanes) != empty).any(axis=2)
    assert changed.sum() == 64
    assert changed[8 * 8 : 8 * 9, 8 * 3 : 8 * 4].all()
    assert picture_of(road(0)).shape == (8, 8 * 16, 3)
