"""What cannot be copied or pickled, because it stands for something that exists once."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from dibs.errors import Misuse


class NotCopied:
    """An object that cannot be copied: a copy would be a second name for one lease or connection, or for nothing."""

    __slots__ = ()

    _instead: ClassVar[str]
    """What to do instead."""

    def __reduce__(self) -> NoReturn:
        raise Misuse(f"{self!r} cannot be pickled or copied: {self._instead}")
