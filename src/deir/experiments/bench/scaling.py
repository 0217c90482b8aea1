"""What a second core gives: each pair with one thread and with all, and the ratio of their speeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ONE_THREAD = "one thread"


def with_one_thread(overrides: dict[str, Any], threads: int) -> dict[str, Any] | None:
    """The same pair with one thread; None where it has no more anyway."""
    return {**overrides, "threads": 1} if min(threads, overrides.get("threads") or threads) > 1 else None


def add_both(
    add: Callable[..., None], kind: str, overrides: dict[str, Any], threads: int, *settings: Any, **labels: Any
) -> None:
    """Has a pair measured with all threads, and right after it with one."""
    add(kind, "measure", overrides, *settings, **labels)
    alone = with_one_thread(overrides, threads)
    if alone is not None:
        add(ONE_THREAD, "measure", alone, *settings, **labels)


def ratios(results: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each pair that was measured with both: its figures with all threads, and with one."""
    return [
        (figures, after)
        for figures, after in zip(results[:-1], results[1:], strict=True)
        if figures["kind"] in ("pair", "variant") and after["kind"] == ONE_THREAD
    ]


def lines(results: list[dict[str, Any]], threads: int, names: list[str]) -> list[str]:
    """One line for each pair, for people; names: of the results, in their order.

    A virtual machine's cores are not always cores: its matrix products, measured beside the pair, tell what a second
    one was worth at that moment.
    """
    named = dict(zip(map(id, results), names, strict=True))
    return [
        f"  {named[id(both)]}: {one['fps']:,.0f} frames/s with one thread, {both['fps']:,.0f} with {threads}: "
        f"{both['fps'] / one['fps']:.2f} times (matrix products {both['peak_gflops'] / one['peak_gflops']:.2f} times)"
        for both, one in ratios(results)
    ]
