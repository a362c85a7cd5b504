"""Bad addresses are refused by name; servers listen on good ones unchanged."""

import asyncio
import re
import socket
import tempfile

import pytest

from paceline.errors import ConfigError, InvalidArgument
from paceline.rpc import health
from paceline.rpc.channel import check_address
from paceline.rpc.health import is_serving
from paceline.rpc.server import Server

GOOD = ["127.0.0.1:50050", "localhost:1", "0.0.0.0:65535", "[::1]:50050", "[::]:50050", "draft_server:50051", "a.b-c.d:80", "unix:x", "unix:/a/b c.sock", "unix:///tmp/x.sock"]  # fmt: skip
BAD = [
    "127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1", "127.0.0.1:", ":50050", "::1:50050", "[::1]", "50050", "",
    "127.0.0.1:0x10", "127.0.0.1:1:2", "http://127.0.0.1:80", "127.0.0.1:80/", "unix:", "a b:80", "127.0.0.1:٣", "unix:/tmp/" + "x" * 103, "unix:/tmp/\udce9", "host:50 050",
    "unix:/tmp/a,b", "unix:a#b", "unix:/tmp/a?b", "unix:/tmp/a%20b", "unix:%", "unix://tmp/x", "unix://", "unix:///" + "x" * 105,
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_taken(text: str) -> None:
    check_address("--target", text)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    allowed = "HOST:PORT or unix:PATH, with a port in [1, 65535] and a path of at most 107 bytes without any of , # ? %"
    with pytest.raises(InvalidArgument, match=f"^--target is .*; it must be {re.escape(allowed)}"):
        check_address("--target", text)


def test_port_0_is_for_those_who_listen() -> None:
    check_address("--listen", "127.0.0.1:0", is_listening=True)
    with pytest.raises(InvalidArgument, match=r"a port in \[1, 65535\]"):
        check_address("--target", "127.0.0.1:0")


def test_a_health_check_says_that_it_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["health", "unix:/tmp/a,b"])
    with pytest.raises(SystemExit, match=r"^error: ADDRESS is 'unix:/tmp/a,b'; it must be HOST:PORT or unix:PATH"):
        health.main()


@pytest.mark.parametrize("text", BAD)
async def test_a_server_refuses_to_listen_there_naming_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--listen is .*a port in \[0, 65535\]"):
        Server(text)


# Printable ASCII but for ",#?%".
NAME = "it !\"$&'()*+-.0:;<=>@A[\\]^_`a{|}~"


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "unix:", "unix://"])
async def test_a_server_is_found_at_the_address_it_tells(listen: str) -> None:
    if "[" in listen:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    # pytest's own folders may be too long for a socket.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = Server(f"{listen}{folder}/{NAME}é" if "unix" in listen else listen)
        address = await server.start()
        try:
            assert address.startswith(listen.removesuffix("0"))
            assert await asyncio.to_thread(is_serving, address)
        finally:
            await server.stop(0)
