"""What an installation without the extra `train` lacks, told in a line before anything is begun.

Algorithms, `verify_backends`, curves and TensorBoard call it. It imports none of the packages that it looks for.
"""

from __future__ import annotations

from importlib.util import find_spec

from menv.errors import MissingExtraError


def check_packages(who: str, *packages: str) -> None:
    """Refuse to go on without packages that `menv[train]` brings.

    Args:
        who: What needs them, for the error.
        *packages: What is imported.

    Raises:
        MissingExtraError: Some are not installed.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        one = len(missing) == 1
        raise MissingExtraError(
            f"{who}: the package{'' if one else 's'} {' and '.join(missing)} {'is' if one else 'are'} not installed, "
            f"expected {'it' if one else 'them'}; run: pip install 'menv[train]'"
        )
