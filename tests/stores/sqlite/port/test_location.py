"""Where the embedded store refuses to keep its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dibs.errors import Misuse
from dibs.stores.sqlite.port import location as place
from dibs.stores.sqlite.port.location import Place
from dibs.stores.sqlite.port.mounts import foreign_file_system, mounted_file

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:50 / /srv rw,relatime - nfs4 server:/srv rw
41 40 254:1 / /srv/local rw,relatime - xfs /dev/vdb rw
42 27 0:51 / /mnt/two\040words rw - fuse.sshfs me@host: rw
43 27 0:52 / /over rw - ext4 /dev/vdc rw
44 43 0:53 / /over rw - cifs //host/share rw
45 27 0:54 / /shared rw - virtiofs share rw
46 27 0:55 / /win rw - 9p C: rw
47 27 0:56 / /cloud rw - fuse.gcsfuse bucket rw
48 27 0:57 / /var/lib/box rw - overlay overlay rw
49 48 254:0 /x/locks.db /var/lib/box/data/locks.db rw - ext4 /dev/vda rw
50 27 0:58 / /new rw - fs_of_next_year x rw
a line that nobody understands
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/home/me", None),
        ("/srv", "nfs4"),
        ("/srv/deep/er", "nfs4"),
        ("/srv/local/x", None),
        ("/srvother", None),
        ("/mnt/two words/x", "fuse.sshfs"),
        ("/over/x", "cifs"),
        ("/shared/x", "virtiofs"),
        ("/win/users", "9p"),
        ("/cloud", "fuse.gcsfuse"),
        ("/new/x", "fs_of_next_year"),
        ("/var/lib/box/data", None),
    ],
)
def test_the_longest_and_last_mount_decides_on_what_a_directory_is(directory: str, kind: str | None) -> None:
    assert foreign_file_system(directory, MOUNTS) == kind


def test_a_single_file_that_is_mounted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mounted_file("/var/lib/box/data/locks.db", MOUNTS)
    assert not mounted_file("/var/lib/box/data/other.db", MOUNTS)
    monkeypatch.setattr(place, "mounted_file", lambda path: True)
    with pytest.raises(Misuse, match="mount its directory"):
        Place(str(tmp_path / "x.db")).prepare()


def test_who_vouches_for_an_unknown_file_system_may_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "foreign_file_system", lambda directory: "fs_of_next_year")
    with pytest.raises(Misuse, match=r"fs_of_next_year.*\?file_system=local"):
        Place(str(tmp_path / "x.db")).prepare()
    Place(str(tmp_path / "x.db"), trusted=True).prepare()


def test_this_machines_own_table_can_be_read(tmp_path: Path) -> None:
    assert foreign_file_system(str(tmp_path)) is None


def test_a_network_file_system_is_refused_with_what_to_take_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "foreign_file_system", lambda directory: "nfs4")
    with pytest.raises(Misuse, match=r"nfs4.*postgresql://"):
        Place(str(tmp_path / "x.db")).prepare()


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Misuse, match="symbolic link"):
        Place(str(tmp_path / "link" / "x.db")).prepare()
    assert list((tmp_path / "real").iterdir()) == []


def test_a_linked_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(Misuse, match="symbolic link"):
        Place(str(tmp_path / "x.db")).prepare()
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_linked_folder_beside_the_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "x.db.d").symlink_to(tmp_path / "real")
    with pytest.raises(Misuse, match="symbolic link"):
        Place(str(tmp_path / "x.db")).prepare_beside()


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(Misuse, match="chmod go-w"):
        Place(str(tmp_path / "x.db")).prepare()
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("stranger", [False, True])
def test_a_directory_that_all_share_is_refused_with_one_of_ones_own_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: bool
) -> None:
    """Also to root, who owns /tmp: nobody is to close it for all others."""
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + stranger)
    tmp_path.chmod(0o1777)
    with pytest.raises(Misuse, match=f"a directory of your own, such as sqlite://{tmp_path}/NAME/locks.db$") as caught:
        Place(str(tmp_path / "x.db")).prepare()
    assert "chmod" not in str(caught.value)
    tmp_path.chmod(0o700)


def test_what_the_refusal_of_a_shared_directory_names_can_be_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    Place(str(tmp_path / "NAME" / "locks.db")).prepare()
    assert (tmp_path / "NAME").stat().st_mode & 0o777 == 0o700


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Misuse, match="belongs to user id"):
        Place(str(tmp_path / "x.db")).prepare()


def test_a_directory_in_the_place_of_the_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").mkdir(mode=0o700)
    with pytest.raises(Misuse, match="not a regular file"):
        Place(str(tmp_path / "x.db")).prepare()


def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Place(str(tmp_path / "a" / "b" / "x.db")).prepare()
    finally:
        os.umask(before)
    assert [(tmp_path / path).stat().st_mode & 0o777 for path in ("a", "a/b", "a/b/x.db")] == [0o700, 0o700, 0o600]
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["x.db"]
