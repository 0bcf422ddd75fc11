"""What works by its classic name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from menv import ConfigError, Episode, PolicySpec
from menv.algorithms import PPO, Algorithm, PPOConfig
from menv.base_env import SINGLE_AGENT
from menv.workers.remote_envs import RemoteEnv


@pytest.fixture(scope="module")
def owners() -> Iterator[dict[str, Any]]:
    with PPO(env="CartPole-v1", config={"rollout_fragment_length": 8}) as algo:
        yield {"algorithm": algo}


def test_an_algorithm_is_built_with_the_environment_that_build_is_given() -> None:
    for built in (PPOConfig().build("CartPole-v1"), PPOConfig(env="Pendulum-v1").build(env="CartPole-v1")):
        with built as algo:
            assert algo.config.env == "CartPole-v1"


def test_call_envs_wants_a_name_where_classic_workers_took_a_function(owners: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'set_task'"):
        owners["algorithm"].call_envs(lambda env: env.set_task(1))


def test_the_class_of_a_policy_that_plays_stands_for_the_algorithms_own(owners: dict[str, Any]) -> None:
    algo = owners["algorithm"]
    spec = PolicySpec(type(algo.get_policy()))
    added = algo.add_policy("again", spec, policy_mapping_fn=lambda *args, **kwargs: "again")
    assert added.get_weights().keys() == algo.get_policy().get_weights().keys()
    assert added.act([0.0] * 4) in (0, 1)
    algo.remove_policy("again", policy_mapping_fn=lambda *args, **kwargs: "default_policy")


def test_the_one_agent_of_a_single_agent_environment_need_not_be_named() -> None:
    episode = Episode(1, 0)
    episode.bind(SINGLE_AGENT, "p")
    episode.look_at(SINGLE_AGENT, 3, {"seen": 1})
    assert (episode.policy_for(), episode.last_observation_for()) == ("p", 3)
    assert episode.last_info_for() == {"seen": 1}


def test_a_remote_environment_says_how_its_methods_are_called() -> None:
    class Far:
        def call(self, index: int, method: str, *args: Any) -> Any:
            return index, method, args

    remote: Any = RemoteEnv(Far(), 2)  # type: ignore[arg-type]
    assert remote.call("set_task", 3) == (2, "set_task", (3,))
    with pytest.raises(AttributeError, match=r"call\('set_task'"):
        remote.set_task(3)
    assert not hasattr(copy.copy(remote), "level")


@pytest.mark.parametrize("given", [("CartPole-v1",), (), ({"env": "CartPole-v1"},)])
def test_the_base_class_names_the_algorithms_to_use(given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="DQN, PPO, QMIX, SAC"):
        Algorithm(*given)
