"""Missions as numbers: the first words, each a one-hot vector over the words MiniGrid and BabyAI use."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from deir.envs.layout import Convert

LENGTH = 32  # words that are read; nearly all missions are shorter
_WORDS = """
a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key lava
left matching must near next object of on open opening pick purple put reach red right room rooms square the then to
traverse unlock up use yellow you your
"""
VOCABULARY = _WORDS.split()
_NUMBERS = {word: number for number, word in enumerate(VOCABULARY, start=1)}  # 0: any other word
_WIDTH = len(VOCABULARY) + 1


def encode(missions: NDArray[Any]) -> NDArray[np.uint8]:
    """[N] texts -> [N, LENGTH * words known]; a shorter mission ends in zeros."""
    codes = np.zeros((len(missions), LENGTH, _WIDTH), np.uint8)
    for row, mission in zip(codes, missions.tolist(), strict=True):
        numbers = [_NUMBERS.get(word, 0) for word in re.findall(r"\w+", mission.lower())[:LENGTH]]
        row[np.arange(len(numbers)), numbers] = 1
    return codes.reshape(len(missions), -1)


MISSIONS: dict[str, tuple[Box, Convert]] = {"mission": (Box(0, 1, (LENGTH * _WIDTH,), np.uint8), encode)}
