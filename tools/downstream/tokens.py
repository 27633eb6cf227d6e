"""What a person's login to a downstream server left behind: one file per server in the home, mode 0600.

It holds tokens, so it is read by nothing but the connection to the very address that it was made for, and stands in no
message, log or record. Every process of the home reads it anew when it changes: a refreshed token replaces the old one
for all of them.
"""

import logging
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import AnyUrl, BaseModel, ConfigDict, ValidationError

from planwarden.tools.downstream.config import ServerConfig

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 512 * 1024
Stamp = tuple[int, int, int]


class Login(BaseModel):
    """One login."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)
    form: Literal[1] = 1
    server_url: str
    """The only address that the tokens go to."""
    client: OAuthClientInformationFull | None = None
    """As which client of the authorization server; registered by us."""
    tokens: OAuthToken | None = None
    expires_at: float | None = None
    """Seconds since 1970; None when the server did not say."""
    authorization_server: str | None = None
    metadata: OAuthMetadata | None = None
    """Of the authorization server; a later process refreshes there without asking anybody where that is."""
    resource: ProtectedResourceMetadata | None = None
    challenge: str | None = None
    """`WWW-Authenticate` of an answer that wanted further rights; the next login asks for them."""


class LoginFile:
    """Where the login to one server is kept."""

    def __init__(self, path: Path, config: ServerConfig) -> None:
        self._path = path
        self._url = config.url or ""

    def stamp(self) -> Stamp | None:
        """Another one after every change; None when there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def load(self) -> Login:
        """An empty one when there is none, or none for this address."""
        nothing = Login(server_url=self._url)
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            found = Login.model_validate_json(data) if len(data) <= MAX_FILE_BYTES else nothing
        except (OSError, ValidationError):
            return nothing
        return found if found.server_url == self._url else nothing

    def save(self, login: Login) -> None:
        """Replace the file as a whole. Raises `OSError`."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made with mode 0600.
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(login.model_dump_json(exclude_none=True))
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def forget(self) -> bool:
        """Delete it; False when there was none."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True


class Keeper:
    """The SDK's token storage over one file, in which a provider finds itself again after a restart."""

    def __init__(
        self, file: LoginFile, config: ServerConfig, *, anew: bool = False, redirect_uri: str | None = None
    ) -> None:
        """With `anew` the stored tokens are not used; they stay where they are until there are others.

        A client that was registered with another `redirect_uri` is not used again.
        """
        self._file = file
        self._config = config
        self._anew = anew
        self._redirect_uri = redirect_uri
        self.login = file.load()
        self._provider: OAuthClientProvider | None = None

    def serve(self, provider: OAuthClientProvider) -> None:
        """Tell the provider what the SDK does not store: when the token ends, and who gives a new one."""
        self._provider = provider
        if self._anew:
            return
        context, login = provider.context, self.login
        context.token_expiry_time = login.expires_at
        context.auth_server_url = login.authorization_server
        context.oauth_metadata = login.metadata
        context.protected_resource_metadata = login.resource

    async def get_tokens(self) -> OAuthToken | None:
        return None if self._anew else self.login.tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        settings = self._config.settings.login
        if settings.client_id is None:
            known = self.login.client
            uris = [str(uri) for uri in (known.redirect_uris or [])] if known is not None else []
            return known if self._redirect_uri is None or self._redirect_uri in uris else None
        secret = self._config.client_secret
        return OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=secret,
            redirect_uris=None if self._redirect_uri is None else [AnyUrl(self._redirect_uri)],
            token_endpoint_auth_method="none" if secret is None else settings.client_auth,
        )

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._anew = False
        found: dict[str, object] = {"tokens": tokens, "challenge": None}
        found["expires_at"] = None if tokens.expires_in is None else time.time() + tokens.expires_in
        if self._provider is not None:
            context = self._provider.context
            found["authorization_server"] = context.auth_server_url
            found["metadata"] = context.oauth_metadata
            found["resource"] = context.protected_resource_metadata
        self._keep(found)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        # Kept with the tokens that it will be given; until then the login that there was is the one that counts.
        self.login = self.login.model_copy(update={"client": client_info})

    def wants(self, challenge: str) -> None:
        """Remember what further rights the server wants."""
        self._keep({"challenge": challenge})

    def _keep(self, changed: dict[str, object]) -> None:
        self.login = self.login.model_copy(update=changed)
        self._file.save(self.login)


def redirect_port(login: Login) -> int | None:
    """The port that the registered client is sent back to; a server may insist on it."""
    uris: list[AnyUrl] = (login.client.redirect_uris or []) if login.client is not None else []
    return uris[0].port if uris else None
