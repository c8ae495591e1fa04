"""Signatures against OpenSSL's own, in both directions; what must not pass, does not."""

import shutil
import subprocess

import pytest

from blockforge.core import signing
from blockforge.core.bundle import Bundle, seal, write_bundle
from blockforge.core.errors import ArtefactError, UnavailableError, UsageError
from blockforge.core.manifest import Manifest

pytest.importorskip("cryptography")
openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command here")


def run(*words, cwd):
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


def write_keys(folder, name="a", kind=None):
    """A pair of keys as PEM files (private, public), made by the library."""
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = kind or ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    pkcs8 = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    private.write_bytes(key.private_bytes(*pkcs8))
    spki = (pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    public.write_bytes(key.public_key().public_bytes(*spki))
    return private, public


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "bundle"
    with write_bundle(path) as folder:
        (folder / "golden.safetensors").write_bytes(b"numbers")
        seal(
            folder,
            Manifest(name="x", created="2026-01-01T00:00:00Z", recipe={}, tools={}, variants=()),
        )
    return Bundle.open(path)


def test_what_was_signed_verifies_and_keeps_the_bundle_one(bundle, tmp_path):
    private, public = write_keys(tmp_path)
    path = signing.sign(bundle.path / "manifest.json", private)
    assert path.read_bytes() and len(path.read_bytes()) == 64
    bundle.verify([public])
    assert bundle.strangers() == []
    _, other = write_keys(tmp_path, "b")
    bundle.verify([other, public])  # one of them is enough
    with pytest.raises(ArtefactError, match=r"b\.pub\.pem.*another key"):
        bundle.verify([other])


@openssl
def test_openssl_reads_ours_and_we_read_openssls(bundle, tmp_path):
    made = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", "private.pem"]
    assert signing.MAKE_KEY.split() == made
    assert run(*made, cwd=tmp_path).returncode == 0
    assert run(*signing.MAKE_PUBLIC.split(), cwd=tmp_path).returncode == 0
    manifest = bundle.path / "manifest.json"
    signature = signing.sign(manifest, tmp_path / "private.pem")
    check = [
        *["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "public.pem", "-rawin", "-in"],
        str(manifest), "-sigfile", str(signature),
    ]  # fmt: skip
    assert run(*check, cwd=tmp_path).returncode == 0
    signature.unlink()
    write = f"openssl pkeyutl -sign -inkey private.pem -rawin -in {manifest} -out {signature}"
    assert run(*write.split(), cwd=tmp_path).returncode == 0
    bundle.verify([tmp_path / "public.pem"])


def test_whatever_changes_the_manifest_or_a_file_is_found(bundle, tmp_path):
    private, public = write_keys(tmp_path)
    manifest = bundle.path / "manifest.json"
    with pytest.raises(ArtefactError, match=r"no manifest\.json\.sig"):
        bundle.verify([public])
    signature = signing.sign(manifest, private)
    (bundle.path / "golden.safetensors").write_bytes(b"Numbers")
    with pytest.raises(ArtefactError, match="SHA-256"):
        bundle.verify([public])
    # Somebody who fixes the hash, too, cannot sign.
    seal(bundle.path, bundle.manifest.model_copy(update={"files": {}}))
    forged = Bundle.open(bundle.path)
    forged.verify()
    with pytest.raises(ArtefactError, match="another manifest"):
        forged.verify([public])
    # Swapped between opening and verifying: the signature fits the file, not what was opened.
    signing.sign(manifest, private)
    forged.verify([public])
    with pytest.raises(ArtefactError, match="replaced after it was opened"):
        bundle.verify([public])
    signature.write_bytes(signature.read_bytes()[:63])
    with pytest.raises(ArtefactError, match="another manifest"):
        forged.verify([public])


def test_a_file_that_nobody_signed_is_found(bundle, tmp_path, blockforge):
    """A module beside the scripts of polygraphy/ would be imported by them."""
    private, public = write_keys(tmp_path)
    signing.sign(bundle.path / "manifest.json", private)
    (bundle.path / "polygraphy").mkdir()
    bundle.verify([public])  # an empty folder holds nothing
    (bundle.path / "polygraphy" / "json.py").write_text("print('planted')")
    bundle.verify()
    with pytest.raises(ArtefactError, match=r"also holds polygraphy/json\.py"):
        bundle.verify([public])
    assert blockforge("verify", bundle.path).returncode == 5
    assert blockforge("verify", tmp_path / "nowhere").returncode == 2


def test_a_changed_bundle_has_lost_its_signature(bundle, tmp_path, caplog):
    private, public = write_keys(tmp_path)
    signing.sign(bundle.path / "manifest.json", private)
    with write_bundle(bundle.path) as folder:
        (folder / "golden.safetensors").write_bytes(b"others")
        seal(folder, bundle.manifest.model_copy(update={"files": {}}))
    assert "lost its signature" in caplog.text
    with pytest.raises(ArtefactError, match="drops its signature"):
        Bundle.open(bundle.path).verify([public])


def test_keys_that_are_none(bundle, tmp_path, monkeypatch):
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public = write_keys(tmp_path)
    p256, p256_public = write_keys(tmp_path, "p256", ec.generate_private_key(ec.SECP256R1()))
    manifest = bundle.path / "manifest.json"
    for key, found in (
        (p256, "ECPrivateKey, not Ed25519"),
        (public, "no PEM of a private key"),
        (tmp_path / "nowhere.pem", "No such file"),
    ):
        with pytest.raises(UsageError, match=found):
            signing.sign(manifest, key)
    signing.sign(manifest, private)
    for key, found in ((p256_public, "ECPublicKey"), (private, "no PEM of a public key")):
        with pytest.raises(UsageError, match=found):
            bundle.verify([key])
    with pytest.raises(UsageError, match="no key"):
        signing.check_signature(manifest, manifest.read_bytes(), [])
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(UnavailableError, match=r"blockforge\[sign\]"):
        bundle.verify([public])


def test_the_commands(bundle, tmp_path, blockforge):
    private, public = write_keys(tmp_path)
    done = blockforge("verify", bundle.path)
    assert done.returncode == 0 and "1 files as the manifest says; not signed" in done.stdout
    assert blockforge("verify", bundle.path, "--trusted", public).returncode == 5
    assert blockforge("sign", bundle.path, "--key", private).returncode == 0
    done = blockforge("verify", bundle.path, "--trusted", public)
    assert done.returncode == 0 and "signed by a trusted key" in done.stdout
    (bundle.path / "golden.safetensors").write_bytes(b"Numbers")
    assert blockforge("sign", bundle.path, "--key", private).returncode == 5  # never what is broken
