"""An algorithm whose clients ask for actions, in a process of its own; it samples for ever and never learns.

    python -m benchmarks.policy_servers {tcp,http}

The first line is one JSON object with host and port; the last one, when standard input has ended, has the actions that
were asked for and the calls of the network that it took.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from typing import Any

from benchmarks.echo_servers import KINDS, announce
from menv.algorithms import PPO
from menv.errors import CallOrderError
from menv.serving.policy_server import PolicyServerInput


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    kind = parser.parse_args().kind
    config = {
        "input": lambda ioctx: PolicyServerInput(
            ioctx, port=0, transport=kind, env_steps_per_sample=1000, force_on_policy=False
        ),
        "train_batch_size": 10**9,
        "rollout_fragment_length": 10**9,
    }
    counts = {"actions": 0, "calls": 0}
    with PPO(env="CartPole-v1", config=config) as algo:
        backend: Any = algo.get_policy().networks.backend  # type: ignore[attr-defined]
        decide = backend.decide

        def counted(obs: Any, *rest: Any) -> Any:
            counts["actions"] += len(obs)
            counts["calls"] += 1
            return decide(obs, *rest)

        backend.decide = counted

        def sample() -> None:
            with contextlib.suppress(CallOrderError):
                while True:
                    algo.sample()

        threading.Thread(target=sample, daemon=True).start()
        announce(*algo.input_address)
        sys.stdin.read()
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
