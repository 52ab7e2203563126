"""Which addresses are asked through a proxy, and what errors say of it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import aiohttp
import pytest
import requests

from scalestudy.training.proxies import ask_here_directly, proxy_of, through

DEAD = "http://127.0.0.1:9"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def proxies(monkeypatch):
    """Sets these variables and no others; forgets at the end what was added."""

    def set_only(**variables):
        for name in VARIABLES:
            for each in (name, name.upper()):
                monkeypatch.setenv(each, "")  # so that its value comes back
                monkeypatch.delenv(each)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    set_only()
    return set_only


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "http://far.example", None),
        ({"http_proxy": "http://p:3128"}, "http://far.example:5000/a", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128"}, "http://far.example", "http://p:3128"),
        ({"http_proxy": "http://p:3128"}, "https://far.example", None),
        ({"https_proxy": "http://ann:s3cr3t@p:3128"}, "https://far.example", "http://ann:***@p:3128"),
        ({"ALL_PROXY": "socks5://p:1080"}, "https://far.example", "socks5://p:1080"),
        ({"ALL_PROXY": "http://p:3128"}, "postgresql://far.example/a", None),
        ({"http_proxy": "http://p", "no_proxy": "near.example"}, "http://near.example:5000", None),
        ({"http_proxy": "http://p", "no_proxy": ".example"}, "http://ann:s3cr3t@near.example:5000", None),
        ({"http_proxy": "http://p", "NO_PROXY": "*"}, "http://far.example", None),
    ],
)
def test_the_proxy_of_an_address(proxies, variables, url, proxy):
    proxies(**variables)
    assert proxy_of(url) == proxy


def test_what_errors_say(proxies):
    proxies(all_proxy="http://ann:s3cr3t@p:3128")
    said = ", through the proxy http://ann:***@p:3128 (no_proxy does not list far.example)"
    assert through("http://far.example:5000") == said
    assert through("http://far.example:5000", of_all=False) == "", "Python's own library does not go by it"


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *_):
        pass


IPV6 = socket.has_dualstack_ipv6()


class Server(HTTPServer):
    address_family = socket.AF_INET6 if IPV6 else socket.AF_INET

    def server_bind(self):
        if IPV6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # both families
        super().server_bind()


@pytest.fixture(scope="module")
def port():
    with Server(("::" if IPV6 else "", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def by_urllib(url):
    with urllib.request.build_opener().open(url, timeout=5) as answer:  # `urlopen` keeps the proxies of its first call
        return answer.read().decode()


def by_requests(url):
    return requests.get(url, timeout=5).text


def by_aiohttp(url):
    async def get():
        async with aiohttp.ClientSession(trust_env=True) as session, session.get(url) as answer:
            return await answer.text()

    return asyncio.run(get())


def own_address():
    """The address by which other machines would ask this one, if there is a network."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]
    return "127.0.0.1"


@pytest.mark.parametrize("ask", [by_urllib, by_requests, by_aiohttp])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", socket.gethostname(), "127.0.0.7", "own address"])
def test_this_machine_is_asked_directly_by_every_library(proxies, port, host, ask):
    if host == "[::1]" and not IPV6:
        pytest.skip("this machine has no IPv6")
    every = {name: DEAD for name in VARIABLES if name != "no_proxy"}
    proxies(**every, **{name.upper(): DEAD for name in every}, NO_PROXY="near.example")
    url = f"http://{own_address() if host == 'own address' else host}:{port}/"
    with pytest.raises((OSError, aiohttp.ClientError)):
        ask(url)
    ask_here_directly(url)
    assert ask(url) == "here"
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
    assert os.environ["no_proxy"].startswith("near.example,localhost,")
    assert proxy_of("http://far.example") == DEAD


def test_an_environment_without_a_proxy_stays(proxies):
    before = dict(os.environ)
    ask_here_directly("http://localhost:5000")
    assert os.environ == before


def test_what_asks_nothing_through_a_proxy_stays(proxies):
    proxies(http_proxy=DEAD, no_proxy="*")
    ask_here_directly("http://localhost:5000")
    assert os.environ["no_proxy"] == "*"
