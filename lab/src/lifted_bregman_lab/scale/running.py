"""The measurements in sequence, each in two new workers and stored when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from lifted_bregman._arguments import positive, whole
from lifted_bregman.experiments.environment import environment, load_average
from lifted_bregman.training.workers import call_in_workers
from lifted_bregman_lab.scale import target
from lifted_bregman_lab.scale.cases import Case
from lifted_bregman_lab.scale.measuring import MeasureCase, MeasureLinks
from lifted_bregman_lab.scale.results import Measured, ScaleStudy
from lifted_bregman_lab.watching import Watch

SIZES = tuple(4**power for power in range(1, 13))
"""Bytes of the messages that are timed alone."""


@dataclass(frozen=True)
class ScaleSettings:
    """Numbers of rounds and repetitions, and the length of turns.

    rounds       >= 1; each has every turn once
    seconds      > 0, of a turn
    links        whether messages alone are timed
    repetitions  >= 0, of the time to a target, each with its own seed
    data_dir     a folder with the samples of the time to a target; None for the cache
    """

    rounds: int = 7
    seconds: float = 0.3
    links: bool = True
    repetitions: int = 3
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        whole(self.rounds, "rounds")
        whole(self.repetitions, "repetitions", least=0)
        positive(self.seconds, "seconds")


def run_scale(
    cases: Sequence[Case],
    settings: ScaleSettings,
    watch: Watch = lambda what, part: None,
    *,
    stored: ScaleStudy | None = None,
    keep: Callable[[ScaleStudy], None] = lambda scale: None,
    samples: tuple[Tensor, Tensor] | None = None,
) -> ScaleStudy:
    """Measure what `stored` lacks, and call `keep` after each measurement.

    samples  of the time to a target; loaded if None
    """
    scale = stored or ScaleStudy(environment(), load_average(), settings.rounds)
    missing = [case for case in cases if scale.of(case) is None]
    links = settings.links and scale.links is None
    wanted = missing_arrivals(scale, settings.repetitions)
    total, done = len(missing) + links + len(wanted), 0

    def next_one(what: str) -> None:
        nonlocal done
        watch(what, done / total)
        done += 1

    for case in missing:
        next_one(case.name)
        call = MeasureCase(case, settings.rounds, settings.seconds)
        found = call_in_workers(call, case.parallel, terminate=True, threads=1)
        scale = replace(scale, measured=[*scale.measured, Measured(case, **found)])
        keep(scale)
    if links:
        next_one("messages alone")
        messages = MeasureLinks(SIZES, settings.rounds)
        found = call_in_workers(messages, messages.parallel, terminate=True, threads=1)
        scale = replace(scale, links=found)
        keep(scale)
    if wanted and samples is None:
        samples = target.samples_of(settings.data_dir)
    for name, seed in wanted:
        assert samples is not None
        next_one(f"{name}, seed {seed}")
        scale = replace(scale, arrivals=[*scale.arrivals, target.approach(name, samples, seed)])
        keep(scale)
    return scale


def missing_arrivals(scale: ScaleStudy, repetitions: int) -> list[tuple[str, int]]:
    """Return competitor and seed of the missing runs to the target."""
    came = [arrival.name for arrival in scale.arrivals]
    return [(name, seed) for seed in range(repetitions) for name in target.COMPETITORS if seed >= came.count(name)]
