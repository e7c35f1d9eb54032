"""The race: lifted training against back-propagation on the same problems, from the same weights, by the clock."""

from lifted_bregman_lab.race.competitors import COMPETITORS, Competitor, choose_competitors
from lifted_bregman_lab.race.problems import PROBLEMS, RaceProblem, choose_problems, quick_problems
from lifted_bregman_lab.race.rates import Choice, Rates, read_rates
from lifted_bregman_lab.race.results import Race, Repetition, RunRecord, read_race, write_race
from lifted_bregman_lab.race.running import RaceSettings, run_race
from lifted_bregman_lab.race.tuning import TuneSettings, tune

__all__ = [
    "COMPETITORS",
    "PROBLEMS",
    "Choice",
    "Competitor",
    "Race",
    "RaceProblem",
    "RaceSettings",
    "Rates",
    "Repetition",
    "RunRecord",
    "TuneSettings",
    "choose_competitors",
    "choose_problems",
    "quick_problems",
    "read_race",
    "read_rates",
    "run_race",
    "tune",
    "write_race",
]
