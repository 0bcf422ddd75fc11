"""JaxMARL: its own IPPO script for `simple_spread`, `baselines/IPPO/ippo_ff_mpe.py`, with the settings beside it."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
from omegaconf import OmegaConf

from benchmarks.peers.scripts.shared import Told, main


def train(seed: int, env_steps: int, told: Told) -> None:
    path = Path(sys.prefix, "ippo_ff_mpe.py")
    spec: Any = importlib.util.spec_from_file_location("ippo_ff_mpe", path)
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    config: Any = OmegaConf.to_container(OmegaConf.load(path.with_suffix(".yaml")))
    config["TOTAL_TIMESTEPS"] = env_steps
    updates: list[float] = []

    def log(metric: dict[str, Any]) -> None:
        updates.append(float(metric["returned_episode_returns"]))
        told(len(updates) * config["NUM_ENVS"] * config["NUM_STEPS"], updates[-1])

    # The script logs each update there.
    script.wandb = SimpleNamespace(log=log)
    jax.block_until_ready(jax.jit(script.make_train(config))(jax.random.PRNGKey(seed)))


if __name__ == "__main__":
    main("jax jaxmarl", train=train)
