"""Where processes of a test can meet."""

import socket


def free_port() -> int:
    """Of the loopback interface."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
