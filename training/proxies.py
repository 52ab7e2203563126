"""Which proxy an address is asked through, by the variables that libraries share: `http_proxy`, `no_proxy`, …"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from scalestudy.training.redaction import redacted

HERE = ("localhost", "127.0.0.1", "::1", "[::1]")
"""This machine. Libraries write its IPv6 address in two ways."""


def proxy_of(url: str, *, of_all: bool = True) -> str | None:
    """Return the proxy that an address is asked through, without its password; None: it is asked directly.

    of_all: whether who asks goes by `all_proxy` too, as the library `requests` does. Python's own does not.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or (proxies.get("all") if of_all else None)
    return redacted(proxy) if proxy else None


def through(url: str, *, of_all: bool = True) -> str:
    """Return which proxy an address is asked through, to follow it in a message; empty: none. of_all: see proxy_of."""
    proxy = proxy_of(url, of_all=of_all)
    return f", through the proxy {proxy} (no_proxy does not list {urlsplit(url).hostname})" if proxy else ""


def ask_here_directly(url: str = "") -> None:
    """Make this process, and all that it starts, ask this machine without a proxy.

    url: an address whose host may be one more name of this machine.
    """
    if not getproxies().keys() - {"no"}:
        return
    hosts = [*HERE, socket.gethostname()]
    if proxy_of(url) and _is_here(host := urlsplit(url).hostname or ""):
        hosts += [host, f"[{host}]"]
    lower, upper = os.environ.get("no_proxy"), os.environ.get("NO_PROXY")  # each library reads one first, or alone
    os.environ["no_proxy"] = _with(hosts, lower or upper or "")
    os.environ["NO_PROXY"] = _with(hosts, upper or lower or "")


def _with(hosts: Iterable[str], listed: str) -> str:
    known = [name.strip() for name in listed.split(",") if name.strip()]
    return listed if known == ["*"] else ",".join(dict.fromkeys([*known, *hosts]))


def _is_here(host: str) -> bool:
    """Whether a host is this machine: the address from which the system would ask it is its own."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # of a datagram: sends nothing
                own = str(probe.getsockname()[0])
            if own == address[0] or ip_address(own.partition("%")[0]).is_loopback:
                return True
    return False
