"""`deir evaluate --video FILE --overlay`: a film with the reward, step by step, drawn into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deir.agent import Agent
from deir.experiments.replay.cameras import FrameCamera
from deir.experiments.replay.recording import Recording, explained, record
from deir.runs.evaluate import fresh_envs, write_film
from deir.seeding import torch_generator

LONGEST_FILM = 5_000  # steps
LARGEST, NARROWEST = 640, 256  # pixels of a picture's longer side, and of its width
GROUND, INK, QUIET, LINE = (16, 18, 21), (236, 238, 240), (152, 161, 171), (42, 47, 54)
NOVEL, STALE, PAST, REWARD = (255, 138, 76), (120, 74, 50), (167, 139, 250), (81, 207, 102)
Frame = NDArray[np.uint8]


class Told(NamedTuple):
    """What is drawn into the frames of one episode of L steps."""

    intrinsic: NDArray[Any]  # [L]
    extrinsic: NDArray[Any]  # [L]
    nearest: list[int]  # [L] the earlier step that decided, -1 without one
    mean: float  # of raw rewards in training


def record_video(agent: Agent, path: Path, episodes: int = 3, greedy: bool = False, seed: int = 0) -> int:
    """The episodes that `runs.evaluate.record_video` films; returns the number of frames."""
    with fresh_envs(agent, 1, seed) as envs:
        camera = FrameCamera(envs, 1, LARGEST)
        generator = torch_generator(agent.config.seed, "evaluate", seed)
        played = record(agent, envs, camera, envs.reset(), generator, greedy, LONGEST_FILM, episodes)
    frames: list[Frame] = []
    nearest = _nearest(agent, played)
    for begin, end in episodes_of(played):
        told = Told(
            played.raw[begin:end, 0].numpy(),
            played.rollout.rewards[begin:end, 0].numpy(),
            [i - begin if i >= 0 else -1 for i in nearest[begin:end]],
            agent.reward.scale.average,
        )
        pictures = camera.pictures(0, begin, end, bool(played.rollout.starts[end, 0]))
        frames += [drawn(picture, told, t) for t, picture in enumerate(pictures)]
    write_film(path, frames)
    return len(frames)


def episodes_of(played: Recording) -> list[tuple[int, int]]:
    """First step and end of each episode of the first environment."""
    length = int(played.lengths[0])
    begins = played.rollout.starts[:length, 0].nonzero()[:, 0].tolist()
    ends = (played.rollout.dones & played.rollout.valid)[:length, 0].nonzero()[:, 0].tolist()
    return [(begin, next((e + 1 for e in ends if e >= begin), length)) for begin in begins]


def _nearest(agent: Agent, played: Recording) -> list[int]:
    """[T]"""
    compared = explained(agent, played.rollout, 0).compared
    return [-1] * len(played.raw) if compared is None else compared.nearest[:, 0].tolist()


def drawn(picture: Frame, told: Told, t: int) -> Frame:
    """The picture of step t with a panel below it, of even size as films need it."""
    from PIL import Image, ImageDraw, ImageFont

    times = -(-NARROWEST // picture.shape[1])  # the words below need room
    picture = picture.repeat(times, 0).repeat(times, 1)
    width = picture.shape[1] // 2 * 2
    unit = width / NARROWEST
    panel = round(60 * unit) // 2 * 2
    high = picture.shape[0] // 2 * 2
    image = Image.new("RGB", (width, high + panel), GROUND)
    image.paste(Image.fromarray(picture[:high, :width]), (0, 0))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=round(11 * unit))
    margin, top = 6 * unit, high + 5 * unit
    reward = float(told.intrinsic[t - 1]) if t else 0.0
    draw.text((margin, top), f"step {t}", fill=QUIET, font=font)
    draw.text(
        (margin + 52 * unit, top), f"novelty {reward:.3g}", fill=NOVEL if reward >= told.mean else QUIET, font=font
    )
    total = float(told.extrinsic[:t].sum())
    draw.text((width - margin, top), f"return {total:.2f}", fill=REWARD if total > 0 else QUIET, font=font, anchor="ra")
    _trace(draw, told, t, (margin, high + 22 * unit, width - margin, high + panel - 5 * unit), unit)
    return np.asarray(image, np.uint8)


def _trace(draw: Any, told: Told, t: int, box: tuple[float, float, float, float], unit: float) -> None:
    """Bars of the intrinsic reward up to step t, its mean in training, and the earlier step that t was nearest to."""
    left, top, right, bottom = box
    steps = len(told.intrinsic)
    step, most = (right - left) / (steps + 1), max(float(told.intrinsic.max()), told.mean, 1e-9)
    draw.line((left, bottom, right, bottom), fill=LINE)
    level = bottom - (bottom - top) * max(0.0, told.mean) / most
    draw.line((left, level, right, level), fill=LINE)
    past = told.nearest[t - 1] if t else -1
    if past >= 0:
        x = left + (past + 0.5) * step
        draw.line((x, top, x, bottom), fill=PAST, width=max(1, round(unit)))
    for i in range(t):
        x, value = left + (i + 1) * step, max(0.0, float(told.intrinsic[i]))
        high = (bottom - top) * value / most
        fill = NOVEL if value >= told.mean else STALE
        if high >= 1:
            draw.rectangle((x, bottom - high, x + max(1.0, step - 1), bottom), fill=fill)
        if told.extrinsic[i] > 0:
            draw.rectangle((x, top, x + max(2.0, step - 1), bottom), fill=REWARD)
    x = left + (t + 0.5) * step
    draw.line((x, top, x, bottom), fill=INK, width=max(1, round(unit)))
