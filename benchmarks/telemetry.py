"""What observation costs: the job of `workload.py` with and without OpenTelemetry.

Run as `python -m benchmarks.telemetry`. Both sides are planwarden in processes of their own that take turns; one sends
spans and metrics to a collector, a third process that accepts everything and keeps nothing. The program prints one line
of JSON: medians in milliseconds per execution and their ratios, of elapsed time and of processor time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from platformdirs import user_cache_path

from benchmarks.measure import SEQUENTIAL, Child, Spec
from benchmarks.side import IN_FLIGHT

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ROUNDS = 7
TIMES = 5


class _Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


def collect() -> None:
    """Accepts everything on a free port, which it prints, until it is killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def _collecting() -> Generator[str]:
    command = [sys.executable, "-m", "benchmarks.telemetry", "--collect"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _child(name: str, folder: Path, endpoint: str | None) -> Child:
    """Starts a side, which gets its environment variables from this process."""
    os.environ.pop(ENDPOINT, None)
    if endpoint is not None:
        os.environ[ENDPOINT] = endpoint
    try:
        return Child(Spec(name, "planwarden_side", "planwarden", "planwarden.db", times=TIMES), folder / name)
    finally:
        os.environ.pop(ENDPOINT, None)


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Medians and ratios."""
    with _collecting() as endpoint, _child("off", folder, None) as off, _child("on", folder, endpoint) as on:
        for turn in range(-1, rounds):
            for child in (off, on) if turn % 2 else (on, off):
                for do, count in (("sequential", SEQUENTIAL * TIMES), ("concurrent", IN_FLIGHT * TIMES)):
                    took = child.ask(do, count)
                    if turn >= 0:
                        getattr(child.figures, do).append(took["seconds"] / count)
                        getattr(child.figures, f"{do}_cpu").append(took["cpu"] / count)
    found: dict[str, float] = {}
    for figure in ("sequential", "concurrent", "sequential_cpu", "concurrent_cpu"):
        without, observed = (median(getattr(child.figures, figure)) for child in (off, on))
        found |= {f"{figure}_off_ms": without * 1e3, f"{figure}_on_ms": observed * 1e3}
        found[f"{figure}_ratio"] = observed / without
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--collect", action="store_true", help="be the collector")
    chosen = parser.parse_args()
    if chosen.collect:
        collect()
        return
    cache = user_cache_path("planwarden")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="bench-") as folder:
        print(json.dumps(measure(Path(folder), chosen.rounds)))


if __name__ == "__main__":
    main()
