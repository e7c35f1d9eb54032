"""The README's tables as Markdown: what can be trained, how fast, and how good on new samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lifted_bregman_lab.denoising.results import DenoisingStudy, read_denoising
from lifted_bregman_lab.detection.results import Detections, read_detections
from lifted_bregman_lab.detection.summary import ranked
from lifted_bregman_lab.estimators.results import Comparison, read_comparison
from lifted_bregman_lab.estimators.summary import mean_ranks
from lifted_bregman_lab.front.compared import NETWORKS, Compared
from lifted_bregman_lab.race.opponents import OURS, REFERENCE
from lifted_bregman_lab.race.problems import BUDGETS, Budget
from lifted_bregman_lab.race.store import Store, final
from lifted_bregman_lab.text import Rows, markdown

NAMES = {OURS: "lifted", REFERENCE: "AdamW", "adam": "Adam", "muon": "Muon", "schedule-free": "schedule-free AdamW"}
"""What readers call the opponents, in the order of the columns."""
RIVALS = tuple(name for name in NAMES if name != OURS)
UNBROKEN = "\u2011"
"""A hyphen at which no line is broken."""


@dataclass(frozen=True)
class FrontEvidence:
    """What the tables are made from.

    Args:
        races: by budget, those that have rows.
        denoising: unfolded denoisers.
        detection: abnormal samples.
        estimators: those of scikit-learn.
    """

    races: dict[Budget, Compared]
    denoising: DenoisingStudy
    detection: Detections
    estimators: Comparison

    @staticmethod
    def read(docs: Path) -> FrontEvidence:
        """The rows in the folder of the documentation."""
        rows = list(Store.open(docs / "races" / "rows.jsonl").rows.values())
        races = {budget: Compared(rows, budget) for budget in BUDGETS}
        figures = docs / "figures"
        return FrontEvidence(
            {budget: race for budget, race in races.items() if race.problems},
            read_denoising(figures / "denoising.json"),
            read_detections(figures / "detection.json"),
            read_comparison(figures / "estimators.json"),
        )


@dataclass(frozen=True)
class Kind:
    """A line of the table of what can be trained.

    Args:
        network: for readers.
        lifted: what becomes variables.
        example: a page or program, from the root of the repository.
        measured: what stored rows say of it on new samples.
    """

    network: str
    lifted: str
    example: str
    measured: Callable[[FrontEvidence], str] = lambda evidence: ""


def _wrong(problem: str) -> Callable[[FrontEvidence], str]:
    return _raced(problem, lambda error: f"{100 * error:.1f} %", "wrong on")


def _raced(problem: str, form: Callable[[float], str], noun: str) -> Callable[[FrontEvidence], str]:
    """The median error over seeds of lifted and of AdamW, in the longest races that both have."""

    def measured(evidence: FrontEvidence) -> str:
        for race in reversed(evidence.races.values()):
            runs = [race.runs("error", problem, name) for name in (OURS, REFERENCE)]
            if all(runs):
                ours, other = (form(median(final(row, "error") for row in own)) for own in runs)
                alone = " (1 seed)" if len(runs[0]) == 1 else ""
                return f"{noun} {ours}; AdamW {other}{alone}"
        return ""

    return measured


def _denoised(evidence: FrontEvidence) -> str:
    decibels = {row.arm: row.mean for row in evidence.denoising.rows}
    return f"PSNR {decibels['lifted sweep']:.2f} dB; back-propagation {decibels['back-propagation']:.2f}"


def _estimated(evidence: FrontEvidence) -> str:
    ranks = dict(mean_ranks(evidence.estimators))
    return f"rank {ranks.pop('lifted'):.2f} of 3 on average; " + ", ".join(f"{n} {r:.2f}" for n, r in ranks.items())


def _detected(evidence: FrontEvidence) -> str:
    ranks = dict(ranked(evidence.detection))
    own, best = ranks.pop("lifted"), min(ranks, key=lambda name: ranks[name])
    return f"rank {own:.2f} of {len(ranks) + 1} on average; {best} {ranks[best]:.2f}"


_GALLERY = "docs/gallery"
TRAINED = (
    Kind("dense classifiers", "every activation", f"{_GALLERY}/train_a_sequential.py", _wrong("fashion-classify")),
    Kind("20 dense layers", "every activation", "docs/race.md", _wrong("deep-narrow")),
    Kind(
        "autoencoders with sparse codes", "ReLU, soft threshold", f"{_GALLERY}/sparse_codes.py",
        _raced("fashion-10k", lambda error: f"{1000 * error:.1f}", "squared error x 1000:"),
    ),
    Kind("convolutional networks", "every activation", "docs/can-i-lift-my-model.md", _wrong("cifar-cnn")),
    Kind(
        "residual networks, batch normalisation", "every activation", f"{_GALLERY}/residual_network.py",
        _wrong("cifar-resnet"),
    ),
    Kind("U-Nets", "every activation", f"{_GALLERY}/unet_denoiser.py"),
    Kind(
        "GPTs", "softmax of attention, Φ of GELU", f"{_GALLERY}/small_gpt.py",
        _raced("shakespeare", lambda error: f"{error:.2f}", "nats per character:"),
    ),
    Kind("RNN, LSTM, GRU", "tanh and sigmoid of every step", "docs/can-i-lift-my-model.md"),
    Kind("unfolded denoisers", "projections", f"{_GALLERY}/unfolded_denoiser.py", _denoised),
    Kind("detectors of abnormal samples", "every activation", f"{_GALLERY}/detect_abnormal_samples.py", _detected),
    Kind("estimators for scikit-learn", "every activation", f"{_GALLERY}/scikit_learn_pipeline.py", _estimated),
)  # fmt: skip


def trained_rows(evidence: FrontEvidence) -> Rows:
    """What can be trained, and what stored rows say of it."""
    lines: list[tuple[str, ...]] = [
        (f"[{one.network}]({one.example})", one.lifted, one.measured(evidence) or "tested, not raced")
        for one in TRAINED
    ]
    return ("network", "lifted", "on new samples"), lines


def speed_rows(evidence: FrontEvidence) -> Rows:
    """The time of a step of ours and of others, and our time to AdamW's last training loss; AdamW's time is 1."""
    timed = (OURS, "muon", "schedule-free")
    lines = []
    for title, problems in _raced_networks(evidence):
        steps = []
        for name in timed:
            found = (race.step(problems, name) for race in evidence.races.values())
            steps.append(next((spread.text() for spread in found if spread.values), "-"))
        reached = (race.time_to_reference(problems).text() for race in evidence.races.values())
        lines.append((title, *steps, *reached))
    header = ("networks", *(f"a step of {NAMES[name]}" for name in timed))
    return (*header, *(f"lifted to AdamW's last loss, {budget} runs" for budget in evidence.races)), lines


def new_sample_rows(evidence: FrontEvidence) -> Rows:
    """Our error on new samples over that of each opponent, with the problems won, tied and lost."""
    columns = [(budget, name) for name in RIVALS for budget in evidence.races if _raced_by(evidence, budget, name)]
    lines = []
    for title, problems in _raced_networks(evidence):
        cells = []
        for budget, name in columns:
            race = evidence.races[budget]
            ratios, counts = race.error(problems, name).values, race.verdicts(problems, name)
            cells.append(f"{median(ratios):.2f} ({UNBROKEN.join(map(str, counts))})" if ratios else "-")
        lines.append((title, *cells))
    return ("networks", *(f"{NAMES[name]}, {budget} runs" for budget, name in columns)), lines


def _raced_networks(evidence: FrontEvidence) -> list[tuple[str, tuple[str, ...]]]:
    """The lines of `NETWORKS` that have races, with the number of their problems that have."""
    there = {name for race in evidence.races.values() for name in race.problems}
    found = ((title, tuple(name for name in problems if name in there)) for title, problems in NETWORKS.items())
    return [(f"{title} ({len(own)})" if len(own) > 1 else title, own) for title, own in found if own]


def _raced_by(evidence: FrontEvidence, budget: Budget, name: str) -> bool:
    race = evidence.races[budget]
    return bool(race.error(race.problems, name).values)


def opening(evidence: FrontEvidence) -> str:
    """Against AdamW with its best rate: on how many problems ours is better, equal or worse on new samples."""
    parts = []
    for budget, race in evidence.races.items():
        lower, equal, higher = race.verdicts(race.problems, REFERENCE)
        total = lower + equal + higher
        parts.append(f"in {budget} runs lower on {lower} of {total} problems, equal on {equal}, higher on {higher}")
    return (
        "Nothing is tuned for lifted training; AdamW has the best rate of a grid for each problem. The error of lifted "
        f"training on new samples is {'; '.join(parts)}. A difference counts from 3.09 standard errors on."
    )


def blocks(evidence: FrontEvidence) -> dict[str, str]:
    """The text of each block of the README, by name."""
    return {
        "verdict": opening(evidence),
        "what you can train": markdown(trained_rows(evidence)),
        "how fast": markdown(speed_rows(evidence)),
        "how good": markdown(new_sample_rows(evidence)),
    }
