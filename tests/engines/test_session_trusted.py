"""Sessions of bundles that somebody signed: nothing is loaded that no trusted key vouches for."""

import pytest
from session_rig import Rig
from test_session_source import bundle, opened

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.core.signing import sign
from blockforge.engines.session import Session


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path)


def test_only_what_a_trusted_key_signed_is_loaded(rig, tmp_path):
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    source = bundle(rig)
    keys = []
    for name in ("maker", "other"):
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        key = Ed25519PrivateKey.generate()
        pkcs8 = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        private.write_bytes(key.private_bytes(*pkcs8))
        spki = (pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
        public.write_bytes(key.public_key().public_bytes(*spki))
        keys.append((private, public))
    (maker, maker_public), (_, other_public) = keys
    plan = source.path / "fp32" / "engines" / "e.plan"
    for path in (source, source.path, plan):
        with pytest.raises(ArtefactError, match=r"no manifest\.json\.sig"):
            Session(path, target=rig.target, trusted=[maker_public])
    sign(source.path / "manifest.json", maker)
    for path in (source, source.path, plan):
        opened(rig, path, target=rig.target, trusted=[str(maker_public)])
        with pytest.raises(ArtefactError, match="another key"):
            Session(path, target=rig.target, trusted=[other_public])
        with pytest.raises(UsageError, match="Leave verify on"):
            Session(path, target=rig.target, trusted=[maker_public], verify=False)
    with pytest.raises(UsageError, match="a lone file"):
        Session(source.path / "fp32" / "model.onnx", trusted=[maker_public])
