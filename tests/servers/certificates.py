"""An authority of our own, and the certificate it gave to a server on this machine."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path

from servers.programs import program

REQUEST = """
[req]
distinguished_name = subject
[subject]
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
[server]
basicConstraints = CA:false
subjectAltName = IP:127.0.0.1, DNS:localhost
[client]
basicConstraints = CA:false
"""
"""A configuration of our own: those of machines differ."""


class Certificates:
    """Made anew in *folder*, valid for two days: an authority, a server's certificate, a client's."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._openssl = folder, program("openssl")
        (folder / "request").write_text(REQUEST, encoding="utf-8")
        self.authority = self._make("authority")
        self.server = self._make("server")
        self.client = self._make("client")

    def key(self, certificate: Path) -> Path:
        """The private key that belongs to a certificate."""
        return certificate.with_suffix(".key")

    @property
    def server_config(self) -> list[str]:
        """What a Redis server is told; it asks no certificate of its clients."""
        return [
            "port 0",
            f"tls-cert-file {self.server}",
            f"tls-key-file {self.key(self.server)}",
            f"tls-ca-cert-file {self.authority}",
            "tls-auth-clients optional",
        ]

    def client_context(self) -> ssl.SSLContext:
        """What a client needs that trusts this authority only."""
        return ssl.create_default_context(cafile=str(self.authority))

    def _make(self, role: str) -> Path:
        certificate = self._folder / f"{role}.crt"
        issuer = [] if role == "authority" else ["-CA", str(self.authority), "-CAkey", str(self.key(self.authority))]
        command = ["req", "-x509", "-config", "request", "-extensions", role, "-subj", f"/CN=dibs tests {role}"]
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        files = ["-out", str(certificate), "-keyout", str(self.key(certificate))]
        subprocess.run(
            [self._openssl.path, *command, *key, *files, *issuer],
            cwd=self._folder,
            env={**os.environ, **self._openssl.environment},
            check=True,
            capture_output=True,
        )
        return certificate
