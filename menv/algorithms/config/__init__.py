"""Settings of algorithms: checked dataclasses that classic dicts, keywords and RLlib's builder chain all build.

Begin with `algorithm_config`; each algorithm adds its settings next to its class. `read_config` resolves
dicts and overrides, `stored_config` writes settings to checkpoints.
"""
