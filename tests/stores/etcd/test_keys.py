"""Keys of etcd: distinct names never share one, and every key can be read back."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.share import SHARED, UNBOUNDED, Share
from dibs.stores.etcd.keys import EtcdKeyParts, EtcdNaming, base64

TEXT = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() or "\0" in text or "/" in text)


def plain(key: str) -> str:
    return b64decode(key).decode()


def test_a_key_is_what_people_would_write() -> None:
    naming = EtcdNaming("default")
    assert plain(naming.key("invoice:42", "t1")) == "dibs/locks/default/invoice:42/t1"
    assert plain(naming.key("L/x", "t1")) == "dibs/locks/default/L%2Fx/t1"
    keys = naming.keys("L")
    assert [plain(key) for key in keys[:3]] == [
        "dibs/locks/default/L/",
        "dibs/locks/default/L0",
        "dibs/evicted/default/L",
    ]


@given(TEXT, TEXT, TEXT)
def test_every_key_can_be_read_back(namespace: str, name: str, token: str) -> None:
    naming = EtcdNaming(namespace)
    assert naming.attempt(naming.key(name, token)) == EtcdKeyParts(name, token)


@given(TEXT, TEXT, TEXT, TEXT)
def test_only_the_attempts_of_a_name_are_in_its_folder(name: str, other: str, token: str, namespace: str) -> None:
    naming = EtcdNaming(namespace)
    keys = naming.keys(name)
    inside = b64decode(keys.first) <= b64decode(naming.key(other, token)) < b64decode(keys.end)
    assert inside is (name == other)
    assert not b64decode(keys.first) <= b64decode(EtcdNaming(namespace + "x").key(name, token)) < b64decode(keys.end)


@pytest.mark.parametrize("share", [None, SHARED, Share(1, 2), Share(1, 2**31 - 2), Share(2, UNBOUNDED)])
def test_a_key_says_for_which_part_it_is_and_those_that_share_are_next_to_each_other(share: Share | None) -> None:
    naming = EtcdNaming("default")
    keys, key = naming.keys("L"), naming.key("L", share.token("0f") if share else "0f")
    assert naming.share(key) == share
    shares = b64decode(keys.share) <= b64decode(key) < b64decode(keys.share_end)
    assert shares is (share == SHARED)
    assert naming.share(base64("dibs/locks/default/L/part-1of2-x/y")) is None


@given(TEXT, st.text(max_size=5).filter(str.isprintable), TEXT)
def test_a_prefix_is_text(name: str, prefix: str, token: str) -> None:
    naming = EtcdNaming("default")
    first, end = (b64decode(key) for key in naming.folder(prefix))
    assert (first <= b64decode(naming.key(name, token)) < end) is name.startswith(prefix)


def test_keys_of_others_are_not_read() -> None:
    naming = EtcdNaming("default")
    for text in ("dibs/locks/other/a/t", "dibs/locks/default/a", "dibs/locks/default/a/b/t", "x"):
        assert naming.attempt(base64(text)) is None
