"""`python -m menv.verify` is `menv verify`."""

import sys

from menv.cli.verify import main

if __name__ == "__main__":
    sys.exit(main())
