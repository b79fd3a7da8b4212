"""Asks the kernel about paho's sockets: bytes transferred, and whether more can be read."""

import select
import socket
import ssl
import struct
from typing import Any

_TCP_INFO_RECEIVED, _TCP_INFO_SENT = 128, 200


def socket_bytes(sock: Any) -> tuple[int, int]:
    """Return the TCP payload bytes sent and received, from Linux's TCP_INFO; zeros if it is unavailable.

    It reads ``tcpi_bytes_sent`` (kernel 4.19) and ``tcpi_bytes_received`` (4.1) from struct tcp_info.
    """
    if not hasattr(socket, "TCP_INFO"):
        return 0, 0
    try:
        info: bytes = bare(sock).getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0, 0
    if len(info) < _TCP_INFO_SENT + 8:
        return 0, 0
    sent: int = struct.unpack_from("<Q", info, _TCP_INFO_SENT)[0]
    received: int = struct.unpack_from("<Q", info, _TCP_INFO_RECEIVED)[0]
    return sent, received


def bare(sock: Any) -> Any:
    """Return the socket inside paho's websocket, or the socket itself.

    paho's websocket never reads ahead, so the inner socket knows of all unread bytes.
    """
    return getattr(sock, "_socket", sock)


def is_readable(sock: Any) -> bool:
    """Return True if a read would return bytes, from the kernel or already decrypted by TLS."""
    sock = bare(sock)
    if sock is None:
        return False
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    poll = select.poll()  # select() cannot handle descriptors of 1024 and above
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
