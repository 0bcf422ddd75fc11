"""Recorded episodes: written by `record` and `RecordCallbacks`, read by `config["input"]`.

A recording holds whole episodes as the environment and the policies saw them, before connectors, in Parquet.
`episodes.py` says what an episode is and which columns it has, `files.py` reads and writes these. Nothing in a file is
executed, imported or unpickled.
"""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.offline.episodes import RecordedEpisode as RecordedEpisode
    from menv.offline.episodes import RecordedTrajectory as RecordedTrajectory
    from menv.offline.files import read_episodes as read_episodes
    from menv.offline.files import write_episodes as write_episodes
    from menv.offline.files import write_minari as write_minari
    from menv.offline.recording import RecordCallbacks as RecordCallbacks
    from menv.offline.recording import record as record

__all__, __getattr__, __dir__ = lazy_names(__name__)
