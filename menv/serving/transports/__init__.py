"""Transports: how the bytes of clients arrive, over TCP, HTTP and WebSocket."""
