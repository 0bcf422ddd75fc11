"""Out of one process: environments and samplers that live elsewhere, on this machine or on a cluster."""
