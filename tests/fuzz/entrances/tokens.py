"""Access tokens of an issuer: changed headers, claims and signatures, and key sets that nobody should trust."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from planwarden.server.auth.oauth import IssuerCheck
from planwarden.server.auth.settings import HttpSettings
from planwarden.storage.clock import SystemClock
from tests.fuzz.entrance import Wrong
from tests.fuzz.mutation import Mutator
from tests.support.issuer import AUDIENCE, Issuer, join_token, split_token

TOKEN_TOKENS = (b".", b"=", b"-", b"_", b"\xff", b"e30", b"A" * 9_000)


class Tokens:
    """An issuer and a check of its tokens; a changed token must not pass."""

    async def send(self, mutator: Mutator) -> str:
        issuer = Issuer(algorithm=mutator.pick(("ES256", "EdDSA")))
        token = issuer.token()
        header, claims, signature = split_token(token)
        sent = token
        if mutator.chance(0.4):
            sent = mutator.damage(token.encode(), TOKEN_TOKENS).decode("utf-8", "replace")
        elif mutator.chance(0.8):
            sent = _join(mutator.mutate(header), mutator.mutate(claims), signature)
        if mutator.chance(0.4):
            document: Any = mutator.mutate({"keys": [issuer.jwk(), issuer.jwk("k2")]})
            issuer.answer = httpx2.Response(200, content=mutator.encode(document))
        mutator.sent = (sent, issuer.answer and issuer.answer.content)
        settings = HttpSettings(issuer=issuer.url, audience=AUDIENCE, jwks_url="https://idp.example.com/keys")
        async with issuer.client() as client:
            found = await IssuerCheck(settings, AUDIENCE, SystemClock(), client).verify_token(sent)
        if found is not None and split_token(sent)[:2] != (header, claims):
            raise Wrong("a changed token was accepted")
        return "refused" if found is None else "accepted"

    async def check_alive(self) -> None:
        issuer = Issuer(algorithm="ES256")
        async with issuer.client() as client:
            settings = HttpSettings(issuer=issuer.url, audience=AUDIENCE)
            check = IssuerCheck(settings, AUDIENCE, SystemClock(), client)
            if await check.verify_token(issuer.token()) is None:
                raise Wrong("a good token was refused")


def _join(header: Any, claims: Any, signature: str) -> str:
    try:
        return join_token(header, claims, signature)
    except (UnicodeEncodeError, ValueError):
        return f"{json.dumps(header)}.{json.dumps(claims)}.{signature}"


@asynccontextmanager
async def open_tokens(home: Path) -> AsyncGenerator[Tokens]:
    yield Tokens()
