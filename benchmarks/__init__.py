"""Measurements: the bare environment loops, our rates beside them, and times from process start to a result."""
