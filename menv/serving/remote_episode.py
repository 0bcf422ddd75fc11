"""An episode whose actions a client asks the server for, one by one.

`PolicyClient` calls it. Messages are numbered, so that one which had to be sent again is taken once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from menv.serving.client_link import ClientLink
from menv.serving.client_spaces import ClientSpaces
from menv.serving.client_values import element_of, written
from menv.serving.messages import EndEpisode, GetAction, LogAction, LogReturns, StartEpisode


class RemoteEpisode:
    """One open episode.

    Args:
        link: The session that it belongs to.
        spaces: Of the agents.
        episode_id: Its id.
        seq: Number of the last message that was taken; None starts the episode.
        trained: Whether policies may learn from it.

    Raises:
        EpisodeError: The id was used before.
    """

    def __init__(
        self,
        link: ClientLink,
        spaces: ClientSpaces,
        episode_id: str,
        seq: int | None = None,
        trained: bool = True,
    ) -> None:
        self.episode_id = episode_id
        self._link = link
        self._spaces = spaces
        self._seq = seq or 0
        if seq is None:
            link.ask(StartEpisode(episode_id=episode_id, training_enabled=trained, seq=0), anew=True)

    def act(self, observation: Any) -> Any:
        """Return the action that the server chooses; see `PolicyClient.get_action`."""
        answer = self._ask(GetAction, observation=written(observation, "get_action"))
        space = self._spaces.action_space
        if not self._spaces.multi_agent:
            return element_of(space, answer.action)
        return {agent: element_of(space, action) for agent, action in answer.action.items()}

    def log(self, observation: Any, action: Any) -> None:
        """Tell what the application did; see `PolicyClient.log_action`."""
        self._ask(
            LogAction,
            observation=written(observation, "log_action"),
            action=written(action, "log_action"),
        )

    def pay(self, reward: Any, info: Any, done: Mapping[str, bool] | None) -> None:
        """Tell rewards; see `PolicyClient.log_returns`."""
        flags = None if done is None else {agent: bool(flag) for agent, flag in done.items()}
        told = {"info": written(info, "log_returns")} if info else {}
        self._ask(LogReturns, reward=written(reward, "log_returns"), done=flags, **told)

    def end(self, observation: Any, truncated: bool) -> None:
        """Tell that it is over; see `PolicyClient.end_episode`."""
        self._ask(EndEpisode, observation=written(observation, "end_episode"), truncated=truncated)

    def _ask(self, kind: type[Any], **fields: Any) -> Any:
        """Return the answer to the next message."""
        seq = self._seq + 1
        answer = self._link.ask(kind(episode_id=self.episode_id, seq=seq, **fields))
        self._seq = seq
        return answer
