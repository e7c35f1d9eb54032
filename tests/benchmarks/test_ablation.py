"""The ablation replaces the signals by those of back-propagation, and the page shows what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import ablation_signals
import torch
from ablation_signals import SOLVERS, BackPropagated
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch

DOCS = Path(__file__).parents[2] / "docs"
ALPHA = 0.1


class Recording(BackPropagated):
    """Keeps the gradient E_lᵀ [x_{l-1} 1]/m of every layer, all of them dense."""

    def _dense_move(self, layer, signal, system):
        rows = system.rows
        FOUND[layer] = {"weight": signal.E.t() @ rows.X / rows.total, "bias": signal.E.mean(0)}
        return super()._dense_move(layer, signal, system)


FOUND: dict[int, dict[str, torch.Tensor]] = {}


def test_back_propagated_signals_give_the_gradient_of_torch():
    """Of ½‖y - z_L‖² + α‖code‖₁, written with torch's own modules; every layer has another width and activation."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Softshrink(ALPHA))
    decoder = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
    model = nn.Sequential(*encoder, *decoder).double()
    X, Y = torch.randn(9, 6, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    code = encoder(X)
    value = (0.5 * (decoder(code) - Y).square().sum() + ALPHA * code.abs().sum()) / len(X)
    expected = torch.autograd.grad(value, list(model.parameters()))
    problem = lb.lift(model, loss=lb.SquaredError(), penalties={2: lb.penalties.L1(ALPHA)})
    batch, solver = Batch.whole(problem, X, Y), Recording()
    solver.step(problem, solver.init(problem, batch), batch)
    found = [FOUND[layer][name] for layer in (1, 2, 3, 4) for name in ("weight", "bias")]
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-14)


def test_the_variants_differ_from_the_default_in_one_part_each():
    default = lb.GramSweep()
    assert SOLVERS["lifted"] == default
    assert vars(SOLVERS["back-propagated"]) == vars(default)
    for name, setting in (("no metric", "damping"), ("no average", "average")):
        other = vars(SOLVERS[name])
        assert {key for key, value in vars(default).items() if other[key] != value} == {setting}


def test_the_page_has_the_stored_rows_of_the_ablation():
    stored = json.loads((DOCS / "figures" / "ablation_signals.json").read_text(encoding="utf-8"))["rows"]
    page = (DOCS / "speed.md").read_text(encoding="utf-8").splitlines()
    names = [problem.name for problem in ablation_signals.problems(quick=False)]
    assert [(row["problem"], row["solver"]) for row in stored] == [(name, kind) for name in names for kind in SOLVERS]
    for row in stored:
        assert ablation_signals.line(row) in page, ablation_signals.line(row)
