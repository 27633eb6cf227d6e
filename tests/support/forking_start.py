"""A process whose work another one does, forked by the server at a socket: `forking_start.py SOCKET WORD...`.

It has the streams, the environment, the folder and the end of that process. Signals to it are passed on, and when it is
killed, so is the other one. It imports little, because that is what it is for.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(sys.argv[1])
        order = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [order], [0, 1, 2])
        child = int(server.recv(64))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: os.kill(child, received))
        # Whoever reads what the other process writes must see that it has ended.
        for stream in (0, 1, 2):
            os.close(stream)
        code = int(server.recv(64) or b"1")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
