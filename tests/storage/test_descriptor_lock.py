"""The lock on an open file, beside processes of other versions, which lock with filelock."""

import os
from pathlib import Path

from filelock import lock_descriptor, unlock_descriptor

from planwarden.storage.descriptor_lock import try_lock, unlock


def test_the_lock_and_that_of_filelock_exclude_each_other(tmp_path: Path) -> None:
    ours, theirs = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert try_lock(ours) and not lock_descriptor(theirs, blocking=False)
        unlock(ours)
        assert lock_descriptor(theirs, blocking=False) and not try_lock(ours)
        unlock_descriptor(theirs)
        assert try_lock(ours)
    finally:
        os.close(ours)
        os.close(theirs)
