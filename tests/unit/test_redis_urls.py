"""Redis URLs: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

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
    ],
)
def test_a_wrong_url_is_told_what_is_right(url: str, right: str) -> None:
    with pytest.raises(SettingsError, match=f"^REDIS_URL .*{right}") as caught:
        Connection(url)
    assert len(str(caught.value).splitlines()) == 1
    if "secret=" in url or ":secret" in url:
        assert "secret" not in str(caught.value)
