"""Serving: environments that call us, over TCP, HTTP and WebSocket. Nothing here imports torch or ray."""
