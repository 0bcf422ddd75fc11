"""The loop: environments to rows, rows to policies, answers back, and what happened to batches."""
