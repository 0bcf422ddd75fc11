"""`python -m menv.checking` is `menv check`."""

import sys

from menv.cli.arguments import run_command
from menv.cli.environments import check

if __name__ == "__main__":
    sys.exit(run_command("python -m menv.checking", check))
