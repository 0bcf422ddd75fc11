"""Settings: one frozen dataclass a file, and the classic nested dict that means the same."""
