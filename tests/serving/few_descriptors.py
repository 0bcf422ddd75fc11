"""A server in a process with hardly any file descriptors, until its standard input ends; `test_ends` talks to it."""

from __future__ import annotations

import resource
import sys

from tests.serving.doors import TCP
from tests.serving.talks import serving

FEW = 40


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))
    with serving(TCP) as (server, _):
        sys.stdout.write(f"{server.addresses[0][1]}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
