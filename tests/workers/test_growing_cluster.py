"""Workers on a Ray cluster of several nodes, some of which come late or are lost."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.engines.processes import driver, ran

PROGRAM = """
    import logging, sys, time, warnings
    import ray
    from ray.cluster_utils import Cluster
    from menv.algorithms import PPO

    def node(**more):
        return {"num_cpus": 1, "object_store_memory": 10**8, **more}

    lost = sys.argv[1] == "lost"
    cluster = Cluster(initialize_head=True, head_node_args=node(include_dashboard=False))
    second = cluster.add_node(**node()) if lost else None
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    config = {
        "num_workers": 2, "engine": "ray", "train_batch_size": 200, "model": {"fcnet_hiddens": [8]}, "seed": 1,
        "worker_start_timeout_s": None if lost else 3,
    }
    warnings.simplefilter("ignore")
    with PPO(env="CartPole-v1", config=config) as algo:
        if lost:
            algo.train()
            cluster.remove_node(second, allow_graceful=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            alone = algo.train()
        found = [any("training continues with 1 of 2 workers" in str(one.message) for one in caught)]
        found += [alone["num_env_steps_sampled_this_iter"], len(algo.call_envs("close"))]
        algo.save(sys.argv[2])
        algo.add_policy("newcomer", policy_mapping_fn=lambda *args, **kwargs: "newcomer")
        cluster.add_node(**node())
        until = time.monotonic() + 60
        while len(algo.call_envs("close")) < 2 and time.monotonic() < until:
            time.sleep(0.2)
        found += [len(algo.call_envs("close")), "newcomer" in algo.sample()]
    with PPO.from_checkpoint(sys.argv[2]) as again:
        steps = alone["num_env_steps_sampled"]
        found += [again.train()["num_env_steps_sampled"] - steps]
    ray.shutdown()
    cluster.shutdown()
    print("found", *found)
"""


@pytest.mark.slow
@pytest.mark.parametrize("node", ["late", pytest.param("lost", marks=pytest.mark.slow)])
def test_training_continues_with_the_workers_that_are_there_and_the_others_join(
    node: str, tmp_path: Path
) -> None:
    """One of two nodes is missing for a while: a fragment, a save and a new policy need no second worker."""
    output = ran(driver(tmp_path, textwrap.dedent(PROGRAM), node, str(tmp_path / "saved")))
    assert output.strip().splitlines()[-1] == "found True 200 1 2 True 200"
