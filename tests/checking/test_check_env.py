"""`check_env` as a function: what it takes, what it returns, what it leaves alone."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.checking import Finding, check_env
from menv.envs.independent_copies import make_multi_agent
from menv.errors import ConfigError, UnknownNameError
from tests.bad_input.broken_envs import UNIT, Faulty, FaultyGym, seeing
from tests.worlds import like


def codes(findings: list[Finding], *severities: str) -> list[str]:
    return [one.code for one in findings if not severities or one.severity in severities]


class Doubles(Faulty):
    """Its observations are float64."""

    def see(self, agent: str) -> Any:
        return np.zeros(3)


DoublesGym = like(FaultyGym, see=lambda self: np.zeros(3))


CLEAN = [
    "tictactoe",
    "traffic",
    "menv.envs.rock_paper_scissors:RockPaperScissors",
    "menv.envs.two_step_game:TwoStepGame",
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "FrozenLake-v1",
    "Blackjack-v1",
]


@pytest.mark.slow_unless("tictactoe", "menv.envs*", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1")
@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_found_in_environments_that_are_right(name: str) -> None:
    assert check_env(name) == []


def test_nothing_is_found_in_copies_of_a_single_agent_environment() -> None:
    assert check_env(make_multi_agent("CartPole-v1"), {"num_agents": 3}) == []


def test_what_is_found_in_third_party_environments_is_true() -> None:
    # Nothing ends within the steps; the mask is in the info.
    assert codes(check_env("CliffWalking-v1")) == ["ME049"]
    assert codes(check_env("Taxi-v4")) == ["ME054"]


def test_a_finding_names_agent_step_path_and_first_bad_index() -> None:
    bad = np.array([0.0, 7.0, 0.0], np.float32)
    (found,) = [one for one in check_env(seeing(bad)) if one.code == "ME030"]
    assert found.severity == "error"
    assert found.step == 3
    assert found.message == "agent 'bob': obs: 7.0 at index 1 is outside [-1.0, 1.0]"
    assert found.fix
    assert str(found) == f"ME030 error, env step 3: {found.message}; {found.fix}"


def test_a_path_leads_into_nested_observations() -> None:
    space = gym.spaces.Dict({"eyes": gym.spaces.Tuple([UNIT, UNIT])})
    good = {"eyes": (np.zeros(3, np.float32), np.zeros(3, np.float32))}
    bad = {"eyes": (np.zeros(3, np.float32), np.full(3, 1e300))}
    (found,) = [one for one in check_env(seeing(bad, space, good)) if one.severity == "error"]
    assert (found.code, found.step) == ("ME031", 3)
    assert re.search(r"obs\['eyes'\]\[1\]: .*float32.*\(3,\).*float64", found.message)


def test_spaces_that_change_in_one_environment_are_distinguished_from_copies_that_differ() -> None:
    class Grows(Faulty):
        def reset(self, **kwargs: Any) -> Any:
            self.action_space = gym.spaces.Discrete(9)
            return super().reset(**kwargs)

    (found,) = [one for one in check_env(Grows) if one.code == "ME004"]
    assert found.message == "other spaces are declared now than before the first reset, expected the same"


def test_a_fault_of_every_step_is_found_once() -> None:
    assert codes(check_env(Doubles)) == ["ME034"]


def test_an_error_of_training_ends_the_check() -> None:
    class Unpaid(Doubles):
        def step(self, action_dict: Any) -> Any:
            obs, _, *rest = super().step(action_dict)
            return obs, {"ann": float("nan")}, *rest

    assert codes(check_env(Unpaid)) == ["ME026", "ME034"]


def test_the_same_seed_gives_the_same_findings() -> None:
    class Rare(FaultyGym):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, float("inf") if self.np_random.random() < 0.02 else reward, *rest

    first = check_env(Rare, seed=4)
    assert "ME026" in codes(first)
    assert check_env(Rare, seed=4) == first
    assert [one.step for one in check_env(Rare, seed=5)] != [one.step for one in first]


def test_codes_are_silenced_by_the_caller_or_by_the_environment() -> None:
    quiet = like(Doubles, menv_ignore=("ME034",))
    assert codes(check_env(Doubles)) == ["ME034"]
    assert check_env(Doubles, ignore=["ME034"]) == []
    assert check_env(Doubles, ignore="ME034") == []
    assert check_env(quiet) == []
    assert check_env(lambda context: quiet()) == []
    assert check_env(quiet()) == []


def test_an_attribute_inside_gymnasium_wrappers_silences_too() -> None:
    quiet = like(DoublesGym, menv_ignore=("ME034",))
    assert codes(check_env(lambda context: gym.wrappers.TimeLimit(DoublesGym(), 50))) == ["ME034"]
    assert check_env(lambda context: gym.wrappers.TimeLimit(quiet(), 50)) == []


def test_a_code_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="ME999"):
        check_env(Faulty, ignore=["ME999", "ME034"])


def test_actions_and_codes_of_another_kind_are_refused() -> None:
    wrong: Any = 3
    with pytest.raises(ConfigError, match="actions"):
        check_env(Faulty, actions=wrong)
    with pytest.raises(ConfigError, match="ignore"):
        check_env(Faulty, ignore=wrong)


@pytest.mark.parametrize("env_steps", [0, -3, 2.5, True])
def test_an_impossible_number_of_env_steps_is_refused(env_steps: Any) -> None:
    with pytest.raises(ConfigError, match="env_steps"):
        check_env(Faulty, env_steps=env_steps)


def test_an_unknown_name_is_the_callers_mistake() -> None:
    with pytest.raises(UnknownNameError):
        check_env("CartPool-v1")
    with pytest.raises(ConfigError):
        check_env(None)
    with pytest.raises(ConfigError):
        check_env(3)


def test_the_config_reaches_the_environment() -> None:
    seen: list[dict[str, Any]] = []

    def creator(context: Any) -> Any:
        seen.append(dict(context))
        return Faulty()

    assert check_env(creator, {"size": 5}) == []
    assert len(seen) > 1
    assert all(settings == {"size": 5} for settings in seen)


def test_an_existing_environment_is_left_open_and_unchanged() -> None:
    class Open(FaultyGym):
        closed = 0

        def close(self) -> None:
            self.closed += 1
            raise RuntimeError("closed by the checker")

    env = Open()
    assert check_env(env) == []
    assert env.closed == 0
    assert codes(check_env(Open)) == ["ME080"]


def test_a_config_for_an_environment_that_exists_is_refused() -> None:
    with pytest.raises(ConfigError, match="config"):
        check_env(Faulty(), {"size": 3})


def test_every_copy_is_closed() -> None:
    opened: list[Any] = []
    closed: list[Any] = []

    class Counts(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            opened.append(self)

        def close(self) -> None:
            closed.append(self)

    assert check_env(Counts) == []
    assert len(opened) >= 3
    assert {id(env) for env in opened} == {id(env) for env in closed}


def test_the_global_generators_are_left_alone() -> None:
    import random

    np.random.seed(3)
    random.seed(3)
    before = np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    check_env("CartPole-v1")
    check_env("tictactoe")
    assert before == (np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
@pytest.mark.parametrize(
    ("method", "code"), [("__init__", "ME092"), ("reset", "ME091"), ("step", "ME090"), ("close", "ME080")]
)
@pytest.mark.parametrize("error", [KeyError("wheel"), RuntimeError(), SystemExit(3), ValueError("a\nb")])
def test_what_an_environment_raises_becomes_a_finding(kind: Any, method: str, code: str, error: Any) -> None:
    def raises(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise error

    env = type("Crashes", (kind,), {method: raises})
    findings = check_env(env)
    assert code in codes(findings)
    assert set(codes(findings)) <= {code, "ME010"}
    (found,) = [one for one in findings if one.code == code]
    assert type(error).__name__ in found.message
    assert "\n" not in str(found)


def test_a_crash_says_at_which_env_step_and_where() -> None:
    class Crashes(Faulty):
        def step(self, action_dict: Any) -> Any:
            if self.at == 3:
                raise KeyError("wheel")
            return super().step(action_dict)

    (found,) = check_env(Crashes)
    assert (found.code, found.step) == ("ME090", 4)
    assert re.search(r"KeyError: 'wheel' \(line \d+ of step\)", found.message)


def test_a_crash_of_a_reset_in_the_middle_of_an_episode_is_found() -> None:
    class Strict(Faulty):
        running = False

        def reset(self, **kwargs: Any) -> Any:
            if self.running:
                raise RuntimeError("finish the episode first")
            self.running = True
            return super().reset(**kwargs)

        def step(self, action_dict: Any) -> Any:
            result = super().step(action_dict)
            self.running = not result[2]["__all__"]
            return result

    class Long(Strict):
        def step(self, action_dict: Any) -> Any:
            obs, rewards, _, truncateds, infos = Faulty.step(self, action_dict)
            return obs, rewards, {"__all__": self.at == 80}, truncateds, infos

    assert codes(check_env(Long)) == ["ME091"]


def test_an_environment_that_picks_its_task_by_vector_index_is_right() -> None:
    class Tasks(FaultyGym):
        def __init__(self, context: Any) -> None:
            super().__init__()
            self.task = context.vector_index

        def see(self) -> Any:
            return np.full(3, self.task / 10, np.float32)

    assert check_env(Tasks) == []
