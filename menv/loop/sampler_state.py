"""What a sampler stands at between two fragments, as a plain tree, and going on from there in another process.

The other half of `menv.loop.sampler`, whose fields it reads and sets; training checkpoints call it. Running episodes
are written down as their seeds and actions (`menv.adapters.recorded`) and played again. Whatever of an episode no file
can hold costs that episode alone: it is broken off and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.created_envs import CreatedEnvs
from menv.adapters.lockstep import LockstepEnvs
from menv.adapters.recorded import Recorded
from menv.base_env import AgentId
from menv.episode import Episode
from menv.errors import CallOrderError
from menv.loop.block import Block
from menv.loop.cohort import Cohort
from menv.loop.digest import Digest
from menv.loop.life_ledger import Life, LifeLedger
from menv.loop.net_cohort import NetCohort
from menv.loop.sampler import Sampler
from menv.plain_data import is_plain
from menv.segments import Column
from menv.trajectories import Trajectories

Tree = dict[str, Any]
Waiting = tuple[int, int, Block]

_OF_A_LIFE = ("acted", "action", "reward", "early", "info", "states")
_OF_A_TRAJECTORY = tuple(name for name in Trajectories.__slots__ if name not in ("policy", "agent_id"))


def sampler_state(sampler: Sampler) -> Tree:
    """Return where a sampler stands.

    Raises:
        CallOrderError: It is in the middle of a fragment.
    """
    sampler.row_by_row()
    # What an idle external environment has left half full is given up, like its running episodes.
    waits = sampler._frames is not None or sampler.idle
    if not waits and not all(cohort.ledger.closed for cohort in sampler._cohorts):
        raise CallOrderError(
            "save: a fragment is being sampled, expected to stand between two; call it after train() or sample(), "
            "or in on_train_result"
        )
    tree, env = without_episodes(sampler), sampler.base_env
    seats = (list(env.seats), list(env.free_slots)) if isinstance(env, CreatedEnvs) else None
    if seats is None or not sampler._polled or not is_plain(seats):
        return tree
    sampler.action_log.keep(sampler._book.running_ids)
    rows = [_rows_of(sampler, cohort) for cohort in sampler._cohorts]
    found = [_recorded(sampler, index, rows) for index in range(env.num_envs)]
    episodes = [episode for episode in found if episode is not None]
    written = {episode["env_index"] for episode in episodes}
    kept = [_of_envs(part, written) for part in rows]
    # Readers that know of no connectors that remember look for episodes at the old place only, and break these off.
    theirs = {index for part in kept for index in _of_those_who_remember(part)}
    parted = [[one for one in episodes if (one["env_index"] in theirs) is told] for told in (False, True)]
    return tree | {"episodes": parted[0], "remembering": parted[1], "rows": kept, "seats": seats}


def without_episodes(sampler: Sampler) -> Tree:
    """Return where a sampler stands, also in the midst of a fragment, as if no episode could be taken up."""
    env = sampler.base_env
    steps = env.env_steps if isinstance(env, CreatedEnvs | LockstepEnvs) else sampler._steps
    return {
        "env_steps": sampler.env_steps,
        "agent_steps": sampler.agent_steps,
        "pieces": sampler._unrolls,
        "digest": sampler.digest.state(),
        "steps": steps.copy(),
        "begun": sampler._book._begun.copy(),
        "running": env.num_envs if sampler._frames is not None else len(sampler._book.running),
        "episodes": [],
        "rows": [],
        "seats": ([], []),
    }


def resume(sampler: Sampler, tree: Mapping[str, Any]) -> int:
    """Go on from where another sampler stood.

    Args:
        sampler: It has not sampled, and its cohorts hold nothing.
        tree: What `sampler_state` returned for the other one.

    Returns:
        The number of episodes that ran and could not be taken up.
    """
    env, steps = sampler.base_env, tree["steps"]
    sampler.env_steps, sampler.agent_steps = tree["env_steps"], tree["agent_steps"]
    sampler._unrolls = tree["pieces"]
    sampler.digest = Digest(*tree.get("digest", ()))
    same = not env.num_envs or env.num_envs == len(steps)
    if not same:
        # Other sub-environments: none is where it was, and none may draw the same numbers again.
        steps = np.full(env.num_envs, steps.max(initial=0))
    sampler._book.widen(len(steps))
    fits = len(tree["begun"]) == len(steps)
    sampler._book._begun[:] = tree["begun"] if fits else tree["begun"].max(initial=0)
    if isinstance(env, LockstepEnvs):
        env.start_over(steps)
        sampler._steps = steps
    if not isinstance(env, CreatedEnvs):
        return int(tree["running"])
    episodes = _fitting(sampler, tree) if same else {}
    recorded = {index: _as_recorded(sampler, one) for index, one in episodes.items()}
    fresh = env.take_up(steps, recorded, tree["seats"] if recorded else ([], []))
    sampler._polled, sampler._steps, sampler._seats = True, steps.copy(), env.seats
    resumed = {index: one for index, one in episodes.items() if index not in fresh}
    for index, one in resumed.items():
        _begin(sampler, index, one)
    waiting = [one for part in tree["rows"] for one in _seat(sampler, _of_envs(part, resumed))]
    sampler._pending = [(number, block) for _, number, block in sorted(waiting, key=itemgetter(0))]
    return int(tree["running"]) - len(resumed)


def _rows_of(sampler: Sampler, cohort: Cohort) -> Tree:
    """Return the trajectories of a cohort that live on, and the row that each of them has left."""
    living, columns = cohort.ledger.held()
    raw: dict[int, Any] = {}
    turn: dict[int, tuple[int, int]] = {}
    for which, (number, block) in enumerate(sampler._pending):
        if sampler._cohorts[number] is cohort:
            waits = block.slots.tolist()
            turn |= {slot: (which, place) for place, slot in enumerate(waits)}
            raw |= dict(zip(waits, block.raw or [None] * len(waits), strict=True))
    slots = living.slot.tolist()
    lives = cohort.ledger.lives if isinstance(cohort.ledger, LifeLedger) else {}
    return {
        **{name: getattr(living, name) for name in _OF_A_TRAJECTORY},
        "policy": [cohort.policy_ids[index] for index in living.policy.tolist()],
        "agent_id": list(living.agent_id),
        "returns": sampler._table.returns[living.slot],
        "raw": [raw.get(slot) for slot in slots],
        # Of the rows that wait: the number of their block and their places in it, which decide who is answered first.
        "turn": np.array([turn.get(slot, (-1, 0)) for slot in slots], np.int64).reshape(len(slots), 2),
        "lives": [
            [getattr(lives[slot], name) for name in _OF_A_LIFE] if slot in lives else None for slot in slots
        ],
        "remembered": _remembered(cohort, living),
        "columns": columns,
    }


def _remembered(cohort: Cohort, living: Trajectories) -> list[Any]:
    """Return what connectors remember of each life."""
    if not isinstance(cohort, NetCohort):
        return [None] * len(living.slot)
    # Trajectories that nobody learns from have the complement of their policy's index.
    return cohort.remembered(living.slot.tolist(), np.maximum(living.policy, ~living.policy).tolist())


def _of_those_who_remember(part: Tree) -> list[int]:
    """Return the sub-environments of lives of which connectors remember something."""
    pairs = zip(part["env_index"].tolist(), part["remembered"], strict=True)
    return [index for index, life in pairs if life is not None]


def _recorded(sampler: Sampler, index: int, rows: list[Tree]) -> Tree | None:
    """Return what is written down of a running episode, None if that cannot be all of it."""
    env, book = sampler.base_env, sampler._book
    assert isinstance(env, CreatedEnvs)
    episode, shown = book.running.get(index), env.shown(index)
    if episode is None or shown is None or not sampler.policy_map.goes_on(book._maps[index]):
        return None
    homes = {book._where[policy][0] for policy, _ in episode.seats().values()}
    if not all(sampler._cohorts[number].replays for number in homes):
        return None
    done = sampler.action_log.actions_of(episode.episode_id)
    if done is None:
        return None
    actions: dict[int, Any] = {number: np.concatenate(parts) for number, parts in done.items()}
    last: dict[int, Any] = {}
    own = [_of_envs(part, [index]) for part in rows]
    for part in own:
        for place in np.flatnonzero(part["columns"]["answered"]).tolist():
            last[int(part["agent_index"][place])] = part["columns"]["actions"][place : place + 1]
    tree = {
        "env_index": index,
        "start": env.episode_start(index),
        "stop": int(env.env_steps[index]),
        "seed": env.episode_seed(index),
        "slots": dict(env.slots_of(index)),
        "shown": shown,
        "actions": actions,
        "last": last,
        "episode": episode.state(),
    }
    return tree if is_plain([tree, own]) else None


def _fitting(sampler: Sampler, tree: Mapping[str, Any]) -> dict[int, Tree]:
    """Return the episodes that can be taken up as far as policies and rows are concerned, by index."""
    where = sampler._book._where
    specs = sampler.policy_map.specs
    episodes = {
        episode["env_index"]: episode
        for episode in [*tree["episodes"], *tree.get("remembering", ())]
        if all(policy in specs for policy, _ in episode["episode"]["policies"].values())
    }
    for part in tree["rows"]:
        for place, index in enumerate(part["env_index"].tolist()):
            if index in episodes:
                ledger = sampler._cohorts[where[part["policy"][place]][0]].ledger
                if not ledger.fits(part["columns"]):
                    del episodes[index]
    return episodes


def _as_recorded(sampler: Sampler, episode: Tree) -> Recorded:
    """Return an episode with actions that its environment takes."""
    actions: dict[AgentId, Iterator[Any]] = {}
    for agent, (policy, number) in episode["episode"]["policies"].items():
        cohort = sampler._cohorts[sampler._book._where[policy][0]]
        parts = [part[number] for part in (episode["actions"], episode["last"]) if number in part]
        actions[agent] = iter(cohort.env_actions(np.concatenate(parts)) if parts else ())
    fields = {name: episode[name] for name in ("start", "stop", "seed", "slots", "shown")}
    return Recorded(actions=actions, **fields)


def _begin(sampler: Sampler, index: int, one: Tree) -> None:
    """Let an episode that was played again be one of the sampler's."""
    book, hooks = sampler._book, sampler._hooks
    episode = Episode.from_state(index, one["episode"])
    book.running[index], book._maps[index] = episode, sampler.policy_map
    hooks._env_steps = sampler._steps.copy()
    if hooks.keeps:
        hooks.keep([episode])
    policies = {number: policy for policy, number in episode.seats().values()}
    for number, actions in one["actions"].items():
        sampler.action_log.put(book._where[policies[number]][0], episode.episode_id, number, actions)


def _seat(sampler: Sampler, part: Tree) -> Iterator[Waiting]:
    """Put the trajectories of a cohort, and their rows, where their policies are now; yield those that wait."""
    homes = [sampler._book._where[policy] for policy in part["policy"]]
    numbers = np.array([number for number, _ in homes], np.int64)
    for number in np.unique(numbers).tolist():
        chosen = numbers == number
        mine = _chosen(part, chosen)
        indices = np.array([index for _, index in homes], np.int64)[chosen]
        _sit(sampler, number, indices, mine)
        yield from _write(sampler, number, indices, mine)


def _sit(sampler: Sampler, number: int, indices: Column, part: Tree) -> None:
    """Write the seats of living trajectories into the slot table."""
    seats = zip(
        part["slot"].tolist(), indices.tolist(), part["env_index"].tolist(), part["agent_id"], strict=True
    )
    for slot, policy, env_index, agent_id in seats:
        sampler._table.sit(slot, number, policy, env_index, sampler._book.agent_key(env_index, agent_id))
    sampler._table.returns[part["slot"]] = part["returns"]


def _write(sampler: Sampler, number: int, indices: Column, part: Tree) -> Iterator[Waiting]:
    """Write rows into a cohort's ledger; yield those that were not answered."""
    cohort, slots = sampler._cohorts[number], part["slot"]
    ledger = cohort.ledger
    # Earlier versions wrote no lives, and nothing that is remembered of them.
    part = {"life": np.zeros(len(slots), np.int64), "remembered": [None] * len(slots), **part}
    fields = {name: part[name] for name in _OF_A_TRAJECTORY}
    agent_ids = np.fromiter(part["agent_id"], object, len(slots))
    first = ledger.rows
    ledger.take_up(Trajectories(policy=indices, agent_id=agent_ids, **fields), part["columns"])
    if isinstance(cohort, NetCohort):
        cohort.recall(slots.tolist(), indices.tolist(), part["remembered"])
    if isinstance(ledger, LifeLedger):
        for slot, life in zip(slots.tolist(), part["lives"], strict=True):
            ledger.lives[slot] = Life() if life is None else Life(*life)
    turns, places = part["turn"].T
    for turn in np.unique(turns[turns >= 0]).tolist():
        waits = np.flatnonzero(turns == turn)
        waits = waits[np.argsort(places[waits])]
        which = 0 if len(cohort.policy_ids) == 1 else indices[waits]
        raw = [part["raw"][place] for place in waits.tolist()]
        yield turn, number, Block(slots[waits], which, part["env_index"][waits], first + waits, raw)


def _of_envs(part: Tree, indices: Collection[int]) -> Tree:
    """Return the rows of some sub-environments."""
    return _chosen(part, np.isin(part["env_index"], sorted(indices)))


def _chosen(part: Tree, mask: npt.NDArray[np.bool_]) -> Tree:
    """Return the rows of a part that a mask selects."""
    places = np.flatnonzero(mask)
    found: Tree = {"columns": {name: column[places] for name, column in part["columns"].items()}}
    for name, values in part.items():
        if name != "columns":
            found[name] = (
                [values[place] for place in places.tolist()] if isinstance(values, list) else values[places]
            )
    return found
