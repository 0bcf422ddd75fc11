"""`EpisodeIngest`: passes episodes that clients play with local inference from EPISODES to the broker.

Each timestep is taken once: a repeated chunk is recognised by its first index, a chunk of an episode without an id by
its first observation.
"""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from menv.adapters.episode_broker import EpisodeBroker
from menv.base_env import SINGLE_AGENT, AgentId, ExternalSteps, ExternalTrajectory
from menv.env_context import InputContext
from menv.errors import EpisodeError
from menv.serving.client_state import ChunkProgress, ClientState
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat
from menv.serving.episode_messages import WireEpisode, from_pieces, read_episode
from menv.serving.limits import Limits
from menv.serving.protocol import Episodes
from menv.serving.step_columns import agent_spaces
from menv.serving.value_readers import LARGEST_REWARD

_MAX_UNNAMED = 64


class EpisodeIngest:
    """Takes the trajectory chunks of a server's clients.

    Attributes:
        env_steps: Env steps so far.
        repeated: Timesteps that were sent again and skipped.
        widths: Allowed lengths of `dist_inputs` and `state_in` rows, where known.
        refused: Whether all episodes are refused because policies see something else than clients observe.
    """

    def __init__(self, broker: EpisodeBroker, ioctx: InputContext, limits: Limits) -> None:
        self.env_steps = 0
        self.repeated = 0
        self.widths: Mapping[str, frozenset[int]] = {}
        self.refused = False
        self._broker = broker
        self._ioctx = ioctx
        self._limits = limits
        self.spaces_of = agent_spaces(ioctx)

    def check_allowed(self, request: Episodes) -> None:
        """Refuse EPISODES if policies see the output of an `observation_fn`."""
        if self.refused:
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED,
                f"{type(request).__struct_config__.tag}: policies here see what an observation_fn makes of "
                "observations, expected a client that asks for each action; send GET_ACTION",
            )

    def take(
        self,
        state: ClientState,
        request: Episodes,
        wire_format: WireFormat,
        parsed: Sequence[WireEpisode] | None = None,
    ) -> Iterator[None]:
        """Take the episodes of a message in small steps; `parsed` are the episodes if another process has read them.

        Nothing is taken if one episode is invalid. If a chunk does not continue its episode, the episodes before it
        are taken.
        """
        name = str(type(request).__struct_config__.tag)
        self._give_up(state, request.lost or ())
        # Freed one by one: freeing tens of thousands at once takes long.
        read: deque[WireEpisode] = deque()
        for one in parsed or ():
            for episode in from_pieces(one, self.spaces_of):
                if episode is not None:
                    read.append(episode)
                yield
        for index, raw in enumerate(request.episodes):
            read.append(read_episode(raw, self.spaces_of, wire_format, f"{name}.episodes[{index}]"))
            yield
        for index, episode in enumerate(read):
            where = f"{name}.episodes[{index}]"
            self._check(episode, where)
            for one in [episode] if episode.agents is None else episode.agents.values():
                self._check_columns(one, where)
            yield
        total = sum(episode.size for episode in read)
        state.check_backlog(total, self._limits, name)
        number = request.weights_seq_no if request.weights_seq_no is not None else state.weights_seq_no
        size = total // max(1, len(read))
        for index in range(len(read)):
            self._take(state, read.popleft(), number, f"{name}.episodes[{index}]", size)
            yield
        state.forget_chunks()

    def _check(self, episode: WireEpisode, where: str) -> None:
        multi = self._ioctx.multi_agent
        if (episode.agents is not None) is not multi:
            kind = "several agents, an object `agents`" if multi else "one agent, and no `agents`"
            raise BadMessageError(ErrorCode.WRONG_TYPE, f"{where}: expected an episode of {kind}")
        if multi and episode.id is None:
            raise BadMessageError(
                ErrorCode.MALFORMED,
                f"{where}: no field 'id', expected one for an episode of several agents",
            )
        self._check_num_agents(episode.unclaimed or (), where)
        self._check_num_agents(episode.agents or (), where)
        for agent in episode.unclaimed or ():
            if self.spaces_of(agent) is None:
                raise BadMessageError(
                    ErrorCode.UNKNOWN_ID,
                    f"{where}.unclaimed: no agent {agent[:40]!r}, expected one of the environment's",
                )

    def _check_num_agents(self, agents: Collection[str | None], where: str) -> None:
        if len(agents) > self._limits.max_agents:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {len(agents)} agents, expected at most {self._limits.max_agents} (Limits.max_agents)",
            )

    def _check_columns(self, one: WireEpisode, where: str) -> None:
        for name, field in (("dist_inputs", "action_dist_inputs"), ("state_in", "state_in")):
            column, widths = getattr(one, name), self.widths.get(name)
            if column is not None and len(column) and widths and column.shape[1] not in widths:
                raise BadMessageError(
                    ErrorCode.WRONG_LENGTH,
                    f"{where}.{field}: {column.shape[1]} numbers a row, expected "
                    f"{' or '.join(map(str, sorted(widths)))}, as the policy has; leave it out if it is not known",
                )
        if len(one.rewards) and np.abs(one.rewards).max() > LARGEST_REWARD:
            raise BadMessageError(
                ErrorCode.OUT_OF_RANGE,
                f"{where}.rewards: got a number that is not finite as float32, expected a finite one",
            )

    def _take(
        self, state: ClientState, episode: WireEpisode, number: int | None, where: str, size: int
    ) -> None:
        members: Mapping[Any, WireEpisode] = episode.agents if episode.agents is not None else {None: episode}
        self._check_gaps(state, episode, members, where)
        progress = self._chunks_of(state, episode, where)
        if progress.over:
            self.repeated += episode.steps
            return
        steps: dict[AgentId, ExternalSteps] = {}
        for agent, one in members.items():
            part = self._fresh(progress, agent, one, has_id=episode.id is not None)
            if part is not None:
                steps[SINGLE_AGENT if agent is None else agent] = part
        progress.over = episode.terminated or episode.truncated
        state.num_chunks_ended += progress.over and episode.id is not None
        if steps or progress.over:
            env_steps = _env_steps(episode, steps)
            numbers = [one.weights_seq_no for one in (episode, *members.values())]
            number = min((one for one in numbers if one is not None), default=number)
            flags = episode.terminated, episode.truncated
            # Unclaimed rewards have no timestep; they come with the end, which is taken once.
            unclaimed = (episode.unclaimed or {}) if progress.over else {}
            policies = {} if state.only_policy is None else dict.fromkeys(steps, state.only_policy)
            chunk = ExternalTrajectory(
                steps, env_steps, *flags, number, policies | progress.policies, unclaimed
            )
            try:
                self._broker.add_chunk(progress.broker_id, chunk, size)
            except EpisodeError as error:
                raise BadMessageError(ErrorCode.WRONG_ORDER, f"{where}: {error}") from None
            self.env_steps += env_steps
        if episode.id is None:
            self._keep_unnamed(state, progress, episode)

    def _keep_unnamed(self, state: ClientState, progress: ChunkProgress, episode: WireEpisode) -> None:
        """Remember where an episode without an id continues; the oldest of many is lost."""
        state.unnamed = [one for one in state.unnamed if one is not progress]
        if not progress.over:
            # A view would keep the whole array in memory.
            progress.last_obs = copy.deepcopy(episode.obs[-1])
            state.unnamed.append(progress)
        if len(state.unnamed) > _MAX_UNNAMED:
            oldest = state.unnamed.pop(0).broker_id
            self._broker.lose([oldest], f"its client began {_MAX_UNNAMED} others that have no id")

    def announce(self, state: ClientState, name: str, policies: Mapping[str, str]) -> None:
        """Store the policies of agents in an episode that the client plays or is about to play."""
        progress = state.chunks.get(name)
        if progress is None:
            progress = state.chunks[name] = self._begin(state, name, "GET_POLICIES", "episode_id")
        self._check_num_agents(progress.policies.keys() | policies.keys(), "GET_POLICIES")
        progress.policies.update(policies)

    def _give_up(self, state: ClientState, names: Sequence[str]) -> None:
        open_ones = [one for name in names if (one := state.chunks.get(name)) is not None and not one.over]
        for progress in open_ones:
            state.num_chunks_ended += not progress.over
            progress.over = True
        self._broker.lose([one.broker_id for one in open_ones], "its client gave it up")

    def _chunks_of(self, state: ClientState, episode: WireEpisode, where: str) -> ChunkProgress:
        if episode.id is not None:
            found = state.chunks.get(episode.id)
            if found is None:
                found = state.chunks[episode.id] = self._begin(state, episode.id, where)
            return found
        for one in state.unnamed:
            if _same(one.last_obs, episode.obs[0]):
                return one
        if not episode.steps:
            return ChunkProgress("", over=True)
        return self._begin(state, secrets.token_hex(8), where)

    def _begin(self, state: ClientState, name: str, where: str, field: str = "id") -> ChunkProgress:
        if name in state.episodes or name in state.finished:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{where}.{field}: is that of an episode whose actions are asked for here, expected one that the "
                "client plays by itself; give that another id",
            )
        state.check_room(self._limits, self._broker.open_episodes, where)
        return ChunkProgress(self._broker.start(f"{state.token[:12]}/{name}", budget=state.backlog))

    def _check_gaps(
        self, state: ClientState, episode: WireEpisode, members: Mapping[Any, WireEpisode], where: str
    ) -> None:
        """Refuse a chunk that leaves a gap, or that has too many agents, before anything is taken."""
        if episode.id is None:
            return
        progress = state.chunks.get(episode.id) or ChunkProgress("")
        self._check_num_agents(progress.t.keys() | members.keys(), where)
        for agent, one in members.items():
            taken = progress.t.get(agent, 0)
            if one.t > taken and not progress.over:
                raise BadMessageError(
                    ErrorCode.WRONG_ORDER,
                    f"{where}.t: begins at step {one.t}, expected {taken} at most, which is what has come; send "
                    "what is between first",
                )

    def _fresh(
        self, progress: ChunkProgress, agent: str | None, one: WireEpisode, *, has_id: bool
    ) -> ExternalSteps | None:
        """Return the timesteps that were not taken yet, None if there are none."""
        taken = progress.t.get(agent, 0)
        begins = one.t if has_id else taken
        skip = min(taken - begins, one.steps)
        self.repeated += skip
        last = begins + one.steps
        progress.t[agent] = max(taken, last)
        over = one.terminated or one.truncated
        # This end was taken before; the agent may have started a new trajectory since.
        ended = last < taken or progress.ends.get(agent) == last
        if skip == one.steps and (not over or ended):
            return None
        if over:
            progress.ends[agent] = last
        columns = (one.logp, one.dist_inputs, one.state_in, one.env_t)
        logp, inputs, states, env_t = (None if column is None else column[skip:] for column in columns)
        return ExternalSteps(
            one.obs[skip:], one.actions[skip:], one.rewards[skip:],
            one.terminated and agent is not None, one.truncated and agent is not None, logp, inputs, states, env_t,
        )  # fmt: skip


def _env_steps(episode: WireEpisode, steps: Mapping[Any, ExternalSteps]) -> int:
    """Return the number of new env steps: the number that the client sent, if all timesteps are new and it fits."""
    lengths = [len(one.rewards) for one in steps.values()]
    if episode.env_steps is None or sum(lengths) != episode.steps:
        return max(lengths, default=0)
    return min(episode.env_steps, sum(lengths))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return isinstance(right, dict) and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and all(_same(*pair) for pair in zip(left, right, strict=True))
    return bool(np.array_equal(left, right))
