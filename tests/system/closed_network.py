"""A fleet's whole life in a network of its own, in which every packet is seen: what did not Sedge send?

    unshare -rn python -m tests.system.closed_network FOLDER BUNDLE SECONDS

All routes lead to the loopback interface, so whatever a process sends to anybody is seen there. A real
Mosquitto, coordinator and agent train one round, the agent stays on for some seconds, and the device
predicts. The last line of the output is JSON: the packets that neither went to the broker nor came from
it, in hexadecimal. The first is this script's own, to 192.0.2.1, and shows that the watch sees.
"""

import ctypes
import fcntl
import json
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from tools.bench.parts.real_fleet import RealFleet, command, wait_until

RUN = """
strategy = "fedavg"
num_rounds = 1
min_train_devices = 1
min_available_devices = 1
deadline_s = 100
"""
SIOCADDRT, SIOCSIFFLAGS = 0x890B, 0x8914  # linux/sockios.h
IFF_UP, RTF_UP, ETH_P_ALL = 1, 1, 3
ELSEWHERE = ("192.0.2.1", 53)  # TEST-NET-1, RFC 5737


class Route(ctypes.Structure):
    """linux/route.h: struct rtentry."""

    _fields_ = [
        ("pad1", ctypes.c_ulong),
        ("target", ctypes.c_char * 16),
        ("gateway", ctypes.c_char * 16),
        ("mask", ctypes.c_char * 16),
        ("flags", ctypes.c_ushort),
        ("pad2", ctypes.c_short),
        ("pad3", ctypes.c_ulong),
        ("pad4", ctypes.c_void_p),
        ("metric", ctypes.c_short),
        ("device", ctypes.c_char_p),
        ("mtu", ctypes.c_ulong),
        ("window", ctypes.c_ulong),
        ("round_trip", ctypes.c_ushort),
    ]


def lead_everything_home() -> None:
    """Bring the loopback interface up and make it the default route."""
    anywhere = struct.pack("=HH4x8x", socket.AF_INET, 0)
    with socket.socket() as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("=16sH14x", b"lo", IFF_UP))
        route = Route(target=anywhere, mask=anywhere, flags=RTF_UP, device=b"lo")
        fcntl.ioctl(control, SIOCADDRT, bytes(route))


def foreign(packet: bytes, port: int) -> bool:
    """Whether an IP packet is none between this machine and the port: 127.0.0.1, TCP."""
    home = socket.inet_aton("127.0.0.1")
    if packet[0] >> 4 != 4 or packet[12:20] != home + home or packet[9] != socket.IPPROTO_TCP:
        return True
    header = 4 * (packet[0] & 15)
    return port not in struct.unpack("!HH", packet[header : header + 4])


def watch(port: int, found: list[str]) -> None:
    """Collect the foreign packets of this network, until the process ends."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as everything:
        while True:
            packet = everything.recv(65536)
            if foreign(packet, port):
                found.append(packet.hex())


def main(folder: Path, bundle: Path, seconds: float) -> None:
    """Live through it and print what was seen."""
    lead_everything_home()
    found: list[str] = []
    fleet = RealFleet(folder)
    try:
        threading.Thread(target=watch, args=(fleet.port, found), daemon=True).start()
        with socket.socket(type=socket.SOCK_DGRAM) as control:
            wait_until(lambda: bool(control.sendto(b"seen", ELSEWHERE) and found), 30, "the watch")
        fleet.start_cloud()
        fleet.add_device("pi-1", 0)
        fleet.start_agent("pi-1")
        fleet.start_run(bundle, RUN)
        wait_until(fleet.finished, 60, "the run ends")
        time.sleep(seconds)
        assert fleet.stop("pi-1") == 0, fleet.log("pi-1")
        home = folder / "pi-1"
        command("sedge_edge", "-c", f"{home}/edge.toml", "predict", f"{home}/train.npz")
        print(json.dumps(found))
    finally:
        fleet.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
