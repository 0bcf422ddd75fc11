"""Transports carry the bodies of messages over TCP, HTTP and WebSocket.

`transport` defines the interface, `server` runs transports in one thread, `access` decides who may connect.
"""
