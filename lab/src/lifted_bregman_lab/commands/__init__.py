"""The commands that the lab adds to `lifted`; their modules are imported when they are called."""

from lifted_bregman.cli.commands import Command

BENCH = Command("lifted_bregman_lab.commands.bench:app", "Races against other methods, and studies of scale.")
REPRODUCE = Command("lifted_bregman_lab.commands.reproduce:reproduce", "Reproduce a paper, claim by claim.")
REPORT = Command("lifted_bregman_lab.commands.report:report", "Make the page of what is stored, without training.")
