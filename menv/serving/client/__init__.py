"""The client of a policy server. Begin with `policy_client.py`. Nothing here imports the server."""
