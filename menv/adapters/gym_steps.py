"""An env step of some gymnasium environments, one after another: what they returned, who finished, who raised.

`menv.adapters.gym` takes its steps here and makes rows or a frame of them. Nothing here resets, reports or counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from menv.adapters.report import check_info
from menv.env_calls import OR_MANY_AGENTS, as_flag, how_many, last_obs
from menv.errors import ContractError, MenvError
from menv.fault import raised_by_envs

Step = Callable[[Any], Any]


class Over(NamedTuple):
    """The end of an episode.

    Attributes:
        place: Among those that were stepped.
        env_index: Of the environment.
        obs: The last observation, a copy.
        reward: As it was paid.
        info: The last info dict.
        flags: Whether it was terminated, and truncated.
    """

    place: int
    env_index: int
    obs: Any
    reward: Any
    info: Mapping[str, Any]
    flags: tuple[bool, bool]


@dataclass(slots=True)
class Taken:
    """What came of R steps.

    Attributes:
        rewards: R; 0.0 where an environment raised.
        overs: Of those that finished, in order.
        broken: The environments that raised, and what.
    """

    rewards: list[Any] = field(default_factory=list)
    overs: list[Over] = field(default_factory=list)
    broken: list[tuple[int, BaseException]] = field(default_factory=list)


@dataclass(slots=True)
class Seen:
    """What each environment shows, by index; a step writes over it.

    Attributes:
        obs: The last observations.
        infos: The info dicts that came with them.
        fresh: Whether the episode has seen no step yet.
    """

    obs: list[Any]
    infos: list[Mapping[str, Any]]
    fresh: list[bool]


def take_steps(order: Sequence[int], steps: Sequence[Step], actions: Sequence[Any], seen: Seen) -> Taken:
    """Step environments one after another, also past those that raise.

    Args:
        order: R indices.
        steps: R methods.
        actions: R.
        seen: Is written.

    Raises:
        ContractError: One returned something else than a step does; it names which.
    """
    taken = Taken()
    todo = zip(order, steps, actions, strict=True)
    while len(taken.rewards) < len(order):
        error = _step_until_one_raises(todo, taken, seen)
        if error is not None:
            taken.broken.append((order[len(taken.rewards)], error))
            taken.rewards.append(0.0)
    # What an error holds in turn is this call: nothing would be let go of without the collector.
    error = None
    return taken


def _step_until_one_raises(
    todo: Iterator[tuple[int, Step, Any]], taken: Taken, seen: Seen
) -> BaseException | None:
    """Step the next environments and note what comes of it; return what one raised, None if all were stepped."""
    all_obs, all_infos, fresh, rewards = seen.obs, seen.infos, seen.fresh, taken.rewards
    index, terminated, truncated = 0, False, False
    try:
        for index, step, action in todo:
            obs, reward, terminated, truncated, info = step(action)
            if type(info) is not dict:
                check_info(info, f"env {index} step")
            if terminated or truncated:
                flags = _flag(index, "terminated", terminated), _flag(index, "truncated", truncated)
                taken.overs.append(
                    Over(len(rewards), index, last_obs(obs, f"env {index} step"), reward, info, flags)
                )
            all_obs[index], all_infos[index], fresh[index] = obs, info, False
            rewards.append(reward)
        if terminated is None or truncated is None:
            # Looked at in the last one alone: flags that are None for want of a `return` are so in each.
            _flag(index, "terminated", terminated)
            _flag(index, "truncated", truncated)
    except MenvError:
        raise
    except raised_by_envs() as error:
        _check_unpacking(index, error)
        return error
    return None


def _flag(index: int, name: str, flag: Any) -> bool:
    return (
        flag
        if flag is True or flag is False
        else as_flag(flag, f"env {index} step: {name}", f"return one flag{OR_MANY_AGENTS}")
    )


def _check_unpacking(index: int, error: BaseException) -> None:
    """Tell a wrong number of return values from a crash inside an environment.

    Args:
        index: The environment.
        error: Raised while its step was called and what this returned was taken apart, as it was caught there.

    Raises:
        ContractError: It is the former.
    """
    here = error.__traceback__
    if here is None or here.tb_next is not None:
        return
    if isinstance(error, ValueError | RuntimeError) and "ambiguous" in str(error):
        raise ContractError(
            f"env {index} step: terminated or truncated is an array of several, expected True or False; return one flag"
            f"{OR_MANY_AGENTS}"
        ) from error
    if "non-iterable NoneType" in str(error):
        raise ContractError(
            f"env {index} step: returned {how_many(None)}, expected (obs, reward, terminated, truncated, info); return "
            "all five from step"
        ) from error
    if isinstance(error, ValueError | TypeError):
        raise ContractError(
            f"env {index} step: could not unpack what step returned ({error}), expected "
            "(obs, reward, terminated, truncated, info); split the old `done` into terminated and truncated, or "
            "wrap the environment in menv.wrappers.LegacyGym"
        ) from error
