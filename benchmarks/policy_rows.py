"""The rows of the table about policies themselves: what learning costs beside bare torch, and what many policies do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.rows import Effort, Finding, Row, alternate
from benchmarks.sampling import fragments
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.ppo.learner import PPOLearner
from menv.algorithms.ppo.ppo import PPOConfig
from menv.envs import make_multi_agent
from menv.inference.heads.categorical import Categorical

ROWS_A_BATCH, EPOCHS, MINIBATCH, WIDTH = 8192, 4, 512, 64
_OBS, _ACTIONS = 16, 4
_AGENTS, _ENVS, _LENGTH = 8, 16, 64


def learning(effort: Effort) -> Finding:
    """Return how many times as long a PPO update takes as the forwards and backwards in it, in bare torch."""
    torch.set_num_threads(1)
    batch = _train_batch()
    settings = PPOConfig(num_sgd_iter=EPOCHS, sgd_minibatch_size=MINIBATCH)
    spec = StockSpec(_OBS, Categorical((_ACTIONS,)), (WIDTH, WIDTH), "tanh")
    learner = PPOLearner(spec, settings, spec.first_weights(0), 0)
    bare = _bare_update(torch.from_numpy(batch["obs"]))
    updates = max(1, effort.steps(8))

    def rate(update: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            for _ in range(updates):
                update()
            return updates * ROWS_A_BATCH / (time.perf_counter() - start)

        return run

    found = alternate(rate(bare), rate(lambda: learner.learn(batch, 0)), effort.repeats)
    return Finding(
        value=statistics.median(found.floors) / statistics.median(found.rates),
        floors=found.floors,
        rates=found.rates,
    )


def _train_batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    actions = rng.integers(0, _ACTIONS, ROWS_A_BATCH)
    return {
        "obs": rng.standard_normal((ROWS_A_BATCH, _OBS), np.float32),
        "actions": actions,
        "action_logp": np.full(ROWS_A_BATCH, -np.log(_ACTIONS), np.float32),
        "action_dist_inputs": np.zeros((ROWS_A_BATCH, _ACTIONS), np.float32),
        "advantages": rng.standard_normal(ROWS_A_BATCH).astype(np.float32),
        "value_targets": rng.standard_normal(ROWS_A_BATCH).astype(np.float32),
    }


def _bare_update(obs: Tensor) -> Callable[[], None]:
    """Return the passes of one update and nothing else: two networks over each minibatch, and gradients back."""
    sizes = ((_OBS, WIDTH), (WIDTH, WIDTH))
    networks = [
        [
            (torch.randn(a, b).mul_(0.1).requires_grad_(), torch.zeros(b, requires_grad=True))
            for a, b in layers
        ]
        for layers in ((*sizes, (WIDTH, _ACTIONS)), (*sizes, (WIDTH, 1)))
    ]
    gradients = [torch.randn(MINIBATCH, width) for width in (_ACTIONS, 1)]

    def outputs(x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
        for weight, bias in layers[:-1]:
            x = torch.addmm(bias, x, weight).tanh()
        return torch.addmm(layers[-1][1], x, layers[-1][0])

    def update() -> None:
        for _ in range(EPOCHS):
            for start in range(0, ROWS_A_BATCH, MINIBATCH):
                rows = obs[start : start + MINIBATCH]
                torch.autograd.backward([outputs(rows, layers) for layers in networks], gradients)

    return update


def many_policies(effort: Effort) -> Finding:
    """Return how many times as much sampling costs with 8 policies of one architecture as with 1."""
    cartpoles = make_multi_agent("CartPole-v1")

    def ours(policies: int) -> Callable[[int], float]:
        names = [f"policy_{number}" for number in range(policies)]
        sampled = fragments(
            cartpoles, _ENVS, _LENGTH, env_config={"num_agents": _AGENTS},
            multiagent={"policies": names, "policy_mapping_fn": lambda agent_id: names[agent_id % policies]},
        )  # fmt: skip
        return lambda steps: sampled(steps).agent_steps

    one, eight, steps = ours(1), ours(_AGENTS), effort.steps(12_000)
    found = alternate(lambda: one(steps), lambda: eight(steps), effort.repeats)
    return Finding(value=1.0 / found.value, floors=found.floors, rates=found.rates)


ROWS = (
    Row(
        name="learner",
        text="PPO update, 8,192 rows x 4 epochs, minibatch 512, MLP 2x64",
        unit="x bare torch",
        reach=1.25,
        aim=1.1,
        measure=learning,
        at_most=True,
    ),
    Row(
        name="eight_policies",
        text="CartPole-v1, 16 envs x 8 agents, 8 policies against 1, sampling",
        unit="x cost of 1",
        reach=1.5,
        aim=1.15,
        measure=many_policies,
        at_most=True,
    ),
)
