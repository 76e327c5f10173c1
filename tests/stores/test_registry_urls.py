"""Whatever is wrong in a URL is `Misuse` when it is connected, in both colours, and shows no piece of a password."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dibs
import dibs.aio
from dibs.cli.main import main
from dibs.errors import Misuse
from dibs.stores.registry import BUILT_IN

NETWORK = sorted(BUILT_IN.keys() - {"memory", "sqlite", "unix"})

HOSTS = {"redlock": "h1,h2,h3", "rediss+redlock": "h1,h2,h3"}

PATHS = {"redis+sentinel": "/service/0", "rediss+sentinel": "/service/0"}

PIECES = ("Xq7Vw", "Zk9Jm")
"""A password, in two pieces that occur nowhere else."""

MALFORMED = [
    "{scheme}:",
    "{scheme}:{hosts}{path}",
    "{scheme}:/{hosts}{path}",
    "{scheme}://{hosts}:0{path}",
    "{scheme}://{hosts}:99999{path}",
    "{scheme}://{hosts}:abc{path}",
    "{scheme}://{hosts},{path}",
    "{scheme}://{hosts},,h4{path}",
    "{scheme}://[::1{path}",
    "{scheme}://[zz]{path}",
    "{scheme}://{hosts} {path}",
    " {scheme}://{hosts}{path}",
    "{scheme}://{hosts}{path}#fragment",
    "{scheme}://{hosts}{path}?nonsense=1",
    "{scheme}://{hosts}{path}?nonsense",
    "{scheme}://{hosts}{path}?",
    "{scheme}://{hosts}{path}?key=1&key=1",
    "{scheme}://{hosts}{path}/%zz",
    "{scheme}://{hosts}{path}/%00",
    "{scheme}://user:%ff@{hosts}{path}",
    "{scheme}://user:a/Xq7Vw@{hosts}{path}",
    "{scheme}://user:a?Xq7Vw@{hosts}{path}",
    "{scheme}://user:a#Xq7Vw@{hosts}{path}",
    "{scheme}://user:a[Xq7Vw@{hosts}:port{path}",
    "{scheme}://user:Xq7Vw@{hosts}{path}?password=Xq7Vw&password=Zk9Jm",
    "{scheme}://user:Xq7Vw@{hosts}{path}?token=Zk9Jm",
    "{scheme}://user:Xq7Vw@{hosts}{path}?Zk9Jm=1",
]

MEANINGLESS = [
    *(f"{scheme}://" for scheme in NETWORK if not scheme.startswith("postgres")),
    "redis://h/one",
    "redis://h/0/1",
    "redis://h/-1",
    "redis://h?db=x",
    "redis://h/0?db=1",
    "redis://h?ssl_ca_certs=/x",
    "redis://h?host=other",
    "redis://h?retry=1",
    "redis://h?min_replicas=few",
    "redis://h?socket_keepalive=maybe",
    "redis://h?verify=no",
    "redis://user:Xq7Vw@h?password=Zk9Jm",
    "rediss://h?ssl_cert_reqs=Zk9Jm",
    "rediss://h?ssl_check_hostname=perhaps",
    "rediss+cluster://h/1",
    "redis+sentinel://h/",
    "redis+sentinel://h/service/x",
    "redis+sentinel://h/service/0/1",
    "valkey://h1,h2",
    "unix://",
    "unix:///",
    "unix://host/socket",
    "unix:///socket?db=x",
    "unix:///socket?socket_keepalive=yes",
    "redlock://h1,h2",
    "redlock://h1,h2,h2",
    "redlock://h1,h2,h3/x",
    "redlock://h1,h2,h3?drift=nan",
    "redlock://h1,h2,h3?drift=x",
    "redlock://h1,h2,h3?min_replicas=1",
    "redlock://h1,h2,h3?durable=perhaps",
    "postgresql://h/a/b",
    "postgresql://h/a?sslmode=Zk9Jm",
    "postgresql://h/a?port=0",
    "postgresql://h/a?port=x",
    "postgresql://h:1/a?port=2",
    "postgresql://h/a?host=other",
    "postgresql://h/a?connect_timeout=soon",
    "postgresql://h/a?connections=0",
    "postgresql://h/a?pooler=other",
    "postgresql://u:Xq7Vw@h/a?password=Zk9Jm",
    "postgresql+advisory://h/a?key={name}",
    "etcd://h/path",
    "etcd://user@h",
    "etcd://h?ca=/x",
    "etcds://h?verify=Zk9Jm",
    "etcds://h?key=/x",
    "consul://user:Xq7Vw@h",
    "consul://h/a//b",
    "consul://h?lock_delay=Zk9Jm",
    "consul://h?lock_delay=-1",
    "consul://h?min_ttl=0",
    "consul://h?token=Zk9Jm",
    "zookeeper://user@h",
    "zookeeper://h/a//b",
    "zookeeper://h/../b",
    "zookeeper://h?private=Zk9Jm",
    "zookeeper://h?ca=/x",
    "zookeepers://h?check_hostname=Zk9Jm",
    "sqlite://user:Xq7Vw@host/locks.db",
    "sqlite:///locks.db?password=Zk9Jm",
    "memory://user:Xq7Vw@host",
    "Xq7Vw",
    "Xq7Vw:Zk9Jm@host",
    "nonsense://user:Xq7Vw@host",
]


def check_shows_no_password(error: BaseException) -> None:
    """Neither it, nor what it came from, nor a traceback of it."""
    shown = "".join(traceback.format_exception(error))
    found: BaseException | None = error
    while found is not None:
        shown += f"{found!r} {found} {found.args!r}"
        found = found.__cause__ or found.__context__
    for piece in PIECES:
        # pytest's own frames are not in it: a traceback shows lines of source, and no values
        assert piece not in shown, shown


def check_is_refused(url: str) -> None:
    for connect in (dibs.connect, dibs.aio.connect):
        with pytest.raises(Misuse) as refused:
            connect(url)
            pytest.fail(f"{url} was taken for a URL")
        check_shows_no_password(refused.value)
        assert len(str(refused.value).split()) > 4


@pytest.mark.parametrize("scheme", NETWORK)
def test_what_is_malformed_is_misuse_at_once_and_shows_no_password(scheme: str) -> None:
    for form in MALFORMED:
        check_is_refused(form.format(scheme=scheme, hosts=HOSTS.get(scheme, "h1"), path=PATHS.get(scheme, "")))


@pytest.mark.parametrize("url", MEANINGLESS)
def test_what_means_nothing_is_misuse_at_once_and_shows_no_password(url: str) -> None:
    check_is_refused(url)


SECRET = st.text("@/?#%:[]&=;+, \\é\tx\n", max_size=3).map(lambda middle: PIECES[0] + middle + PIECES[1])


@st.composite
def urls_with_secrets(draw: st.DrawFn) -> str:
    """A URL with a password, as a user writes it who forgets to escape it, and one more mistake."""
    scheme = draw(st.sampled_from(sorted(BUILT_IN.keys() - {"memory", "sqlite"})))
    host = HOSTS.get(scheme, "127.0.0.1:1") if scheme != "unix" else ""
    path = PATHS.get(scheme, "/socket" if scheme == "unix" else draw(st.sampled_from(["", "/", "/0", "/a"])))
    option = draw(st.sampled_from(["password", "sslpassword", "ssl_password", "key_password", "token", "key"]))
    query = draw(
        st.sampled_from(["", f"?{option}={draw(SECRET)}", f"?x=1&{option}={draw(SECRET)}", f"?{draw(SECRET)}"])
    )
    url = f"{scheme}://user:{draw(SECRET)}@{host}{path}{query}"
    place = draw(st.integers(0, len(url)))
    return (
        url[:place]
        + draw(st.sampled_from(["", "", "/", "?", "#", "%", "[", "]", ":", "&", " ", "=", ","]))
        + url[place:]
    )


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(urls_with_secrets())
def test_whatever_somebody_writes_it_is_misuse_or_a_client_and_shows_no_password(url: str) -> None:
    for connect in (dibs.connect, dibs.aio.connect):
        try:
            client = connect(url)
        except Misuse as error:
            check_shows_no_password(error)
        else:
            assert not any(piece in repr(client) + repr(vars(client)) for piece in PIECES)


@pytest.mark.parametrize("url", ["redis://user:Xq7Vw/Zk9Jm@host", "Xq7Vw", "memory:Xq7Vw", "postgresql://:Xq7Vw%@h/a"])
@pytest.mark.parametrize("how", ["--url", "DIBS_URL"])
def test_the_command_line_refuses_it_in_one_line(
    url: str, how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DIBS_URL", raising=False)
    if how == "DIBS_URL":
        monkeypatch.setenv("DIBS_URL", url)
    assert main(["ls", *(["--url", url] if how == "--url" else [])]) == 64
    said = capfd.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert not any(piece in said.err for piece in PIECES)
