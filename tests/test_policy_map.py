"""Which policy answers: mapping functions of every shape, specs, and who is trained."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import gymnasium as gym
import pytest

from menv.algorithms import PPO, PPOPolicy, compute_advantages
from menv.episode import Episode
from menv.errors import ConfigError, ContractError
from menv.policy import Policy, RandomPolicy
from menv.policy_map import DEFAULT_POLICY, PolicyMap
from menv.policy_spec import PolicySpec

EPISODE, WORKER = Episode(7, 2), object()


class Mapper:
    def __call__(self, agent_id: Any, episode: Any) -> str:
        return f"{agent_id}-{episode.episode_id}"

    def method(self, agent_id: Any, episode: Any, worker: Any, **kwargs: Any) -> str:
        return f"{agent_id}-{episode.episode_id}-{worker is WORKER}-{sorted(kwargs)}"

    @staticmethod
    def static(agent_id: Any) -> str:
        return f"{agent_id}"


def with_rest(agent_id: Any, **kwargs: Any) -> str:
    return f"{agent_id}-{kwargs['episode'].episode_id}-{kwargs['worker'] is WORKER}"


def with_keywords(agent_id: Any, *, worker: Any, episode: Any) -> str:
    return f"{agent_id}-{episode.episode_id}-{worker is WORKER}"


def with_defaults(agent_id: Any, episode: Any, worker: Any, level: int = 3, *, mood: str = "x") -> str:
    return f"{agent_id}-{episode.episode_id}-{worker is WORKER}-{level}-{mood}"


SHAPES: dict[str, tuple[Any, str]] = {
    "one": (lambda agent_id: f"{agent_id}", "a"),
    "two": (lambda agent_id, episode: f"{agent_id}-{episode.episode_id}", "a-7"),
    "three": (lambda agent_id, episode, worker: f"{agent_id}-{episode.episode_id}-{worker is WORKER}", "a-7-True"),
    "other names": (lambda a, e, w: f"{a}-{e.episode_id}-{w is WORKER}", "a-7-True"),
    "canonical": (lambda agent_id, episode, worker, **kwargs: f"{agent_id}-{sorted(kwargs)}", "a-[]"),
    "all": (lambda *args: f"{len(args)}", "3"),
    "everything": (lambda *args, **kwargs: f"{len(args)}-{sorted(kwargs)}", "1-['episode', 'worker']"),
    "rest": (with_rest, "a-7-True"),
    "keywords": (with_keywords, "a-7-True"),
    "two and rest": (lambda agent_id, episode, **kw: f"{agent_id}-{episode.episode_id}-{sorted(kw)}", "a-7-['worker']"),
    "defaults": (with_defaults, "a-7-True-3-x"),
    "partial": (functools.partial(with_defaults, level=9), "a-7-True-9-x"),
    "object": (Mapper(), "a-7"),
    "method": (Mapper().method, "a-7-True-[]"),
    "static": (Mapper.static, "a"),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mapping_function_of_any_shape_is_called_with_what_it_takes(shape: str) -> None:
    function, answer = SHAPES[shape]
    assert (
        PolicyMap([answer.replace("<", "").replace(">", "")], function).policy_for("a", EPISODE, WORKER)
        == answer
    )


@pytest.mark.parametrize(
    "function",
    [lambda a, b, c, d: "p", lambda: "p", lambda *, strength: "p", lambda agent_id, *, level: "p", 3, "p"],
)
def test_a_mapping_function_that_cannot_be_called_is_refused_when_it_is_read(function: Any) -> None:
    with pytest.raises(ConfigError, match="policy_mapping_fn"):
        PolicyMap(["p"], function)


def test_an_unknown_policy_is_named_with_the_agent() -> None:
    policy_map = PolicyMap(["p", "q"], lambda agent_id: "r")
    with pytest.raises(ContractError, match="'r'"):
        policy_map.policy_for("ann", EPISODE, None)


def test_a_single_policy_needs_no_mapping() -> None:
    assert PolicyMap().policy_for("a", EPISODE, None) == DEFAULT_POLICY == "default_policy"
    assert PolicyMap(["p"]).policy_for("a", EPISODE, None) == "p"


@pytest.mark.parametrize(
    "policies", [{"p": None, "q": None}, ["p", "q"], {"p", "q"}, {"p": PolicySpec(), "q": PolicySpec()}]
)
def test_policies_are_a_dict_or_a_collection_of_names(policies: Any) -> None:
    policy_map = PolicyMap(policies, lambda agent_id: "p")
    assert policy_map.specs == {"p": PolicySpec(), "q": PolicySpec()}


@pytest.mark.parametrize("to_train", [["p"], {"p"}, ("p",), "p", frozenset("p")])
def test_policies_to_train_are_ids(to_train: Any) -> None:
    policy_map = PolicyMap(["p", "q"], lambda agent_id: "p", to_train)
    assert policy_map.trains("p")
    assert not policy_map.trains("q")


def test_policies_to_train_may_be_a_function_of_id_and_batch() -> None:
    seen: list[Any] = []

    def trains(policy_id: str, batch: Any) -> bool:
        seen.append((policy_id, batch))
        return policy_id == "q"

    policy_map = PolicyMap(["p", "q"], lambda agent_id: "p", trains)
    assert not policy_map.trains("p", "rows")
    assert policy_map.trains("q")
    assert seen == [("p", "rows"), ("q", None)]


def test_unknown_ids_to_train_are_named() -> None:
    with pytest.raises(ConfigError, match="policies_to_train"):
        PolicyMap(["p"], None, ["s", "p", "r"])


SPACE = gym.spaces.Discrete(3)


def test_a_classic_4_tuple_is_read_as_a_spec() -> None:
    spec = PolicySpec.of("p", (RandomPolicy, SPACE, None, {"gamma": 0.5}))
    assert spec == PolicySpec(RandomPolicy, SPACE, None, {"gamma": 0.5})
    assert PolicySpec.of("p", (None, None, None, {})) == PolicySpec(config={})
    assert PolicySpec.of("p", RandomPolicy) == PolicySpec(policy_class=RandomPolicy)


@pytest.mark.parametrize("value", [(None, None), (1, 2, 3, 4, 5), "PPO", 3, [None] * 4])
def test_other_objects_are_not_specs(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"policies\['p'\]: "):
        PolicySpec.of("p", value)


@pytest.mark.parametrize("policy_id", [
    *(f"a{char}b" for char in '<>:"/\\|?*\n\t\0\x1b\ud800'), "", " ", "a ", "a.", ".", "..", "x" * 201, "ü" * 101,
    3, None, b"a", ("a", 1),
], ids=ascii)  # fmt: skip
def test_an_id_must_be_able_to_name_a_folder(policy_id: Any) -> None:
    with pytest.raises(ConfigError, match="policies"):
        PolicyMap([policy_id])


@pytest.mark.parametrize("given", ["RandomPolicy", RandomPolicy(SPACE, SPACE)])
def test_a_policy_or_its_name_instead_of_its_class_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="PolicySpec"):
        PolicySpec(policy_class=given)


@pytest.mark.parametrize("pairs", [[], "a=b", [("a",)], [("a", 3)], {"a": "b"}, [["a", "b"], None]])
def test_what_is_neither_a_function_nor_pairs_is_refused(pairs: Any) -> None:
    with pytest.raises(ConfigError, match="policy_mapping_fn"):
        PolicyMap(["b"], pairs)


def test_the_first_pattern_that_matches_decides_and_a_star_is_the_name() -> None:
    pairs = [("car_0", "first"), ("car_*", "cars"), ("[0-9]", "number_*")]
    policies = PolicyMap(["first", "cars", "number_7"], pairs)
    episode = Episode(0, 0)
    found = [policies.policy_for(agent, episode, None) for agent in ("car_0", "car_1", 7)]
    assert found == ["first", "cars", "number_7"]
    with pytest.raises(ConfigError, match="'truck'"):
        policies.policy_for("truck", episode, None)


# What a policy reads in its `config`: its spec, and where an algorithm trains it, all of its settings.


SPACES = gym.spaces.Discrete(2), gym.spaces.Discrete(3)


class Classic(PPOPolicy):
    """Reads its settings as policies of the classic kind do."""

    read: dict[str, Any]

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        batch["vf_preds"] = batch["rewards"] * 0.0
        Classic.read = {key: self.config[key] for key in ("gamma", "lambda", "train_batch_size", "mine")}
        Classic.read["clip"] = self.config.get("clip_param", 0.0)
        return compute_advantages(batch, 0.0, self.config["gamma"], self.config["lambda"])


def test_a_policy_that_ppo_trains_reads_its_settings_in_its_config_too() -> None:
    spec = PolicySpec(Classic, config={"lambda": 0.5})
    settings = {"gamma": 0.75, "clip_param": 0.125, "rollout_fragment_length": 8, "train_batch_size": 8}
    with PPO(
        env="CartPole-v1", config={**settings, "multiagent": {"policies": {"default_policy": spec}}}
    ) as algo:
        policy = algo.get_policy()
        policy.config["mine"] = 1
        algo.sample()
        assert Classic.read == {"gamma": 0.75, "lambda": 0.5, "train_batch_size": 8, "mine": 1, "clip": 0.125}
        assert "gamma" in policy.config
        assert "horizon" not in policy.config
        assert pickle.loads(pickle.dumps(policy)).config["gamma"] == 0.75
        with pytest.raises(KeyError, match="'horizon'"):
            _ = policy.config["horizon"]


def test_the_usual_policy_reads_its_settings_in_its_config_too() -> None:
    specs = {"policies": {"default_policy": PolicySpec(config={"gamma": 0.5})}}
    with PPO(env="CartPole-v1", config={"lr": 0.25, "multiagent": specs}) as algo:
        config = algo.get_policy().config
        assert (config["gamma"], config["lr"], "lambda" in config) == (0.5, 0.25, True)
        assert config == {"gamma": 0.5}
        assert pickle.loads(pickle.dumps(config)) == {"gamma": 0.5}


def test_a_custom_policy_is_told_where_to_find_other_settings() -> None:
    config = Policy(*SPACES, {"answer": 2}).config
    assert (config["answer"], config.get("gamma"), config) == (2, None, {"answer": 2})
    with pytest.raises(KeyError, match="'gamma'"):
        _ = config["gamma"]
