"""What an application hands to a `PolicyClient`, looked at before anything is done with it.

What no message can hold is refused here, in the call that brings it, and not when it is sent with what others have
said. It knows no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from menv import call_errors
from menv.errors import ConfigError, ContractError

_MODES = ("local", "remote")
_LONGEST = 1e9
"""Seconds; what waits for a socket takes no number that is much larger, infinity neither."""
_LONGEST_ID = 256


def check_settings(
    inference_mode: object, update_interval: Any, session: object, timeout: Any, client: object, seed: object
) -> None:
    """Refuse arguments that no client can have; they are those of `PolicyClient`.

    Raises:
        ConfigError: One is of the wrong kind.
    """
    if inference_mode not in _MODES:
        raise ConfigError(
            f"PolicyClient: inference_mode={inference_mode!r:.40}, expected 'local' or 'remote'; choose one"
        )
    # NaN is below nothing.
    if update_interval is not None and not (_is_number(update_interval) and update_interval >= 0):
        raise ConfigError(
            f"PolicyClient: update_interval={update_interval!r:.40}, expected seconds from 0 or None; leave it out for "
            "10"
        )
    if session is not None and not is_id(session):
        raise ConfigError(
            f"PolicyClient: session is {session!a:.60}, expected None or the `session` of another client; leave it out"
        )
    if not _is_number(timeout) or not 0 < timeout <= _LONGEST:
        raise ConfigError(
            f"PolicyClient: timeout={timeout!r:.40}, expected seconds above 0, at most {_LONGEST:g}; leave it out for "
            "60"
        )
    if client is not None and not (isinstance(client, str) and _is_utf8(client)):
        raise ConfigError(
            f"PolicyClient: client is {client!a:.60}, expected a text or None; give a name for the server's reports"
        )
    if seed is not None and (not isinstance(seed, Integral) or isinstance(seed, bool)):
        raise ConfigError(
            f"PolicyClient: seed={seed!r:.40}, expected a whole number or None; leave it out to take one by chance"
        )


def is_id(value: object) -> bool:
    """Return whether a value can name an episode, an agent or a session in messages."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID and _is_utf8(value)


def check_start(episode_id: object, trained: object) -> None:
    """Refuse what no episode can begin with.

    The server would refuse an id only when the episode is sent, and with it all that go in the same message.

    Raises:
        ConfigError: The id is none.
        ContractError: Whether policies may learn is neither True nor False.
    """
    if episode_id is not None and not is_id(episode_id):
        raise ConfigError(
            f"start_episode: the id is {episode_id!a:.60}, expected a text of 1 to {_LONGEST_ID} characters that UTF-8 "
            "has; write str(...) of a number, or leave the id out to get one"
        )
    call_errors.check_start(None, trained)


def check_agent(where: str, agent: object) -> None:
    """Refuse what cannot name an agent.

    Raises:
        ContractError: It cannot.
    """
    if not is_id(agent):
        raise ContractError(
            f"{where}: agent {agent!a:.60}, expected a text of 1 to {_LONGEST_ID} characters that UTF-8 has; name "
            "agents by texts"
        )


def check_told(rewards: Iterable[Any], infos: Mapping[Any, Any] | None, done: Iterable[Any]) -> None:
    """Refuse what no message can tell of several agents: sent and refused, it would keep back all that is told.

    Args:
        rewards: By agent.
        infos: Likewise, or None.
        done: Likewise.

    Raises:
        ContractError: One of them is told of what names no agent, or an info is none.
    """
    for agent in (*rewards, *(infos or ()), *done):
        check_agent("log_returns", agent)
    for info in (infos or {}).values():
        call_errors.check_told_info(info)


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def _is_utf8(text: str) -> bool:
    """Return whether a text has no halves of characters, such as file names may hold."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
