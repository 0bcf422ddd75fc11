"""docs/reference/results.md names what is in a result, all of it and nothing else."""

from __future__ import annotations

import re
from typing import Any

from examples.two_step_game import grouped
from menv.algorithms import PPO, QMIX
from menv.algorithms.results import EpisodeResult, TrainResult
from menv.envs import TicTacToe
from menv.serving import PolicyServerInput
from tests.house.sources import ROOT

PARTS = (ROOT / "docs" / "reference" / "results.md").read_text("utf-8").split("\n## ")


def named(part: str, column: str = "key") -> set[str]:
    """Return the keys in the first column of a part's table with that heading."""
    (text,) = [one for one in PARTS if one.startswith(part)]
    _, _, table = text.partition(f"| {column} |")
    rows = [line for line in table.split("\n\n")[0].splitlines() if line.startswith("| `")]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def counts() -> set[str]:
    """Return the keys that every training result has beside those about episodes."""
    return named("Counts and times") | {"info"}


def test_the_keys_of_a_result_are_those_of_the_page() -> None:
    with PPO(env=TicTacToe, config={"train_batch_size": 64}) as algo:
        result: dict[str, Any] = dict(algo.train())
        evaluated = algo.evaluate()["evaluation"]
    episodes = named("Episodes")
    assert result.keys() == episodes | counts() == TrainResult.__required_keys__
    assert result["sampler_results"].keys() == episodes - {"sampler_results"}
    both = {"num_env_steps_sampled_this_iter", "num_agent_steps_sampled_this_iter"}
    assert evaluated.keys() == episodes - {"sampler_perf"} | both == EpisodeResult.__required_keys__
    assert result["info"]["default_policy"].keys() == named("Learning", "of PPO")


def test_the_keys_of_dqn_and_qmix_are_those_of_the_page() -> None:
    settings = {"num_steps_sampled_before_learning_starts": 8, "min_sample_timesteps_per_iteration": 64}
    with QMIX(env=grouped, config={"train_batch_size": 8, **settings}) as algo:
        assert algo.train()["info"]["default_policy"].keys() == named("Learning", "of DQN and QMIX")


def test_the_keys_of_workers_and_of_those_who_call_are_those_of_the_page() -> None:
    spread = {"num_workers": 1, "engine": "process", "overlap": True, "train_batch_size": 64}
    with PPO(env=TicTacToe, config=spread) as algo:
        assert algo.train().keys() - named("Episodes") - counts() == named("With workers")
    assert {
        "evaluation",
        "external",
        *named("With workers"),
        *named("With self-play"),
    } == TrainResult.__optional_keys__
    served = {"input": lambda ioctx: PolicyServerInput(ioctx, "127.0.0.1", 0, idle_timeout=0.1)}
    with PPO(env=TicTacToe, config=served) as algo:
        result = algo.train()
    assert result.keys() - named("Episodes") - counts() == {"external"}
    assert result["external"].keys() == named("Where others call")
