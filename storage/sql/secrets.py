"""Sealed secrets in a SQL database, and locks on their names.

A lock is a row with an end, because neither a transaction nor a connection may stay open while a server on the internet
is asked for a token. A process that is killed holds its lock until that end.
"""

from planwarden.storage.sql.database import Database, SqlTransaction


class SqlSecrets:
    """Implements `SealedRows`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, name: str) -> bytes | None:
        found = await self._database.fetch("find_secret", (name,))
        return bytes(found[0][0]) if found else None

    async def create(self, name: str, sealed: bytes) -> bytes:
        def insert(transaction: SqlTransaction) -> bytes:
            transaction.execute("add_secret", (name, sealed))
            [row] = transaction.execute("find_secret", (name,)).fetchall()
            return bytes(row[0])

        return await self._database.write(insert)

    async def replace(self, name: str, sealed: bytes) -> None:
        await self._database.write(lambda transaction: transaction.execute("replace_secret", (name, sealed)).rowcount)

    async def delete(self, name: str) -> bool:
        return bool(
            await self._database.write(lambda transaction: transaction.execute("delete_secret", (name,)).rowcount)
        )

    async def version(self, name: str) -> str | None:
        found = await self._database.fetch("secret_version", (name,))
        return str(found[0][0]) if found else None

    async def lock(self, name: str, holder: str, lease_s: float) -> bool:
        parameters = (name, holder, lease_s)
        return bool(
            await self._database.write(lambda transaction: transaction.execute("lock_secret", parameters).rowcount)
        )

    async def unlock(self, name: str, holder: str) -> None:
        await self._database.write(lambda transaction: transaction.execute("unlock_secret", (name, holder)).rowcount)
