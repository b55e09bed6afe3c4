"""URLs of brokers and options of connections."""

from __future__ import annotations

import pytest

from qstore.broker.client.errors import UrlError
from qstore.broker.client.options import ConnectionOptions, Endpoint, Url, connection_options, parse_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", Url((Endpoint("localhost", 5672),))),
        ("10.1.1.7:10000", Url((Endpoint("10.1.1.7", 10000),))),
        ("guest/secret@localhost", Url((Endpoint("localhost"),), "guest", "secret")),
        ("guest:sec@ret@localhost:1", Url((Endpoint("localhost", 1),), "guest", "sec@ret")),
        ("guest@localhost", Url((Endpoint("localhost"),), "guest")),
        ("amqp:tcp:127.0.0.1:5672,tcp:other", Url((Endpoint("127.0.0.1"), Endpoint("other")))),
        ("amqp:u/p@a, b:2", Url((Endpoint("a"), Endpoint("b", 2)), "u", "p")),
        ("amqp://a:5/", Url((Endpoint("a", 5),))),
        ("amqp://a:5/blue", Url((Endpoint("a", 5),), virtual_host="blue")),
        ("u/p@a,b/%2Fsky%20x", Url((Endpoint("a"), Endpoint("b")), "u", "p", "/sky x")),
        ("[::1]/blue", Url((Endpoint("::1"),), virtual_host="blue")),
        ("[::1]:99", Url((Endpoint("::1", 99),))),
        ("tcp:[fe80::1%eth0]", Url((Endpoint("fe80::1%eth0"),))),
        ("amqps://a", Url((Endpoint("a", 5671, True),))),
        ("amqps://u:p@a:5,tcp:b", Url((Endpoint("a", 5, True), Endpoint("b")), "u", "p")),
        ("amqp:ssl:a,tcp:b,c:7", Url((Endpoint("a", 5671, True), Endpoint("b"), Endpoint("c", 7)))),
        ("ssl:[::1]", Url((Endpoint("::1", 5671, True),))),
    ],
)
def test_reads(text: str, expected: Url) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:65536", "a,,b", "rdma:a", "ssl:", "[::1", "::1", "a b"])
def test_refuses(text: str) -> None:
    with pytest.raises(UrlError):
        parse_url(text)


def test_the_transport_of_endpoints_that_tell_none() -> None:
    encrypted = parse_url("amqp://a,tcp:b", is_encrypted=True)
    assert encrypted == Url((Endpoint("a", 5671, True), Endpoint("b", 5672)))


def test_no_password_in_errors() -> None:
    with pytest.raises(UrlError) as caught:
        parse_url("me/secret@host:port")
    assert "secret" not in str(caught.value)
    with pytest.raises(UrlError) as caught:
        connection_options({"password": ["secret"]} | {"heartbeat": "x"})
    assert "secret" not in str(caught.value)


def test_options_as_words_or_values() -> None:
    options = connection_options(
        {
            "reconnect": True,
            "reconnect-timeout": 5,
            "reconnect_interval": 2,
            "reconnect_urls": ["a:1", "b"],
            "heartbeat": "10",
            "sasl_mechanisms": "plain ANONYMOUS",
            "username": "me",
        }
    )
    assert options == ConnectionOptions(
        username="me",
        sasl_mechanisms=("PLAIN", "ANONYMOUS"),
        heartbeat=10,
        reconnect=True,
        reconnect_timeout=5.0,
        reconnect_interval_min=2.0,
        reconnect_interval_max=2.0,
        reconnect_urls=(Endpoint("a", 1), Endpoint("b")),
    )


@pytest.mark.parametrize(
    "values",
    [
        {"reconect": True},
        {"reconnect": "maybe"},
        {"heartbeat": -1},
        {"heartbeat": 70000},
        {"reconnect_timeout": "nan"},
        {"client_properties": 5},
        {"reconnect_urls": 5},
    ],
)
def test_options_that_cannot_be(values: dict[str, object]) -> None:
    with pytest.raises(UrlError, match=next(iter(values))):
        connection_options(values)
