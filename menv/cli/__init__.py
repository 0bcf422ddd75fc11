"""The `menv` command: train, evaluate, show, check and verify from a shell. `main` reads the command line."""
