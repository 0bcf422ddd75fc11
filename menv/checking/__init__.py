"""`check_env` tests any kind of environment against the contract and explains each fault; `menv check` prints them.

Begin with `check.py`, which drives an environment. `runner.py` plays it through the adapter of training, whose
refusals name the codes of findings, and checks what the adapter delivers. `codes.py` lists the findings,
`docs/reference/checking.md` explains them.
"""

from menv.checking.check import check_env
from menv.checking.codes import Finding

__all__ = ["Finding", "check_env"]
