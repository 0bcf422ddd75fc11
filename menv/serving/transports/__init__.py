"""Transports carry the bodies of messages over TCP and HTTP.

`transport` defines the interface, `server` runs transports in one thread, `access` decides who may connect.
"""
