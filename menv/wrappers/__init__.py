"""Wrappers: environments of other libraries as environments of menv, agent groups, time limits and recording.

Each name is imported on first use, so that a wrapper's library is needed only where the wrapper is used.
"""

from menv._lazy_names import refuse_root_import

refuse_root_import(__name__)

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.wrappers.common import LastActions as LastActions
    from menv.wrappers.common import TimeLimit as TimeLimit
    from menv.wrappers.group_agents import GroupAgentsWrapper as GroupAgentsWrapper
    from menv.wrappers.jaxmarl_env import JaxMarlEnv as JaxMarlEnv
    from menv.wrappers.jumanji_env import JumanjiEnv as JumanjiEnv
    from menv.wrappers.legacy_gym import LegacyGym as LegacyGym
    from menv.wrappers.multi_agent_gym import MultiAgentGym as MultiAgentGym
    from menv.wrappers.open_spiel_env import OpenSpielEnv as OpenSpielEnv
    from menv.wrappers.pettingzoo_env import ParallelPettingZooEnv as ParallelPettingZooEnv
    from menv.wrappers.pettingzoo_env import PettingZooEnv as PettingZooEnv
    from menv.wrappers.pgx_env import PgxEnv as PgxEnv
    from menv.wrappers.record_episodes import RecordEpisodes as RecordEpisodes
    from menv.wrappers.vmas_env import VmasEnv as VmasEnv

__all__, __getattr__, __dir__ = lazy_names(__name__)
