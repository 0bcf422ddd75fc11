"""Whether an environment lives the same lives wherever it is put: one back-end after the other, rows compared."""
