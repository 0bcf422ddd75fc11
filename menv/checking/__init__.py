"""`check_env` tests any kind of environment against the contract and explains each fault; `menv check` prints them.

Begin with `check.py`. A runner (`runners.py`, `agent_runners.py`) steps one kind of environment and checks each
value by the rules of `menv.adapters`; `play.py` drives any runner. `codes.py` lists the findings,
`docs/reference/checking.md` explains them.
"""

from menv.checking.check import check_env
from menv.checking.codes import Finding

__all__ = ["Finding", "check_env"]
