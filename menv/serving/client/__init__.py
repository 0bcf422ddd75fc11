"""The other side: a policy server as a Python program sees it that plays. Nothing here imports a server."""
