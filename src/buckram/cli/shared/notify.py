"""Notification of systemd that a service is ready, for units with `Type=notify`."""

from __future__ import annotations

import contextlib
import os
import socket

NOTIFY_VARIABLE = "NOTIFY_SOCKET"


def notify_ready() -> None:
    """Send READY=1 to the socket named by the environment; does nothing without one, or if it cannot be reached."""
    name = os.environ.get(NOTIFY_VARIABLE, "")
    if not name.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.sendto(b"READY=1", f"\0{name[1:]}" if name.startswith("@") else name)
