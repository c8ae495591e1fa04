"""Who made a bundle: an Ed25519 signature of its manifest, which holds the hash of every other file.

manifest.json + private key -> manifest.json.sig    64 raw bytes over the manifest's own, which OpenSSL reads too:
    openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in manifest.json -sigfile manifest.json.sig

Source: RFC 8032 (Ed25519); keys as PEM, PKCS #8 and SubjectPublicKeyInfo (RFC 8410).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .errors import ArtefactError, UnavailableError, UsageError
from .whole_file import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE = "manifest.json.sig"
BYTES = 64
MAKE_KEY = "openssl genpkey -algorithm ed25519 -out private.pem"
MAKE_PUBLIC = "openssl pkey -in private.pem -pubout -out public.pem"


def sign(manifest: Path, key: Path) -> Path:
    """Sign a manifest's bytes with the private key in a PEM file; returns the signature's path, beside it.

    An older signature is replaced in one step. Raises UsageError for a file that holds no such key, and
    UnavailableError without the `cryptography` package.
    """
    signature = _private_key(key).sign(manifest.read_bytes())
    target = manifest.with_name(SIGNATURE)
    try:
        write_whole(target, signature)
    except OSError as error:
        raise UsageError(
            f"signature of {manifest}",
            found=f"cannot write there: {error.strerror}",
            fix="Sign where the folder may be written",
        ) from None
    return target


def check_signature(manifest: Path, content: bytes, trusted: Sequence[Path]) -> Path:
    """The first of the trusted public keys whose owner signed `content`, the manifest's bytes as they were read.

    Raises ArtefactError where there is no signature or none of the keys made it, UsageError for a file that holds no
    public key or an empty list, UnavailableError without the `cryptography` package.
    """
    from_whom = f"a signature of {manifest} by {', '.join(map(str, trusted)) or 'nobody'}"
    if not trusted:
        raise UsageError(from_whom, found="no key", fix="Name the public keys that are trusted")
    keys = [(path, _public_key(path)) for path in trusted]
    try:
        signature = manifest.with_name(SIGNATURE).read_bytes()
    except OSError:
        raise ArtefactError(
            from_whom,
            found=f"no {SIGNATURE} beside it",
            fix="Sign the bundle: blockforge sign BUNDLE --key private.pem. Whatever changes a bundle drops its signature",
        ) from None
    for path, key in keys:
        if len(signature) == BYTES and _made_by(key, signature, content):
            return path
    raise ArtefactError(
        from_whom,
        found="the signature is of another manifest, or by another key",
        fix="Get the bundle from who made it, or have it signed again",
    )


def _made_by(key: "Ed25519PublicKey", signature: bytes, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _private_key(path: Path) -> "Ed25519PrivateKey":
    serialization, ed25519 = _library()
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise UsageError(
            f"signing key {path}",
            found="it is locked by a password",
            fix=f"Give a key without one: openssl pkey -in {path.name} -out private.pem",
        ) from None
    except ValueError:
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(
            f"signing key {path}", found=_kind(key, "private"), fix=f"Make one: {MAKE_KEY}"
        )
    return cast("Ed25519PrivateKey", key)


def _public_key(path: Path) -> "Ed25519PublicKey":
    serialization, ed25519 = _library()
    content = _read(path)
    try:
        key = serialization.load_pem_public_key(content)
    except ValueError:
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError(
            f"trusted key {path}", found=_kind(key, "public"), fix=f"Make one: {MAKE_PUBLIC}"
        )
    return cast("Ed25519PublicKey", key)


def _kind(key: object, wanted: str) -> str:
    return f"no PEM of a {wanted} key" if key is None else f"{type(key).__name__}, not Ed25519"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"key {path}", found=error.strerror or "unreadable", fix="Name a PEM file"
        ) from None


def _library() -> tuple[Any, Any]:
    """Two modules of a package that may be missing: serialization, ed25519."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UnavailableError(
            "an Ed25519 signature",
            found="the package cryptography is not installed",
            fix="pip install 'blockforge[sign]'",
        ) from None
    return serialization, ed25519
