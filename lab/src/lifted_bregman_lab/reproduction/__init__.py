"""Reproductions: a paper's recipes are run, their rows stored, and its claims judged by what is stored.

Papers come from packages with an entry point in the group `lifted_bregman.papers`.
"""

from lifted_bregman_lab.reproduction.claims import (
    All,
    Between,
    Claim,
    Counted,
    Less,
    Near,
    NotApplicable,
    Quoted,
    Rule,
    Status,
    Verdict,
)
from lifted_bregman_lab.reproduction.paper import Cause, Paper, Reading, choose_paper, find_papers
from lifted_bregman_lab.reproduction.recipe import Job, Priority, Recipe
from lifted_bregman_lab.reproduction.running import Deadline, JobState, Places, plan, state_of, work_through
from lifted_bregman_lab.reproduction.store import Evidence, RecipeRun, ResultStore, read_run

__all__ = [
    "All",
    "Between",
    "Cause",
    "Claim",
    "Counted",
    "Deadline",
    "Evidence",
    "Job",
    "JobState",
    "Less",
    "Near",
    "NotApplicable",
    "Paper",
    "Places",
    "Priority",
    "Quoted",
    "Reading",
    "Recipe",
    "RecipeRun",
    "ResultStore",
    "Rule",
    "Status",
    "Verdict",
    "choose_paper",
    "find_papers",
    "plan",
    "read_run",
    "state_of",
    "work_through",
]
