"""A name made of the arguments of a call, as in ``"charge:{invoice}"``: one name for equal values, in every process.

Values whose text does not promise that are refused, with what to write instead (see `plain`). With a format or a
conversion (``{amount:.2f}``, ``{x!r}``) the caller says which text counts.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from dibs.core.checks import has_address, shown
from dibs.core.plain import SEQUENCES, advice, ends_by_itself, is_plain
from dibs.errors import Misuse


class Field(NamedTuple):
    """One pair of braces, and the text before it and behind it."""

    before: str
    name: str
    spec: str
    conversion: str
    behind: str | None
    """What ends it, if another field follows."""

    @property
    def shown(self) -> str:
        """As it is written."""
        return f"{{{self.name}{'!' if self.conversion else ''}{self.conversion}{':' if self.spec else ''}{self.spec}}}"


class Template:
    """A text with fields, and which of the *parameters* of the function called *owner* they name.

    A template that is a *name* keeps apart what other values would make the same text of: ``{a}:{b}`` takes no *a*
    with a colon in it.
    """

    def __init__(self, text: str, parameters: Iterable[str], owner: str, *, name: bool = True) -> None:
        self.text, self._is_name = text, name
        for each in _fields_in(text, text):
            if _root(each) not in parameters:
                raise Misuse(f"the name {text!r} has {{{each}}}, but {owner} has no such parameter")
        self._fields, self._end = _parsed(text)
        for field, after in zip(self._fields, self._fields[1:], strict=False):
            if name and not field.behind and not field.spec:
                raise Misuse(
                    f"the name {text!r} has nothing between {field.shown} and {after.shown}, so 1, 23 and 12, 3 would "
                    "make the same name: put a colon between them"
                )

    def filled(self, arguments: dict[str, Any]) -> tuple[str, list[list[str]]]:
        """The text for one call, and what it is made of: type and text of each value, so that 7 is not "7".

        For a value with a format or a conversion, only the formatted text counts.
        """
        text, told = "", list[list[str]]()
        for field in self._fields:
            value = self._value(field, arguments)
            made = self._made(field, value, arguments)
            if field.behind is not None and self._is_name:
                self._check_end(field, value, made)
            text += field.before + made
            told.append([made] if field.spec or field.conversion else [type(value).__qualname__, made])
        return text + self._end, told

    def _value(self, field: Field, arguments: dict[str, Any]) -> Any:
        try:
            return _FORMATTER.get_field(field.name, (), arguments)[0]
        except (AttributeError, LookupError, TypeError) as exc:
            raise Misuse(f"the name {self.text!r} cannot be filled in: {field.shown}: {exc}") from exc

    def _made(self, field: Field, value: Any, arguments: dict[str, Any]) -> str:
        if not field.spec and not field.conversion:
            if not is_plain(value):
                self._refuse(field, value)
            return self._written(field, value, "")
        if isinstance(value, set | frozenset | dict) or (isinstance(value, SEQUENCES) and not is_plain(value)):
            self._refuse(field, value)
        spec = _FORMATTER.vformat(field.spec, (), arguments) if "{" in field.spec else field.spec
        made = self._written(field, _FORMATTER.convert_field(value, field.conversion or None), spec)
        if not isinstance(value, str) and has_address(made):
            self._refuse(field, value)
        return made

    def _written(self, field: Field, value: Any, spec: str) -> str:
        try:
            return format(value, spec)
        except (TypeError, ValueError) as exc:  # no such format, or an integer of more digits than Python writes
            raise Misuse(f"the name {self.text!r} cannot be filled in: {field.shown}: {exc}") from exc

    def _check_end(self, field: Field, value: Any, made: str) -> None:
        """Refuse a text that contains what ends the field: a call with other values could make the same name."""
        if not field.behind or field.conversion in {"r", "a"} or (not field.spec and ends_by_itself(value)):
            return
        sign = 1 if isinstance(value, int) and made.startswith("-") else 0
        if (made + field.behind).find(field.behind, sign) != len(made):
            raise Misuse(
                f"the value {shown(value)} of {field.shown} contains {field.behind!r}, which ends that field in "
                f"{self.text!r}, so other values could make the same name: write {{{field.name}!r}}, or put something "
                "else between the fields"
            )

    def _refuse(self, field: Field, value: Any) -> None:
        of = f"{field.shown}, a value of type {type(value).__name__}"
        raise Misuse(f"the name {self.text!r} cannot be made of {of}: {advice(field.name, value)}")


def check_no_fields(text: str, parameters: Iterable[str], owner: str) -> None:
    """Refuse a fixed name that looks as if it were meant to be made of the *parameters* of *owner*."""
    try:
        fields = [_root(field) for _, field, _, _ in _FORMATTER.parse(text) if field is not None]
    except ValueError:  # braces that are no template
        return
    for field in fields:
        if field in parameters:
            raise Misuse(
                f"the name {text!r} has {{{field}}}, a parameter of {owner}, but once makes no names of arguments: "
                "build the name yourself, and call client.once with it"
            )


_FORMATTER = string.Formatter()


def _parsed(text: str) -> tuple[list[Field], str]:
    """The fields, and the text behind the last."""
    fields, before = list[Field](), ""
    for literal, name, spec, conversion in _FORMATTER.parse(text):
        before += literal
        if name is not None:
            if fields:
                fields[-1] = fields[-1]._replace(behind=before)
            fields.append(Field(before, name, spec or "", conversion or "", None))
            before = ""
    return fields, before


def _fields_in(template: str, whole: str) -> Iterator[str]:
    """What stands in braces in *template*, also inside the format of a field; *whole* is for the error."""
    try:
        for _, field, spec, conversion in _FORMATTER.parse(template):
            if field is not None:
                yield field
                yield from _fields_in(spec or "", whole)
            if conversion not in {None, "r", "s", "a"}:
                raise Misuse(f"the name {whole!r} has !{conversion}: there are only !r, !s and !a")
    except Misuse:
        raise
    except ValueError as exc:
        raise Misuse(f"the name {whole!r} cannot be filled in: {exc}; write a literal brace twice") from exc


def _root(field: str) -> str:
    """The parameter of which a field is a part."""
    return field.replace("[", ".").split(".")[0]
