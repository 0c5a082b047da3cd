"""Where a service on this machine listens, and where it is reached."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host of this machine and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        """HOST:PORT, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def target(self) -> str:
        """HOST:PORT for a client on this machine: an address that stands for all interfaces is reached by loopback."""
        with contextlib.suppress(ValueError):  # names are no IP addresses
            ip = ipaddress.ip_address(self.host)
            if ip.is_unspecified:
                return str(Address(host=LOOPBACK if ip.version == 4 else "::1", port=self.port))
        return str(self)

    @property
    def flags(self) -> tuple[str, str]:
        """What makes a service listen there."""
        return f"--host={self.host}", f"--port={self.port}"
