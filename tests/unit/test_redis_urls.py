"""Redis URLs: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import inspect
from itertools import product
from pathlib import Path

import pytest
import redis.asyncio
from redis.asyncio import connection as library

from streamfleet.common.connection import Connection, safe_address
from streamfleet.common.connection.urls import NOT_AN_ADDRESS, Kind, read_url
from streamfleet.common.errors import SettingsError

SENTINELS = "redis+sentinel://user:p%40ss@h1:26380,h2,[::1]:7/main/3?sentinel_username=su&sentinel_password=s%2Fp"


def test_sentinels_and_what_they_watch() -> None:
    url = read_url(SENTINELS)
    assert (url.kind, url.service) == (Kind.SENTINEL, "main")
    assert url.hosts == (("h1", 26380), ("h2", 26379), ("::1", 7))
    assert url.server_url("10.0.0.1", 6379) == "redis://user:p%40ss@10.0.0.1:6379/3"
    assert url.sentinel_url("::1", 7) == "redis://su:s%2Fp@[::1]:7"


def test_sentinels_have_no_password_unless_given_one() -> None:
    url = read_url("redis+sentinel://:secret@h1/main")
    assert url.sentinel_url("h1", 26379) == "redis://h1:26379"
    assert url.server_url("m", 1) == "redis://:secret@m:1"


def test_tls_is_for_sentinels_and_servers_alike() -> None:
    url = read_url("rediss+sentinel://h1/main?ssl_ca_certs=/ca.pem&client_name=me")
    assert url.sentinel_url("h1", 1) == "rediss://h1:1?ssl_ca_certs=%2Fca.pem"
    assert url.server_url("m", 2) == "rediss://m:2?ssl_ca_certs=%2Fca.pem&client_name=me"
    assert read_url("rediss+cluster://h1").server_url("h1", 6379) == "rediss://h1:6379"


@pytest.mark.parametrize("path", ["", "/", "/0"])
def test_nodes_of_a_cluster(path: str) -> None:
    url = read_url(f"redis+cluster://:secret@h1,h2:7001{path}")
    assert (url.kind, url.hosts) == (Kind.CLUSTER, (("h1", 6379), ("h2", 7001)))
    assert url.server_url("h3", 7002) == "redis://:secret@h3:7002"


@pytest.mark.parametrize("url", ["redis://:secret@h:1/2?x=y", "rediss://h", "unix:///run/r.sock"])
def test_one_server_is_left_to_the_library(url: str) -> None:
    assert (read_url(url).kind, read_url(url).server_url()) == (Kind.SINGLE, url)


def test_what_was_read_does_not_show_its_passwords() -> None:
    shown = repr(read_url(SENTINELS))
    assert "p%40ss" not in shown
    assert "s%2Fp" not in shown
    assert "s/p" not in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+sentinel://u:secret@h1:1,h2/main/0?sentinel_password=secret", "redis+sentinel://h1:1,h2:26379/main/0"),
        ("rediss+cluster://:secret@h1,[::1]:7", "rediss+cluster://h1:6379,[::1]:7"),
        ("redis+cluster://h1,h2", "redis+cluster://h1:6379,h2:6379"),
        ("redis+sentinel://:secret/secret@h1,h2/main", "redis+sentinel://h1:26379,h2:26379/main"),
        ("redis+sentinel://:secret?secret@h1/main", "redis+sentinel://h1:26379/main"),
        ("redis+sentinel://:1?2@h1/main", "redis+sentinel://h1:26379/main"),
        ("redis+sentinel://h1/main?sentinel_password=a@secret", "redis+sentinel://h1:26379/main"),
        # Here an @ could end the password or stand in an option: rather nothing than a part of a password.
        ("redis+sentinel://u:secret@h1/main?sentinel_password=a@secret", NOT_AN_ADDRESS),
        ("redis://u:secret@h1/0?password=a@secret", NOT_AN_ADDRESS),
        ("redis://:1234?secret@h1", "redis://h1:6379"),
        ("redis://user:secret@h1:1/0", "redis://h1:1/0"),
        ("redis://:secret/secret@h1", "redis://h1:6379"),
        ("redis://:secret#secret@h1/3", "redis://h1:6379/3"),
        ("redis://h1:6379/0?password=secret@1", "redis://h1:6379/0"),
        ("redis://[::1]:7/2", "redis://[::1]:7/2"),
        ("unix:///run/redis.sock?db=1", "/run/redis.sock"),
        ("unix://user:secret@/run/redis.sock", "/run/redis.sock"),
        ("h1:6379", NOT_AN_ADDRESS),
        ("secret", NOT_AN_ADDRESS),
        ("", NOT_AN_ADDRESS),
        ("redis+sentinel://u:secret@h1,,h2/main", NOT_AN_ADDRESS),
        ("redis+sentinel://", NOT_AN_ADDRESS),
    ],
)
def test_an_address_is_shown_without_passwords(url: str, shown: str) -> None:
    assert safe_address(url) == shown
    assert "secret" not in safe_address(url)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("redis-sentinel://h1/main", r"redis\+sentinel://host:26379,host:26379/service/0"),
        ("sentinel://h1/main", r"redis\+sentinel://"),
        ("rediscluster://h1", r"redis\+cluster://host:6379,host:6379"),
        ("redis://h1,h2", r"several hosts are for redis\+sentinel://host,host/service or redis\+cluster://host,host"),
        ("redis+sentinel://h1,h2", r"redis\+sentinel://host:26379,host:26379/mymaster/0"),
        ("redis+sentinel://h1/", "name the service"),
        ("redis+sentinel://h1/main/zero", "name the service"),
        ("redis+sentinel://h1/main/0/1", "name the service"),
        ("redis+sentinel://h1:port/main", "host:26379,host:26379"),
        ("redis+sentinel://h1:0/main", "host:26379,host:26379"),
        ("redis+sentinel://h1:70000/main", "host:26379,host:26379"),
        ("redis+sentinel://,h1/main", "host:26379,host:26379"),
        ("redis+sentinel://:secret/x@h1/main", "in a user name or password write"),
        ("redis+sentinel://:secret#x@h1/main", "in a user name or password write"),
        ("redis+cluster://", "host:6379,host:6379"),
        ("redis+cluster://h1/1", "a cluster has no databases but 0"),
        ("redis+cluster://h1/0?secrets=1", "no option 'secrets'"),
        ("redis://h1?clientname=x", "no option 'clientname'"),
        ("redis://:1?secret=x@h1", "no option of this name"),
        ("http://:secret@h1", ""),
        ("redis://:secret/x@h1", ""),
        ("redis://h1:secret@:1x", ""),
        ("redis://h1:99999999", ""),
    ],
)
def test_a_wrong_url_is_told_what_is_right(url: str, right: str) -> None:
    with pytest.raises(SettingsError, match=f"^REDIS_URL .*{right}") as caught:
        Connection(url)
    assert len(str(caught.value).splitlines()) == 1
    if "secret=" in url or ":secret" in url:
        assert "secret" not in str(caught.value)


CLASSES = (
    library.AbstractConnection,
    library.Connection,
    library.SSLConnection,
    library.UnixDomainSocketConnection,
    library.ConnectionPool,
    library.BlockingConnectionPool,
    redis.asyncio.Redis,
)
PARAMETERS = sorted(
    {name for each in CLASSES for name in inspect.signature(each.__init__).parameters} - {"self", "kwargs"}
    | {*library.URL_QUERY_ARGUMENT_PARSERS, "connection_kwargs", "unknown"}
)
VALUES = (
    "",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "1.5",
    "nan",
    "1e999",
    "true",
    "False",
    "maybe",
    "utf-8",
    "none",
    "a b",
    "ü",
    "٣",
)


def refusal(url: str) -> str:
    """The refusal of a URL; empty where it can be used."""
    try:
        Connection(url)
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "base", ["redis://h", "rediss://h/1", "unix:///r.sock", "redis+sentinel://h/m", "redis+cluster://h"]
)
def test_each_option_of_redis_py_works_or_is_refused_by_its_name(base: str) -> None:
    """`tests/integration/test_connection.py` uses those that work."""
    for name, value in product(PARAMETERS, VALUES):
        if refused := refusal(f"{base}?{name}={value}"):
            assert len(refused.splitlines()) == 1
            assert name in refused


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?protocol=3", "the option protocol must be 2"),
        ("redis://h?protocol=x", "the option protocol must be 2"),
        ("redis://h?decode_responses=true", "decode_responses is refused, leave it out: streamfleet reads replies as"),
        ("redis://h?decode_responses=", "decode_responses is refused"),
        ("redis://h?encoding=latin-1", "the option encoding must be utf-8"),
        ("redis://h?socket_timeout=5", "socket_timeout is refused, leave it out: streamfleet has time-outs of its own"),
        ("redis://h?socket_connect_timeout=nan", "socket_connect_timeout must be above 0"),
        ("redis://h?socket_connect_timeout=soon", "socket_connect_timeout must be a number of seconds"),
        ("redis://h?socket_read_size=0", "socket_read_size must be a whole number from 1"),
        ("redis://h?socket_keepalive=maybe", "socket_keepalive must be true or false"),
        ("redis://h?socket_keepalive_options=x", "no option 'socket_keepalive_options'"),
        ("unix:///r.sock?socket_keepalive=1", "the option socket_keepalive is for connections over TCP"),
        ("redis://h?retry_on_timeout=1", "retry_on_timeout is refused, leave it out: streamfleet tries again"),
        ("redis://h?max_connections=0", "max_connections must be a whole number from 1"),
        ("redis://h?db=", "the option db has no value"),
        ("redis://h?db", "the option db has no value"),
        ("redis://h?db=1&db=2", "the option db is there twice"),
        ("redis+cluster://h?db=1", "the option db must be 0"),
        ("redis://h?host=other", "the option host is refused, leave it out: write it before the \\?"),
        ("redis://h?client_name=a b", "client_name must be a word of ASCII characters"),
        ("redis://h?ssl_ca_certs=/ca.pem", "the option ssl_ca_certs is for rediss://"),
        ("redis+sentinel://h/m?sentinel_passwort=x", "no option 'sentinel_passwort'"),
        ("redis://h?sentinel_password=x", r"the option sentinel_password is for redis\+sentinel://"),
        ("rediss://h?ssl_cert_reqs=sometimes", "ssl_cert_reqs must be none or optional or required"),
        ("rediss://h?ssl_min_version=1.2", "ssl_min_version must be 769"),
        ("rediss://h?ssl_ca_certs=/none.pem", "ssl_ca_certs names '/none.pem', which cannot be read: No such file"),
        ("rediss+sentinel://h/m?ssl_ca_certs=/none.pem", "ssl_ca_certs names '/none.pem', which cannot be read"),
        ("rediss://h?ssl_ca_certs={folder}/text", "the option ssl_ca_certs cannot be used: "),
        ("rediss://h?ssl_ca_certs=a%00b", "ssl_ca_certs names 'a.*b', which cannot be read"),
        ("rediss://h?ssl_ca_path={folder}/text", "ssl_ca_path names '{folder}/text', which is no folder"),
        ("rediss://h?ssl_ca_data=text", "the option ssl_ca_data cannot be used: "),
        ("rediss://h?ssl_certfile={folder}/text", "the option ssl_certfile cannot be used: "),
        ("rediss://h?ssl_keyfile={folder}/text", "ssl_keyfile needs ssl_certfile"),
        ("rediss://h?ssl_ciphers=none", "the option ssl_ciphers cannot be used: "),
        ("rediss://h?ssl_include_verify_flags=__doc__", "ssl_include_verify_flags must be a list of names"),
        ("redis://h/one", "the path must be the number of a database"),
        ("redis://h/1/2", "the path must be the number of a database"),
        ("redis://:se/secret@h", "in a user name or password write"),
        ("redis://:a?b=c&secret=x@h", "no option of this name"),
    ],
)
def test_an_option_that_cannot_work_is_told_by_its_name(url: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(SettingsError, match=f"^REDIS_URL .*{said.replace('{folder}', str(tmp_path))}") as caught:
        Connection(url.replace("{folder}", str(tmp_path)))
    assert len(str(caught.value).splitlines()) == 1
    assert "secret" not in str(caught.value)
