"""`python -m menv.cli`, which is the `menv` command."""

import sys

from menv.cli.main import main

sys.exit(main())
