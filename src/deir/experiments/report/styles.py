"""One colour and one dash for each method, the same in every figure; told apart by colour-blind readers too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

EMPHASISED = "deir"
# Okabe and Ito (2008), and Tol's muted scheme for the ablations
_KNOWN = {
    "deir": "#D55E00",
    "noveld": "#0072B2",
    "ngu": "#009E73",
    "rnd": "#CC79A7",
    "icm": "#E69F00",
    "none": "#7A7A7A",
    "count": "#56B4E9",
    "deir+rnd": "#AA4499",
    "deir-no-mi": "#44AA99",
    "deir-no-rnn-no-mi": "#999933",
    "deir-inverse": "#6677CC",
    "deir-forward": "#CC6677",
    "etd": "#332288",
    "e3b": "#117733",
    "ride": "#882255",
    "re3": "#88CCEE",
    "disagreement": "#DDAA33",
    "pseudo-counts": "#004488",
    "deir+visits": "#BB5566",
}
_BASELINES = 6  # the first of them, with solid lines
_DASHES = ("dash", "dot", "dashdot", "longdash")
_MATPLOTLIB_DASHES = {
    "solid": "solid",
    "dash": (0, (5, 2)),
    "dot": (0, (1.2, 1.6)),
    "dashdot": (0, (5, 1.6, 1.2, 1.6)),
    "longdash": (0, (9, 2.5)),
}


@dataclass(frozen=True)
class Style:
    color: str
    dash: str  # plotly's name
    emphasised: bool

    @property
    def width(self) -> float:
        return 2.6 if self.emphasised else 1.6

    @property
    def linestyle(self) -> object:
        return _MATPLOTLIB_DASHES[self.dash]

    @property
    def dark(self) -> str:
        """The colour on a dark ground: a quarter of the way to white."""
        channels = (int(self.color[i : i + 2], 16) for i in (1, 3, 5))
        return "#" + "".join(f"{round(c + (255 - c) * 0.25):02X}" for c in channels)


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """Known methods have their own look; other labels take the free colours in order, each with the next dash."""
    methods = list(methods)
    free = [color for name, color in _KNOWN.items() if name not in methods] or list(_KNOWN.values())
    found: dict[str, Style] = {}
    strangers = 0
    for name in methods:
        if name in _KNOWN:
            color, number = _KNOWN[name], list(_KNOWN).index(name) - _BASELINES
        else:
            color, number, strangers = free[strangers % len(free)], strangers, strangers + 1
        dash = _DASHES[number % len(_DASHES)] if number >= 0 else "solid"
        found[name] = Style(color, dash, name == EMPHASISED)
    return found
