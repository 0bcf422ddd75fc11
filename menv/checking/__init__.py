"""The contract of every kind of environment as a check that explains: `check_env`, `python -m menv.checking`.

`check.py` is the way in, `codes.py` the list of what is looked for, `docs/checking.md` the page for
people. A kind of environment has one file, its stage; probes play on stages and know no kinds.
"""

from menv.checking.check import check_env
from menv.checking.codes import Finding

__all__ = ["Finding", "check_env"]
