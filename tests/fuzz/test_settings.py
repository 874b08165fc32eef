"""Settings out of any environment: they load, or each wrong one has its line, and no password stands in it."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.connection import Connection
from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import GROUPS, Group, QueueSettings, load, load_all, unknown_variables, variable
from tests.fuzz import strategies as some
from tests.fuzz.attempts import attempt
from tests.fuzz.budget import examples

SECRET = "pa55-w0rd"
WELL_KNOWN = ("REDIS_URL", "VLLM_URL", "BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS")
VARIABLES = tuple(variable(name) for group in GROUPS for name in group.model_fields) + WELL_KNOWN
MOST = 10**15
texts = st.one_of(
    some.texts,
    st.integers().map(str),
    st.floats().map(str),
    some.raw.map(lambda value: value.decode(errors="surrogateescape")),
    st.sampled_from(
        ["1e400", "0x10", "9" * 400, "1_0", "true", "null", "[1,2,3,4]", '"', "a 'b", "0,0,0,0", "nan,1,1,1", "{}"]
    ),
).map(lambda text: text.replace("\0", "").encode(errors="replace").decode())
urls = st.one_of(
    st.sampled_from(["redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "http", ""]).flatmap(
        lambda scheme: texts.map(lambda rest: f"{scheme}://user:{SECRET}@{rest}")
    ),
    texts,
)


@given(st.dictionaries(st.sampled_from(VARIABLES), texts, max_size=6))
@examples(200)
def test_any_environment(environment: dict[str, str]) -> None:
    with patch.dict(os.environ, environment, clear=True):
        unknown_variables()
        for group in GROUPS:
            found = attempt(SettingsError, lambda group=group: load(group))  # type: ignore[misc]
            if isinstance(found, SettingsError):
                assert ": " in str(found).splitlines()[0]
                assert len(str(found)) < 5_000
            else:
                assert_within_bounds(found)
        everything = attempt(SettingsError, lambda: load_all(engine="simulated"))
        assert not isinstance(everything, SettingsError) or str(everything)


def assert_within_bounds(settings: Group) -> None:
    """Numbers that Redis, timers and scripts can all take."""
    for name, value in settings:
        if isinstance(value, (int, float)):
            assert 0 <= value <= MOST, (name, value)


@pytest.mark.parametrize("name", VARIABLES)
def test_numbers_beyond_all_bounds(name: str) -> None:
    for text in ("1" + "0" * 30, "1e300", "inf", "-1", "nan"):
        with patch.dict(os.environ, {name: text}, clear=True):
            found = attempt(SettingsError, lambda: load_all(engine="simulated"))
        for settings in () if isinstance(found, SettingsError) else found:
            assert_within_bounds(settings)


@given(urls)
@examples(200)
def test_any_address(url: str) -> None:
    with patch.dict(os.environ, {"REDIS_URL": url}, clear=True):
        refused = attempt(SettingsError, lambda: Connection(load(QueueSettings).redis_url.get_secret_value()))
        assert SECRET not in str(refused)
