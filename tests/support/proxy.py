"""Proxies between a client and a server on a socket, which lose or hold back bytes on purpose."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class LosingProxy:
    """Forwards everything; breaks the connection after a request for which `loses` is true was carried out.

    The server has done what it was asked for, and the client never learns that.
    """

    def __init__(self, server: Path, folder: Path, loses: Callable[[bytes], bool]) -> None:
        self.path = folder / server.name
        self.lost = 0
        self._server = server
        self._loses = loses
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Requests on this thread, answers on another one; a lost answer is waited for first, so that it is done."""
        is_losing, server = threading.Event(), socket.socket(socket.AF_UNIX)
        self._open.wait()

        def answer() -> None:
            with suppress(OSError):
                while data := server.recv(65536):
                    if is_losing.is_set():
                        self.lost += 1
                        break
                    self._open.wait()
                    client.sendall(data)
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        with client, server, suppress(OSError):
            server.connect(str(self._server))
            answering = threading.Thread(target=answer, daemon=True)
            answering.start()
            with suppress(OSError):
                while data := client.recv(65536):
                    if self._loses(data):
                        is_losing.set()
                    self._open.wait()
                    server.sendall(data)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            answering.join()

    def close(self) -> None:
        """Accept no more; what was held is let go."""
        self._listener.close()
        self._open.set()
        os.unlink(self.path)


class HoldingProxy(LosingProxy):
    """Loses nothing. While it holds, it accepts connections and forwards nothing."""

    def __init__(self, server: Path, folder: Path) -> None:
        super().__init__(server, folder, lambda data: False)

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()
