"""A process of its own that answers one suspension through the Python API, runs the rest, and ends.

The runner measures it from the outside, interpreter start and import included.
Run as `python -m benchmarks.cold_resume HOME THREAD SUSPENSION`.
"""

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.planwarden_side import resume_one, warden


async def main(home: Path, thread_id: str, suspension_id: str) -> None:
    """Approve and finish one execution."""
    async with warden(home) as opened:
        await resume_one(opened, thread_id, suspension_id)
    imported = sorted(name for name in ("mcp", "mcp_types", "pydantic_ai", "langgraph") if name in sys.modules)
    print(json.dumps({"imported": imported, "modules": len(sys.modules)}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
