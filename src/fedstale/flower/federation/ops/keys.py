"""The federation's own certificate authority (CA), the server's certificate, and the clients' keys.

Private keys have mode 600. The CA's key is only needed to issue another server certificate: keep it offline.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedstale.core import BadInput, require
from fedstale.flower.federation.state.roster import key_hash
from fedstale.lab.runs.store import write_secret

YEARS = 5
AUTHORITY = "fedstale federation CA"  # name of the issuer


def make_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.key, ca.pem, server.key and server.pem; the server's certificate is valid for these hosts."""
    ca_key = ec.generate_private_key(ec.SECP384R1())
    ca = (
        _certificate(AUTHORITY, ca_key, is_ca=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write_pair(folder, "ca", ca_key, ca)
    _issue(folder, ca_key, hosts)


def renew(folder: Path) -> None:
    """Write another server.key and server.pem for the same hosts; needs the authority's private key, ca.key."""
    ca = folder / "ca.key"
    require(ca.is_file(), f"there is no {ca}: put it back for as long as a certificate is issued")
    names = _read_certificate(folder / "server.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    key = serialization.load_pem_private_key(ca.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{ca} must hold the EC private key of the federation's authority, and does not")
    _issue(folder, key, [str(name.value) for name in names.value])


def expiry(path: Path) -> datetime.datetime:
    """When a certificate ends."""
    end: datetime.datetime = _read_certificate(path).not_valid_after_utc
    return end


def _issue(folder: Path, ca_key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> None:
    """Write server.key and server.pem, signed by the authority."""
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = (
        _certificate(hosts[0][:64], server_key, is_ca=False)  # as long as the name of a subject may be
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write_pair(folder, "server", server_key, server)


def _write_pair(folder: Path, name: str, key: ec.EllipticCurvePrivateKey, signed: x509.Certificate) -> None:
    _write_private(folder / f"{name}.key", key, serialization.PrivateFormat.PKCS8)
    (folder / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise BadInput(f"{path} must hold a certificate in PEM format, and does not") from None


def make_node_key(path: Path) -> str:
    """Write a client's key pair to `path` and `path`.pub; returns the hash of the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")
    return public_hash(path.with_suffix(".pub"))


def certificate(path: Path) -> bytes:
    """The certificate of an authority, as the file has it."""
    _read_certificate(path)
    return path.read_bytes()


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key, from a file in OpenSSH format."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # another format, a passphrase
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{path} must hold an EC private key in OpenSSH format, without a passphrase, and does not")
    return key


def public_pem(path: Path) -> bytes:
    """A public key in OpenSSH format, encoded as Flower hands it to the server."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        raise BadInput(f"{path} must hold a public key in OpenSSH format, and does not") from None
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def public_hash(path: Path) -> str:
    """The hash of a public key in OpenSSH format, by which the roster names it."""
    return key_hash(public_pem(path))


def _certificate(subject: str, key: ec.EllipticCurvePrivateKey, is_ca: bool) -> x509.CertificateBuilder:
    """A certificate of the federation's CA, to be signed."""
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=not is_ca, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=is_ca, crl_sign=is_ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
