"""The system's exclusive lock on an open file; it ends with the process, or when the file is closed.

On POSIX it is the one call that filelock makes, too, so that both contend with each other. filelock itself would take a
twentieth of the time in which a command starts, for locks on paths that are not used here.
"""

import sys

if sys.platform == "win32":
    from filelock import lock_descriptor, unlock_descriptor

    def try_lock(descriptor: int) -> bool:
        """Returns whether the lock is held now; never waits. Raises `OSError` when the system gives no locks."""
        return lock_descriptor(descriptor, blocking=False)

    def unlock(descriptor: int) -> None:
        """Gives the lock back. Raises `OSError` when the system gives no locks."""
        unlock_descriptor(descriptor)

else:
    import errno
    import fcntl

    # Some file systems report a lock that somebody else holds as EACCES.
    _HELD = (errno.EACCES, errno.EAGAIN)

    def try_lock(descriptor: int) -> bool:
        """Returns whether the lock is held now; never waits. Raises `OSError` when the system gives no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                return False
            raise
        return True

    def unlock(descriptor: int) -> None:
        """Gives the lock back. Raises `OSError` when the system gives no locks."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)
