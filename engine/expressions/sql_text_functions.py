"""Functions of text that SQL may call. Positions count from 1, and characters, not bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .own_kernels import each_distinct
from .sql_arguments import Function, Values, constant, count, each_text, per_text, plain, with_text
from .sql_values import cast_to


def _substring(values: Values) -> Any:
    count(values, 2, 3)
    start = constant(values, 1, int)
    if start < 1:
        raise ValueError("the first character has position 1")
    if len(values) == 2:
        return pc.utf8_slice_codeunits(values[0].expression, start - 1)
    length = constant(values, 2, int)
    if length < 0:
        raise ValueError("a length is 0 or more")
    stop = start - 1 + length
    return pc.utf8_slice_codeunits(values[0].expression, start - 1, stop)


def _left(values: Values) -> Any:
    count(values, 2, 2)
    return pc.utf8_slice_codeunits(values[0].expression, 0, constant(values, 1, int))


def _right(values: Values) -> Any:
    """The last characters; of a negative number all but so many of the first."""
    count(values, 2, 2)
    characters = constant(values, 1, int)
    if characters == 0:
        return pc.utf8_slice_codeunits(values[0].expression, 0, 0)
    return pc.utf8_slice_codeunits(values[0].expression, -characters)


def _trimmed(plainly: Callable[..., Any], of_characters: Callable[..., Any]) -> Function:
    def function(values: Values) -> Any:
        count(values, 1, 2)
        if len(values) == 1:
            return plainly(values[0].expression)
        return of_characters(values[0].expression, constant(values, 1, str))

    return function


def _padded(*, left: bool) -> Function:
    """To exactly so many characters: what is longer is cut."""

    def function(values: Values) -> Any:
        count(values, 3, 3)
        width, filling = max(constant(values, 1, int), 0), constant(values, 2, str)
        if not filling:
            raise ValueError("cannot fill up with nothing")
        row = (filling * width)[:width]

        def padded(given: str) -> str:
            filled: str = row[: max(width - len(given), 0)]
            return (filled + given if left else given + filled)[:width]

        return each_text(f"{'l' if left else 'r'}pad[{width}, {filling!r}]", padded, values[0])

    return function


def _digest(name: str) -> Function:
    return per_text(name, lambda given: hashlib.new(name, given.encode(), usedforsecurity=False).hexdigest())


def _translate(values: Values) -> Any:
    """Each character of the second text becomes the one at its place in the third, or goes if there is none."""
    count(values, 3, 3)
    given, wanted = constant(values, 1, str), constant(values, 2, str)
    table: dict[int, str | None] = {}
    for place, character in enumerate(given):
        table.setdefault(ord(character), wanted[place] if place < len(wanted) else None)
    return each_text(f"translate[{given!r}, {wanted!r}]", lambda value: value.translate(table), values[0])


def _character(values: Values) -> Any:
    count(values, 1, 1)

    def character(code: int) -> str:
        try:
            return chr(code)
        except (ValueError, OverflowError):
            raise pa.ArrowInvalid(f"{code} is no character") from None

    return each_distinct("chr", character, values[0].expression, values[0].type, pa.string())


def _repeat(values: Values) -> Any:
    count(values, 2, 2)
    times = pc.max_element_wise(values[1].expression, pc.scalar(0), skip_nulls=False)
    return pc.binary_repeat(values[0].expression, times)


def _replace(values: Values) -> Any:
    count(values, 3, 3)
    pattern, replacement = constant(values, 1, str), constant(values, 2, str)
    if not pattern:  # Arrow finds it for ever
        return values[0].expression
    return pc.replace_substring(values[0].expression, pattern, replacement)


def _position(values: Values) -> Any:
    """Characters, not bytes: one more than there are before the first place; 0 if there is none."""
    count(values, 2, 2)
    given, wanted = values[0].expression, constant(values, 1, str)
    one, none = (pc.scalar(pa.scalar(number, pa.int32())) for number in (1, 0))
    if not wanted:
        return pc.if_else(pc.is_valid(given), one, pc.scalar(None))
    before = pc.list_element(pc.split_pattern(given, wanted, max_splits=1), 0)
    return pc.if_else(pc.match_substring(given, wanted), pc.add(pc.utf8_length(before), one), none)


def _concat(values: Values) -> Any:
    """Nulls count as empty texts. (Arrow's ``skip`` leaves out the rows in which all are null.)"""
    texts = [cast_to(value, pa.string()).expression for value in values]
    return pc.binary_join_element_wise(*texts, "", null_handling="replace", null_replacement="")


def _concat_ws(values: Values) -> Any:
    """Texts that are not null, with a separator between them."""
    count(values, 2, 64)
    between = constant(values, 0, str)
    parts = [
        pc.binary_join_element_wise(pc.scalar(between), cast_to(value, pa.string()).expression, "")
        for value in values[1:]
    ]
    joined = pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="")
    return pc.utf8_slice_codeunits(joined, len(between))


# ---------------------------------------------------------------------- parts and patterns


def _split(values: Values) -> Any:
    count(values, 2, 2)
    between = constant(values, 1, str)
    if not between:
        raise ValueError("the separator is not empty")
    return pc.split_pattern(values[0].expression, between)


def _split_part(values: Values) -> Any:
    """A part by its position, from the end if that is negative; an empty text if there is none."""
    from .list_functions import list_item

    count(values, 3, 3)
    given, position = values[0].expression, constant(values, 2, int)
    empty = pc.if_else(pc.is_valid(given), pc.scalar(""), pc.scalar(pa.scalar(None, pa.string())))
    if position == 0:
        return empty
    part = list_item(_split(values[:2]), pa.list_(values[0].type), position - 1 if position > 0 else position)
    return pc.coalesce(part, empty)


def _pattern(values: Values, position: int, flags: int) -> tuple[str, str]:
    """A pattern (RE2's), with the letters of its options in front of it, and those letters."""
    pattern = constant(values, position, str)
    letters = constant(values, flags, str) if len(values) > flags else ""
    if not set(letters) <= set("gism"):
        raise ValueError(f"options of a pattern are g, i, s and m, not {letters!r}")
    inline = "".join(letter for letter in letters if letter != "g")
    return (f"(?{inline}){pattern}" if inline else pattern), letters


def _regexp_matches(values: Values) -> Any:
    count(values, 2, 3)
    return pc.match_substring_regex(values[0].expression, _pattern(values, 1, 2)[0])


def _regexp_full_match(values: Values) -> Any:
    count(values, 2, 3)
    return pc.match_substring_regex(values[0].expression, rf"\A(?:{_pattern(values, 1, 2)[0]})\z")


def _regexp_replace(values: Values) -> Any:
    """The first place, or with the option g all of them. A backslash and a digit stand for a group."""
    count(values, 3, 4)
    pattern, letters = _pattern(values, 1, 3)
    most = None if "g" in letters else 1
    return pc.replace_substring_regex(values[0].expression, pattern, constant(values, 2, str), max_replacements=most)


def _regexp_extract(values: Values) -> Any:
    """The whole match, or one of its groups; an empty text if there is none."""
    count(values, 2, 4)
    group = constant(values, 2, int) if len(values) > 2 else 0
    pattern, given = _only_group(_pattern(values, 1, 3)[0], group), values[0].expression
    found = pc.coalesce(pc.struct_field(pc.extract_regex(given, pattern), ["found"]), pc.scalar(""))
    return pc.if_else(pc.is_valid(given), found, pc.scalar(pa.scalar(None, pa.string())))


_GROUP_OR_NOT = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P?<\w+>|\((?!\?)", re.DOTALL)


def _only_group(pattern: str, wanted: int) -> str:
    """A pattern whose one group is called "found": Arrow wants a name for each."""
    if wanted == 0:
        wanted, pattern = 1, f"({pattern})"
    seen = 0

    def named(found: re.Match[str]) -> str:
        nonlocal seen
        if not found[0].startswith("("):
            return found[0]
        seen += 1
        return "(?P<found>" if seen == wanted else "(?:"

    changed = _GROUP_OR_NOT.sub(named, pattern)
    if not 0 < wanted <= seen:
        raise ValueError(f"the pattern has {seen} groups, not {wanted}")
    return changed


TEXT_FUNCTIONS: dict[str, Function] = {
    "lower": plain(pc.utf8_lower),
    "lcase": plain(pc.utf8_lower),
    "upper": plain(pc.utf8_upper),
    "ucase": plain(pc.utf8_upper),
    "reverse": plain(pc.utf8_reverse),
    "trim": _trimmed(pc.utf8_trim_whitespace, pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim_whitespace, pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim_whitespace, pc.utf8_rtrim),
    "substring": _substring,
    "substr": _substring,
    "left": _left,
    "right": _right,
    "lpad": _padded(left=True),
    "rpad": _padded(left=False),
    "repeat": _repeat,
    "replace": _replace,
    "translate": _translate,
    "strpos": _position,
    "instr": _position,
    "concat": _concat,
    "concat_ws": _concat_ws,
    "starts_with": with_text(pc.starts_with),
    "prefix": with_text(pc.starts_with),
    "ends_with": with_text(pc.ends_with),
    "suffix": with_text(pc.ends_with),
    "regexp_matches": _regexp_matches,
    "regexp_full_match": _regexp_full_match,
    "regexp_replace": _regexp_replace,
    "regexp_extract": _regexp_extract,
    "string_split": _split,
    "str_split": _split,
    "split": _split,
    "split_part": _split_part,
    "ascii": per_text("ascii", lambda given: ord(given[0]) if given else 0, pa.int32()),
    "unicode": per_text("unicode", lambda given: ord(given[0]) if given else -1, pa.int32()),
    "ord": per_text("unicode", lambda given: ord(given[0]) if given else -1, pa.int32()),
    "chr": _character,
    "md5": _digest("md5"),
    "sha1": _digest("sha1"),
    "sha256": _digest("sha256"),
}
