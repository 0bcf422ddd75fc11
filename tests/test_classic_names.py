"""Whoever asks for a classic attribute that there is not is told what to use."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import ConfigError, DefaultCallbacks, Episode, Policy, PolicySpec, RandomPolicy
from menv.algorithms import PPO, Algorithm, DQNConfig, PPOConfig, PPOPolicy
from menv.base_env import SINGLE_AGENT
from menv.classic_names import OF_ALGORITHMS, OF_BASE_ENVS, OF_CONFIGS, OF_POLICIES, OF_RESULTS, OF_WORKERS
from menv.loop.sampler import Sampler
from menv.scale.remote_envs import RemoteEnv


class Noting(DefaultCallbacks):
    seen: dict[str, Any]

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        Noting.seen = {"worker": worker}


@pytest.fixture(scope="module")
def owners() -> Iterator[dict[str, Any]]:
    with PPO(env="CartPole-v1", config={"rollout_fragment_length": 8, "callbacks": Noting}) as algo:
        algo.sample()
        own = {"algorithm": algo, "config": algo.config, "policy": algo.get_policy(), **Noting.seen}
        yield {**own, "base_env": Noting.seen["worker"].base_env}


TABLES = {
    "algorithm": OF_ALGORITHMS,
    "base_env": OF_BASE_ENVS,
    "config": OF_CONFIGS,
    "policy": OF_POLICIES,
    "worker": OF_WORKERS,
}


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner in TABLES for name in TABLES[owner]])
def test_a_classic_attribute_that_there_is_not_says_what_to_use(
    owners: dict[str, Any], owner: str, name: str
) -> None:
    assert isinstance(owners["worker"], Sampler)
    assert not hasattr(owners[owner], name)
    with pytest.raises(AttributeError) as caught:
        getattr(owners[owner], name)
    kind = type(owners[owner]).__name__
    assert str(caught.value) == f"{kind!r} object has no attribute {name!r}; {TABLES[owner][name]}"


def test_what_others_call_of_a_class_says_what_to_use() -> None:
    with pytest.raises(
        AttributeError, match=r"^type object 'PPO' has no attribute 'load'; call from_checkpoint\("
    ):
        _ = PPO.load
    with pytest.raises(
        AttributeError, match=r"^type object 'PPOConfig' has no attribute 'from_dict'; give the"
    ):
        _ = PPOConfig.from_dict


def test_any_other_attribute_is_missing_in_the_usual_words(owners: dict[str, Any]) -> None:
    with pytest.raises(AttributeError, match=r"^'PPO' object has no attribute 'trian'$") as caught:
        _ = owners["algorithm"].trian
    # Python finds near names with these.
    assert (caught.value.name, caught.value.obj) == ("trian", owners["algorithm"])


SPACES = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(2)


class Own(Policy):
    @property
    def model(self) -> Any:
        return self._nte  # type: ignore[attr-defined]


class OwnModule(Policy, torch.nn.Module):
    def __init__(self, *args: Any) -> None:
        torch.nn.Module.__init__(self)
        Policy.__init__(self, *args)
        self.layer = torch.nn.Linear(2, 2)


def test_a_property_that_fails_tells_its_own_error_and_other_bases_find_what_is_theirs() -> None:
    with pytest.raises(AttributeError, match="'_nte'"):
        _ = Own(*SPACES).model
    assert isinstance(OwnModule(*SPACES).layer, torch.nn.Linear)


def test_what_is_told_can_be_copied_and_sent() -> None:
    config = PPOConfig(lr=0.25)
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert copy.copy(Own(*SPACES)).action_space == SPACES[1]


def test_classic_arguments_are_taken_by_their_names_here_or_say_what_to_do(owners: dict[str, Any]) -> None:
    algo = owners["algorithm"]
    obs = [0.0] * 4
    assert algo.compute_single_action(observation=obs, prev_action=None, explore=False) in (0, 1)
    with pytest.raises(ConfigError, match=r"^compute_single_action: info is given.*compute_actions\(\[obs\]"):
        algo.compute_single_action(obs, info={})
    with pytest.raises(ConfigError, match=r"^add_policy: module_spec is given.*write spec=PolicySpec\("):
        algo.add_policy("new", module_spec=Policy)
    with pytest.raises(TypeError, match="'obz'"):
        algo.compute_single_action(obz=obs)
    for state in (None, [np.zeros(4, np.float32)]):
        with pytest.raises(
            ConfigError, match=r"second argument beside policy_id, expected .* by name, state="
        ):
            algo.compute_single_action(obs, state, policy_id="default_policy")


def test_classic_methods_of_the_class_of_a_config_say_what_to_write() -> None:
    for name in ("overrides", "from_dict"):
        with pytest.raises(AttributeError) as caught:
            getattr(PPOConfig, name)
        assert str(caught.value) == f"type object 'PPOConfig' has no attribute {name!r}; {OF_CONFIGS[name]}"
        assert not hasattr(DQNConfig, name)


def test_an_algorithm_is_built_with_the_environment_that_build_is_given() -> None:
    for built in (PPOConfig().build("CartPole-v1"), PPOConfig(env="Pendulum-v1").build(env="CartPole-v1")):
        with built as algo:
            assert algo.config.env == "CartPole-v1"


def test_a_policy_is_exported_by_the_classic_name_of_the_folder(
    owners: dict[str, Any], tmp_path: Path
) -> None:
    folder = owners["algorithm"].get_policy().export_checkpoint(export_dir=tmp_path / "p")
    assert isinstance(Policy.from_checkpoint(folder), Policy)


def test_call_envs_wants_a_name_where_classic_workers_took_a_function(owners: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"is function, expected the name of one of its methods, because.*'set_task'"
    ):
        owners["algorithm"].call_envs(lambda env: env.set_task(1))


def test_the_class_of_a_policy_that_plays_stands_for_the_algorithms_own(owners: dict[str, Any]) -> None:
    algo = owners["algorithm"]
    spec = PolicySpec(type(algo.get_policy()))
    added = algo.add_policy("again", spec, policy_mapping_fn=lambda *args, **kwargs: "again")
    assert added.get_weights().keys() == algo.get_policy().get_weights().keys()
    assert added.act([0.0] * 4) in (0, 1)
    algo.remove_policy("again", policy_mapping_fn=lambda *args, **kwargs: "default_policy")


def test_add_policy_takes_the_parts_of_a_spec_by_their_classic_names(owners: dict[str, Any]) -> None:
    algo = owners["algorithm"]
    first = algo.get_policy()
    spaces = {"observation_space": first.observation_space, "action_space": first.action_space}
    for args, parts in (
        ((), {"policy_cls": type(first), "config": {"gamma": 0.5}}),
        ((PPOPolicy,), {**spaces, "config": None}),
        ((), {"policy_cls": RandomPolicy, **spaces}),
        ((), {"policy_class": RandomPolicy, **spaces}),
    ):
        added = algo.add_policy("new", *args, **parts, policy_mapping_fn=lambda *args, **kwargs: "new")
        assert type(added) is (*args, parts.get("policy_cls", parts.get("policy_class")))[0]
        assert added.act([0.0] * 4) in (0, 1)
        algo.remove_policy("new", policy_mapping_fn=lambda *args, **kwargs: "default_policy")
    with pytest.raises(ConfigError, match=r"^add_policy: a spec and \['config'\] beside it.*put all into"):
        algo.add_policy("new", PolicySpec(), config={"gamma": 0.5})
    with pytest.raises(ConfigError, match=r"^add_policy: policy_cls is NetPolicy, expected a class; write"):
        algo.add_policy("new", policy_cls=first)


def test_the_one_agent_of_a_single_agent_environment_need_not_be_named() -> None:
    episode = Episode(1, 0)
    episode.bind(SINGLE_AGENT, "p")
    episode.look_at(SINGLE_AGENT, 3, {"seen": 1})
    assert (episode.policy_for(), episode.last_observation_for()) == ("p", 3)
    assert episode.last_info_for() == {"seen": 1}


def test_callbacks_hand_on_what_classic_ones_were_made_with() -> None:
    assert DefaultCallbacks(None) is not None
    with pytest.raises(ConfigError, match="legacy_callbacks_dict is given"):
        DefaultCallbacks({"on_episode_end": print})


def test_a_chain_of_settings_says_where_callbacks_are_given() -> None:
    class Mine(DefaultCallbacks):
        """Does nothing."""

    chain: Any = PPOConfig().callbacks
    with pytest.raises(
        ConfigError, match=r"^DefaultCallbacks: Mine is given, .*; write callbacks=MyCallbacks"
    ):
        chain(Mine)
    for classic in ({"callbacks_class": Mine}, {"on_episode_end": print}):
        with pytest.raises(
            ConfigError, match=rf"{next(iter(classic))} is given, .*; write callbacks=MyCallbacks"
        ):
            chain(**classic)


def test_a_remote_environment_says_how_its_methods_are_called() -> None:
    class Far:
        def call(self, index: int, method: str, *args: Any) -> Any:
            return index, method, args

    remote: Any = RemoteEnv(Far(), 2)  # type: ignore[arg-type]
    assert remote.call("set_task", 3) == (2, "set_task", (3,))
    with pytest.raises(
        AttributeError, match=r"^RemoteEnv: no attribute 'set_task'.*write call\('set_task', \.\.\.\)"
    ):
        remote.set_task(3)
    assert not hasattr(copy.copy(remote), "level")


SHORT: dict[str, Any] = {"train_batch_size": 16, "rollout_fragment_length": 8}


def test_a_key_of_rllib_that_a_result_has_not_says_what_to_read() -> None:
    with PPO(env="CartPole-v1", config={**SHORT, "evaluation_duration": 1}) as algo:
        result = algo.train()
        with pytest.raises(KeyError, match="env_runners: episode_reward_mean and"):
            algo.evaluate()["env_runners"]
    assert OF_RESULTS.keys() & result.keys() == set()
    for key, instead in OF_RESULTS.items():
        with pytest.raises(KeyError) as caught:
            result[key]
        assert caught.value.args == (f"{key}: {instead}",)
        assert key not in result
        assert result.get(key) is None
    with pytest.raises(KeyError) as caught:
        result["episode_reward_maen"]
    assert caught.value.args == ("episode_reward_maen",)
    assert (
        json.loads(json.dumps(result))
        == result
        == copy.deepcopy(result)
        == pickle.loads(pickle.dumps(result))
    )


@pytest.mark.parametrize("given", [("CartPole-v1",), (), ({"env": "CartPole-v1"},)])
def test_algorithm_itself_is_told_which_ones_there_are(given: tuple[Any, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r"^Algorithm: .* expected one of PPO, DQN and QMIX; write PPO\(env"
    ):
        Algorithm(*given)
