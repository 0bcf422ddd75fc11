"""Secrets in settings and texts, which are left out of what others may read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any

LEFT_OUT = "<left out>"
"""In place of a secret."""
_SECRET = re.compile(
    r"(?i)(^|[^a-z])(token|password|passwd|secret|credentials?|(api|access|private)?_?key)s?$"
)
"""How names of secrets end."""
_IN_URL = re.compile(r"://[^/@:\s]*:([^/@\s]+)@")
_SHORTEST_SECRET = 6


def is_secret(name: str) -> bool:
    """Return whether a setting, option or environment variable of this name holds a secret."""
    return _SECRET.search(re.sub(r"([a-z])([A-Z])", r"\1_\2", name)) is not None


def without_secrets(
    value: Any, found: set[str] | None = None, left_out: Any = LEFT_OUT, secret: bool = False
) -> Any:
    """Return settings, as JSON, without secrets.

    Secrets are strings with the name of a secret, all strings nested in such an entry, and strings that hold a URL with
    a password or the secret of an environment variable.

    Args:
        value: The settings.
        found: Secrets are added to it.
        left_out: The text in their place.
        secret: Whether `value` has a name of a secret.
    """
    if isinstance(value, dict):
        return {
            key: without_secrets(one, found, left_out, secret or is_secret(f"{key}"))
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(one, found, left_out, secret) for one in value]
    if not isinstance(value, str):
        return value
    secrets = (
        {value} if secret else {*_IN_URL.findall(value), *(one for one in _of_environment() if one in value)}
    )
    if found is not None:
        found |= secrets
    return left_out if secrets else value


def hidden(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without these secrets and the secrets of environment variables, unless they are very short."""
    long = {*_of_environment(), *(one for one in secrets if len(one) >= _SHORTEST_SECRET)}
    for secret in sorted(long, key=len, reverse=True):
        text = text.replace(json.dumps(secret)[1:-1], LEFT_OUT).replace(secret, LEFT_OUT)
    return text


def _of_environment() -> list[str]:
    return [one for name, one in os.environ.items() if len(one) >= _SHORTEST_SECRET and is_secret(name)]
