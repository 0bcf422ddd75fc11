"""Workers on Ray: the same run as in this process, and a node of the cluster that disappears."""

from __future__ import annotations

import json
from typing import Any

import pytest

from menv.errors import EnvFaultWarning
from tests.engines.processes import driver, ran
from tests.workers.crews import PLAYERS, running, same, weights_of
from tests.workers.test_lost_workers import kill

pytestmark = pytest.mark.usefixtures("running_ray")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="gym", marks=pytest.mark.slow),
        pytest.param({"env": "tictactoe", "multiagent": PLAYERS}, id="turns", marks=pytest.mark.slow),
    ],
)
def test_two_workers_on_ray_train_bit_identically_to_one_process(settings: dict[str, Any]) -> None:
    found = []
    for workers, each in ((0, 4), (2, 2)):
        with running(workers, engine="ray", num_envs_per_worker=each, **settings) as algo:
            results = [algo.train() for _ in range(3)]
            found.append((results[-1]["digest"], weights_of(algo)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


@pytest.mark.slow
def test_one_worker_on_ray_gives_batches_that_may_be_written_into() -> None:
    with running(1, engine="ray", overlap=True) as algo:
        algo.train()
        batch = algo.sample()["default_policy"]
        batch["rewards"][:] = 0.0
        assert algo.train()["staleness"]["max"] == 1


@pytest.mark.slow
def test_policies_that_come_and_workers_that_go_on_ray() -> None:
    names = ["default_policy", "newcomer"]
    with running(2, engine="ray") as algo:
        algo.train()
        algo.add_policy(names[1], policy_mapping_fn=lambda *args, **kwargs: names[1])
        algo.train()
        pid = algo.worker_pids()[1]
        assert pid is not None
        kill(pid)
        with pytest.warns(EnvFaultWarning, match=rf"worker 2 \(pid {pid}"):
            result = algo.train()
        assert result["num_worker_restarts"] == 1
        assert result["num_faulty_episodes"] == 2
        assert algo.sample()[names[1]].count > 0
        assert algo.train()["num_worker_restarts"] == 1


NODES = """
import json, warnings
warnings.simplefilter("ignore")
import ray
from ray.cluster_utils import Cluster
from menv.algorithms import PPO

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
others = [cluster.add_node(num_cpus=1) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
algo = PPO(config={
    "env": "CartPole-v1", "engine": "ray", "num_workers": 2, "num_envs_per_worker": 2, "train_batch_size": 256,
})
results = [algo.train() for _ in range(2)]
# Each has one worker; the machine of one of them disappears, and there is room on a new one.
cluster.add_node(num_cpus=1)
cluster.remove_node(others[0])
results += [algo.train() for _ in range(3)]
print(json.dumps([
    [one["training_iteration"], one["num_env_steps_sampled"], one["num_worker_restarts"], one["faulty_episodes_total"]]
    for one in results
]))
algo.stop()
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_node_that_disappears_costs_the_episodes_of_its_workers_only(tmp_path: Any) -> None:
    rows = json.loads(ran(driver(tmp_path, NODES)).splitlines()[-1])
    assert [row[:2] for row in rows] == [[number, number * 256] for number in range(1, 6)]
    restarts = [row[2] for row in rows]
    assert restarts == [0, 0, 1, 1, 1]
    assert rows[-1][3] == 2
