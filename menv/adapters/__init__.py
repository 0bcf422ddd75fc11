"""Adapters: every kind of environment becomes a `BaseEnv`, so that one sampler serves all of them.

`adapter` says what an adapter can do, `convert` chooses the one for an environment. `gym` and `multi_agent` step
copies of one environment (`local_envs` creates, resets and restarts them). `vector`, `gym_vector` and `vector_agents`
step many sub-environments at once (`lockstep`), and report joins and ends as columns. `custom` reads a user's own
`BaseEnv`. `external` serves episodes that callers own: they send to `episode_broker`, one `episode_channel` per
episode. `agent_tracker` turns dicts into rows for all dict environments, `validation` checks what environments
return, and `poll_events` holds joins, ends and faults of a poll.
"""
