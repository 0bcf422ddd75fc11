"""`python -m menv.checking` is `menv check`."""

import sys

from menv.cli.check import main

if __name__ == "__main__":
    sys.exit(main())
