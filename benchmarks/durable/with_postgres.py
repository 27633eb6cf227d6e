"""Start the project's own PostgreSQL, with its commits on disk, and run `run.py` in another environment beside it.

`python -m benchmarks.durable.with_postgres PYTHON`; elsewhere give `run.py` the URL of any server.
"""

import subprocess
import sys
from pathlib import Path

from tests.support.postgres import Server

if __name__ == "__main__":
    server = Server(fsync="on", shared_buffers="128MB")
    try:
        url = f"postgresql://postgres@/postgres?host={server.folder}&port=5432"
        command = [sys.argv[1], str(Path(__file__).with_name("run.py")), url]
        sys.exit(subprocess.run(command, check=False).returncode)
    finally:
        server.end()
