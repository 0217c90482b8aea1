"""Numbers of frames as people write them."""

from __future__ import annotations

from typing import Annotated

import tyro

from deir.errors import invalid

_SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9}


def parse_count(text: str | int) -> int:
    """'200k' -> 200000, '2M' -> 2000000, '1e6' -> 1000000."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    try:
        raw = str(text).strip().lower().replace("_", "").replace(",", "")
        scale = _SUFFIXES.get(raw[-1:], 1)
        value = float(raw[:-1] if scale > 1 else raw) * scale
    except (ValueError, RecursionError):
        raise invalid("steps", text, "a number of frames such as 200000, 200k or 2M") from None
    if not value.is_integer() or value < 1:
        raise invalid("steps", text, "a whole number of frames above 0, such as 200k")
    return int(value)


Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FRAMES",
        instance_from_str=lambda args: parse_count(args[0]),
        is_instance=lambda x: isinstance(x, int),
        str_from_instance=lambda x: [str(x)],
    ),
]
