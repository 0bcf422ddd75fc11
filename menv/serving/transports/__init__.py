"""Transports carry the bodies of messages over TCP and HTTP.

`server` defines their interface and runs them in one thread, `access` decides who may connect.
"""
