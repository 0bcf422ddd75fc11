"""A policy from a disk and its first action, in a process of its own.

    python -m benchmarks.first_action FOLDER

`benchmarks` starts this and measures it from outside. The last line is one JSON object: the action, and the most
memory that the process had, in megabytes, where the system tells.
"""

import json
import sys
from pathlib import Path

import numpy as np

from menv import Policy


def peak_megabytes() -> float:
    """Return the most memory of this process; not what `getrusage` says, which counts that of the parent."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("inf")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    policy = Policy.from_checkpoint(sys.argv[1])
    assert isinstance(policy, Policy)
    action = policy.act(np.zeros(4, np.float32))
    print(json.dumps({"action": int(action), "megabytes": peak_megabytes()}), flush=True)


if __name__ == "__main__":
    main()
