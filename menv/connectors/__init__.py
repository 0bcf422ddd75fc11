"""Connectors: the only place where data changes shape between an environment and a policy."""
