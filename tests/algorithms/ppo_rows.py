"""Rows that a policy might have sampled, for the learner of PPO."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import StockSpec
from menv.inference.onnx_backend import OnnxBackend

Columns = dict[str, npt.NDArray[Any]]


def acting_of(spec: StockSpec, weights: Any) -> OnnxBackend:
    return OnnxBackend(StockGraphs(spec), spec.head, [weights])


def rows_of(spec: StockSpec, weights: Any, count: int, *, masked: bool = False, seed: int = 0) -> Columns:
    """Return rows of a policy with these weights; advantages and targets are drawn."""
    rng, acting, mask = np.random.default_rng(seed), acting_of(spec, weights), None
    obs = rng.standard_normal((count, spec.obs_size), np.float32)
    if masked:
        mask = rng.random((count, spec.head.mask_width)) < 0.6
        mask[:, np.cumsum((0, *spec.head.choices[:-1]))] = True
    actions = acting.decide(obs, mask, spec.head.sample_noise(rng, count)).actions
    told = acting.evaluate(0, obs, mask, actions)
    columns: Columns = {
        "obs": obs, "actions": actions, "action_logp": told.logp, "action_dist_inputs": told.dist_inputs,
        "advantages": rng.standard_normal(count).astype(np.float32),
        "value_targets": rng.standard_normal(count).astype(np.float32),
    }  # fmt: skip
    if mask is not None:
        columns["action_mask"] = mask
    if spec.critic_size:
        columns["critic_obs"] = rng.standard_normal((count, spec.critic_size), np.float32)
    return columns
