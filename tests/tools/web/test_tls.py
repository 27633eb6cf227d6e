"""A connection to a checked address still verifies the name."""

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from planwarden.tools.web.extract import web_extract_tool
from tests.tools.web.support import NameTable, build_page, build_reply, call_tool, read_refusal, serve


@dataclass(frozen=True)
class Certificate:
    server: ssl.SSLContext
    trusting: ssl.SSLContext
    asked_names: list[str]
    """Server names that clients asked for (SNI)."""


def build_certificate(name: str, directory: Path) -> Certificate:
    """A self-signed certificate for `name`, a server that shows it, and a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = directory / "chain.pem"
    chain.write_bytes(private + certificate)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(chain)
    asked_names: list[str] = []
    server.sni_callback = lambda _socket, asked, _context: asked_names.append(asked)
    return Certificate(server, ssl.create_default_context(cadata=certificate.decode()), asked_names)


@pytest.mark.anyio
async def test_https_asks_for_and_verifies_the_name_although_it_connects_to_an_address(tmp_path: Path) -> None:
    certificate = build_certificate("a.test", tmp_path)
    async with serve({"/": build_reply(build_page("over TLS"))}, certificate.server) as site:
        access = replace(site.named(NameTable(a_test=[["127.0.0.1"]])), tls=certificate.trusting)
        result = await call_tool(web_extract_tool(access), url=f"https://a.test:{site.port}/")
    assert result == {"url": f"https://a.test:{site.port}/", "title": "A title", "text": "over TLS", "truncated": False}
    assert certificate.asked_names == ["a.test"]
    assert site.received[0].headers["host"] == f"a.test:{site.port}"


@pytest.mark.parametrize("host", ["b.test", "127.0.0.1"])
@pytest.mark.anyio
async def test_certificate_for_another_name_is_refused(host: str, tmp_path: Path) -> None:
    certificate = build_certificate("a.test", tmp_path)
    async with serve({"/": build_reply(build_page("impostor"))}, certificate.server) as site:
        access = replace(site.named(NameTable(b_test=[["127.0.0.1"]])), tls=certificate.trusting)
        message = await read_refusal(web_extract_tool(access), url=f"https://{host}:{site.port}/")
    assert "no valid TLS certificate" in message
    assert site.received == []
