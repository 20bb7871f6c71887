"""Files of keys and certificates that cannot be used are named in a sentence."""

import pytest

pytest.importorskip("cryptography", reason="cryptography comes with flwr, which is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fedstale.core import BadInput
from fedstale.flower.federation.ops import keys


def pem(key, password=None):
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, how)


def test_a_key_that_was_made_can_be_read(tmp_path):
    known = keys.make_node_key(tmp_path / "key")
    private = keys.private_key(tmp_path / "key")
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert (keys.public_pem(tmp_path / "key.pub"), keys.public_hash(tmp_path / "key.pub")) == (public, known)


@pytest.mark.parametrize("read", [keys.private_key, keys.public_pem, keys.certificate])
@pytest.mark.parametrize("content", [b"", b"no", b"\xff\x00", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_named(tmp_path, read, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadInput, match=r"file must hold .* and does not"):
        read(tmp_path / "file")


def test_keys_of_other_kinds_are_refused(tmp_path):
    pytest.importorskip("bcrypt", reason="bcrypt is needed for passphrases")
    for key in (
        pem(rsa.generate_private_key(65537, 2048)),
        pem(ec.generate_private_key(ec.SECP384R1()), b"secret"),
    ):
        (tmp_path / "key").write_bytes(key)
        with pytest.raises(BadInput, match="must hold an EC private key in OpenSSH format, without a passphrase"):
            keys.private_key(tmp_path / "key")


def test_a_host_with_a_long_name_is_certified(tmp_path):
    name = f"{'a' * 60}.{'b' * 60}.example.org"
    keys.make_authority(tmp_path, [name])
    made = x509.load_pem_x509_certificate(keys.certificate(tmp_path / "server.pem"))
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name]
