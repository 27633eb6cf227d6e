"""A message that one browser can open, and the key that says who sent it."""

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.server.notifications.web_push import (
    CONTACT,
    KEY_NAME,
    MAX_MESSAGE_BYTES,
    RECORD_BYTES,
    build_headers,
    encode_public_key,
    load_push_key,
    read_browser_keys,
    seal,
    seal_record,
)
from planwarden.storage.secret_files import SecretFiles
from tests.requirements import requirement
from tests.support.push_service import BrowserDouble, decode, encode, verify_sender

pytestmark = pytest.mark.anyio

# https://www.rfc-editor.org/rfc/rfc8291#section-5 and appendix A
TEXT = b"When I grow up, I want to be a watermelon"
SENDER = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
RECEIVER = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
RECEIVER_PUBLIC = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
RECORD = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl"
    "7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)


def derive(text: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(decode(text), "big"), ec.SECP256R1())


@requirement("push:sealed")
def test_a_record_is_the_one_of_the_standard() -> None:
    keys = read_browser_keys(RECEIVER_PUBLIC, AUTH)
    assert encode(seal_record(TEXT, b"", keys, derive(SENDER), decode(SALT))) == RECORD
    assert BrowserDouble(derive(RECEIVER), decode(AUTH)).open(decode(RECORD)) == TEXT


@requirement("push:sealed")
def test_messages_are_padded_fit_into_a_record_and_are_never_sealed_alike() -> None:
    browser = BrowserDouble()
    keys = read_browser_keys(browser.p256dh, encode(browser.auth))
    texts = (b"", b"a", b"a" * 900, "Łódź".encode() * 200, b"a" * MAX_MESSAGE_BYTES)
    sealed = [seal(text, keys) for text in texts]
    assert [browser.open(body) for body in sealed] == list(texts)
    assert len(sealed[0]) == len(sealed[1]) == len(sealed[2]) < len(sealed[3]) < len(sealed[4]) <= RECORD_BYTES
    assert seal(b"a", keys)[:16] != sealed[1][:16]
    with pytest.raises(InvalidArguments, match="the limit is"):
        seal(b"a" * (MAX_MESSAGE_BYTES + 1), keys)


@requirement("push:hostile-address")
@pytest.mark.parametrize(
    ("p256dh", "auth"),
    [
        ("", AUTH),
        (RECEIVER_PUBLIC, ""),
        (RECEIVER_PUBLIC[:-4], AUTH),
        (RECEIVER_PUBLIC, AUTH * 2),
        (encode(b"\x04" + bytes(64)), AUTH),
        (encode(b"\x02" + decode(RECEIVER_PUBLIC)[1:]), AUTH),
        ("!" * 87, AUTH),
        ("\u0141" * 87, AUTH),
        ("A" * 1_000_000, AUTH),
    ],
)
def test_keys_that_no_browser_has_are_refused(p256dh: str, auth: str) -> None:
    with pytest.raises(InvalidArguments, match="not the keys of a browser"):
        read_browser_keys(p256dh, auth)


@requirement("push:key")
async def test_the_first_process_makes_the_key_of_a_home_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    first = await load_push_key(SecretFiles(tmp_path))
    assert await load_push_key(SecretFiles(tmp_path)) == first != await load_push_key(SecretFiles(tmp_path / "other"))
    assert stat.S_IMODE((tmp_path / KEY_NAME).stat().st_mode) == 0o600
    headers = build_headers(first, "https://push.example:8443/send/x?y=1", "s1", 1_000.0)
    claims, key = verify_sender(headers["authorization"], "https://push.example:8443", 1_000.0)
    assert claims["sub"] == CONTACT and key == encode_public_key(first)
    assert headers["topic"] != build_headers(first, "https://push.example/", "s2", 0.0)["topic"]
    assert len(headers["topic"]) == 32


def make_other_key() -> bytes:
    return ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@requirement("push:key")
@pytest.mark.parametrize("content", [b"", b"no key\n", b"-----BEGIN PRIVATE KEY-----\n", make_other_key()])
async def test_a_damaged_key_is_named_and_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / KEY_NAME
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"push\.key.* is not a key of planwarden; delete it"):
        await load_push_key(SecretFiles(tmp_path))
    assert path.read_bytes() == content
