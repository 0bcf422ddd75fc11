"""What carries bodies between peers and conversations: TCP, HTTP, WebSocket, their loop, and who is let in."""
