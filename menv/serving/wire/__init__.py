"""The wire: bytes to messages, messages to arrays that are checked against spaces, and back. It knows no sockets."""
