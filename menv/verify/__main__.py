"""`python -m menv.verify` is `menv verify`."""

import sys

from menv.cli.arguments import run_command
from menv.cli.environments import verify

if __name__ == "__main__":
    sys.exit(run_command("python -m menv.verify", verify))
