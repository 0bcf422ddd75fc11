"""The `menv` command: trains, evaluates, checks and shows, without a program of one's own. Nothing imports it."""
