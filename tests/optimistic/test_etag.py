"""If-Match and If-None-Match are answered as RFC 9110 and RFC 6585 say."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import Misuse
from dibs.optimistic import etag, if_match, if_none_match, version_in


@pytest.mark.parametrize(
    ("header", "current", "status"),
    [
        ('"7"', '"7"', None),
        ('"6"', '"7"', 412),
        ('"6", "7"', '"7"', None),
        (' "6",,"7" ,', '"7"', None),
        ('"a,b"', '"a,b"', None),
        ('"a,b"', '"b"', 412),
        ("*", '"7"', None),
        ("*", None, 412),
        ('"7"', None, 412),
        ('W/"7"', '"7"', 412),
        ('"7"', 'W/"7"', 412),
        ('W/"7"', 'W/"7"', 412),
        ("*", 'W/"7"', 412),
        ("7", '"7"', 400),
        ('"7', '"7"', 400),
        ('"7" "8"', '"7"', 400),
        ('w/"7"', '"7"', 400),
        ("", '"7"', 400),
        ('*, "7"', '"7"', 400),
        (None, '"7"', 428),
    ],
)
def test_if_match(header: str | None, current: str | None, status: int | None) -> None:
    assert if_match(header, current) == status


@pytest.mark.parametrize(
    ("header", "current", "status"),
    [
        ("*", None, None),
        ("*", '"7"', 412),
        ('"7"', '"7"', 412),
        ('W/"7"', '"7"', 412),
        ('"6"', '"7"', None),
        ('"6"', None, None),
        ("7", None, 400),
        (None, None, 428),
    ],
)
def test_if_none_match(header: str | None, current: str | None, status: int | None) -> None:
    assert if_none_match(header, current) == status


def test_a_header_that_is_not_required_may_be_missing() -> None:
    assert if_match(None, '"7"', required=False) is None
    assert if_none_match(None, '"7"', required=False) is None


def test_a_version_goes_out_and_comes_back() -> None:
    assert etag(7) == '"7"'
    assert etag("v7-abc") == '"v7-abc"'
    assert version_in(etag(7)) == 7
    for header in ('W/"7"', '"7", "8"', "*", '"abc"', "7", '"٣"', ""):
        assert version_in(header) is None


@pytest.mark.parametrize("version", ["", 'a"b', "a b", "a\n", True, "٣"])
def test_what_is_no_etag_is_refused(version: Any) -> None:
    with pytest.raises(Misuse):
        etag(version)
