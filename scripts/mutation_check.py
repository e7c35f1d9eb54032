"""Proves the test suite: each named one-line mutation of the library must make it fail.

    python scripts/mutation_check.py [--workers 2] [NAME ...]

Each worker has a copy of the tree in a temporary directory.  One mutation at a time is applied to a copy, and the tests
named beside it are run there; without the mutation too, since a test that fails anyway proves nothing.  A mutation is
caught when they fail: those of every day, or else the long ones.  The score is printed at the end, and the exit code is
1 unless all are caught.  With names, only those mutations are tried.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "src/lifted_bregman/"
LAB = "lab/src/lifted_bregman_lab/"


@dataclass(frozen=True)
class Mutation:
    """Replace the only occurrence of `old` in `file` by `new`; `tests` must then fail.

    file  of the library, or of the lab where it begins with `LAB`
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    def path(self, tree: Path) -> Path:
        """The file in a copy of the repository."""
        return tree / (self.file if self.file.startswith(LAB) else LIBRARY + self.file)


PIECEWISE, SMOOTH, EXPONENTIAL = ("activations/piecewise.py", "activations/smooth.py", "activations/exponential.py")
SIMPLEX, VECTORS, BASE = ("activations/simplex.py", "activations/vectors.py", "activations/base.py")
LIFTED, ENERGIES, DENSE = ("problem/lifted.py", "problem/energies.py", "maps/dense.py")
THEOREM, FORMS, ACCURACY = (
    "tests/activations/test_theorem.py",
    "tests/activations/test_closed_forms.py",
    "tests/activations/test_prox_accuracy.py",
)
JOINT, LOSSES, GRADIENTS = ("tests/activations/test_joint.py", "tests/losses", "tests/problem/test_block_gradients.py")
OWN_JOINT = "tests/activations/test_own_joint.py"
LOOP, GUARD, RESUME = "solvers/loop.py", "solvers/divergence.py", "tests/training/test_resume.py"
GRAM_SIGNAL, TOP_DOWN, GRAM_MOVES = "solvers/gram/signal.py", "solvers/gram/top_down.py", "solvers/gram/moves.py"
STREAMS, STREAM_TESTS = "data/streams.py", "tests/training/test_streams.py -k "
MISTAKEN_STREAMS = "tests/training/test_stream_mistakes.py -k "
GRAM_RULE, GRAM_TESTS = "solvers/gram/rule.py", "tests/solvers/test_gram_rule.py"
CURVATURE, CHOLESKY = "problem/curvature.py", "_linalg/cholesky.py"
SHARD, TEAM, AGREEMENT = (
    "distributed/process_shard.py",
    "distributed/process_team.py",
    "distributed/process_agreement.py",
)
IN_PARTS, SETTINGS, SENT, QUANTITIES, ENDINGS = (
    "tests/distributed/test_data_parallel.py -k ",
    "tests/distributed/test_data_parallel_settings.py -k ",
    "tests/distributed/test_messages.py -k ",
    "tests/distributed/test_shard.py -k ",
    "tests/distributed/test_agreement.py -k ",
)
BORDER, PROCESS_BORDER, BALANCE, BY_TERM = (
    "problem/border.py",
    "distributed/process_border.py",
    "distributed/balance.py",
    "solvers/_by_term.py",
)
PIPELINE, ROUND, WORKERS = (
    "solvers/pipelined_sweep.py",
    "solvers/asynchronous_round.py",
    "distributed/process_workers.py",
)
IN_LAYERS, FIT_LAYERS, BORDERS, PIPELINED = (
    "tests/distributed/test_layer_parallel.py -k ",
    "tests/distributed/test_fit_layers.py -k ",
    "tests/distributed/test_border.py -k ",
    "tests/solvers/test_pipelined_sweep.py -k ",
)
SCHEDULES, BACKPROP = "tests/solvers/test_schedules.py -k ", "tests/solvers/test_baselines_backprop.py -k "
PIAG, IN_PROCESSES = "tests/solvers/test_asynchronous_piag.py -k ", "tests/distributed/test_asynchronous.py -k "
CALLBACKS = "tests/distributed/test_callback_errors.py -k raised_by_all"
SYSTEMS, SPECTRAL = "tests/linalg/test_cholesky.py", "tests/linalg/test_spectral.py"
SWEEP = "tests/solvers/test_gram_sweep.py"
SIGNALS = "tests/solvers/test_gram_signal.py"
OPTIM = "tests/optim/test_gram.py -k "
GRAM_FAULTS = "tests/solvers/test_gram_sweep_faults.py"
ENERGY, PROBLEM, DESCENT = "tests/problem/test_energy.py", "tests/problem", "tests/solvers/test_proximal_gradient.py"
CHAIN, PLANE, PRIMAL_DUAL = "penalties/_chain.py", "penalties/plane.py", "tasks/primal_dual.py"
UNFOLDED, UNFOLDED_TESTS = "models/unfolded.py", "tests/models/test_unfolded.py -k "
VARIATION, INVERSION = "tests/problem/test_total_variation.py", "tests/tasks/test_inversion.py"

MUTATIONS = [
    Mutation("relu: drop the ½ of the conjugate", PIECEWISE, "return 0.5 * z.relu().square()", "return z.relu().square()", FORMS),
    Mutation("relu: wrong sign of z in the divergence", PIECEWISE, "return x * (-z).relu_()", "return x * z.relu()", THEOREM),
    Mutation("piecewise: drop the ½ of the square", PIECEWISE, ".square_().mul_(0.5)", ".square_()", THEOREM),
    Mutation("leaky relu: scale ignored", PIECEWISE, "1.0 / (1.0 + scale * self._excess)", "self.slope", ACCURACY),
    Mutation("box: divergence loses its factor", PIECEWISE, "return ((z - u) * (x - u)).abs_()", "return (x - u).abs()", THEOREM),
    Mutation("soft threshold: scale ignored", PIECEWISE, "return shrink(z, self.threshold, scale)\n", "return shrink(z, self.threshold, 1.0)\n", ACCURACY),
    Mutation("soft threshold: low digits of the threshold lost", PIECEWISE, "if middle != 0.0:", "if False:", ACCURACY),
    Mutation("tanh family: prox_Ψ where prox_{cΨ} belongs", SMOOTH, "s = solve_concave(self, z.abs().double(), scale, z.dtype)", "s = z.abs().double()", ACCURACY),
    Mutation("tanh family: odd symmetry lost", SMOOTH, "return self.compute_map(s).to(z.dtype).copysign_(z)", "return self.compute_map(s).to(z.dtype)", ACCURACY),
    Mutation("tanh: potential without -½x²", SMOOTH, "return (torch.where(y.abs() < 0.5, inner, outer) - 0.5 * y * y)", "return (torch.where(y.abs() < 0.5, inner, outer))", FORMS),
    Mutation("tanh: cancellation in x - tanh x", "activations/_gaps.py", "torch.where(x < 1.0, near * fraction / (1.0 + fraction), x - x.tanh())", "x - x.tanh()", ACCURACY),
    Mutation("softsign: wrong root of the quadratic", SMOOTH, "alpha=4.0 * scale", "alpha=4.0", ACCURACY),
    Mutation("softsign: saturates onto the open end", SMOOTH, "return F.softsign(z).clamp_(-end, end)", "return F.softsign(z)", FORMS),
    Mutation("sigmoid: no compensated last step", EXPONENTIAL, "if z.dtype == torch.float64:\n            complement", "if False:\n            complement", ACCURACY),
    Mutation("sigmoid: underflow of the tail", EXPONENTIAL, "return torch.where(z < lowest, z.clamp(max=lowest).exp(), z.sigmoid())", "return z.sigmoid()", ACCURACY),
    Mutation("softplus: switch of the dilogarithm misplaced", EXPONENTIAL, "_SIXTH_PI_SQUARE + 0.5 * y * y - below", "0.5 * y * y - below", FORMS),
    Mutation("elu: alpha forgotten", EXPONENTIAL, "t.neg_().expm1_().mul_(self.alpha)", "t.neg_().expm1_()", ACCURACY),
    Mutation("softmax: prox ignores its scale", SIMPLEX, "a = (1.0 - scale) / scale", "a = 0.0", JOINT),
    Mutation("softmax: safeguard loses the multiplier's slope", SIMPLEX, "step = excess / (u / (1.0 + a * u)).sum(-1, keepdim=True)", "step = excess", JOINT),
    Mutation("sparsemax: sums to 2", SIMPLEX, "threshold = ((shifted * support).sum(-1, keepdim=True) - 1.0) / count", "threshold = ((shifted * support).sum(-1, keepdim=True) - 2.0) / count", JOINT),
    Mutation("group: threshold not scaled", VECTORS, "exact = (Fraction(self.threshold) * Fraction(scale)) ** 2", "exact = Fraction(self.threshold) ** 2", JOINT),
    Mutation("ball: drop the ½ of the conjugate", VECTORS, "inside * (norm - 0.5 * inside)", "inside * (norm - inside)", FORMS),
    Mutation("Bregman loss: lower bound not enforced", BASE, "value = torch.maximum(definition, 0.5 * (x_ - u).square())", "value = definition", THEOREM),
    Mutation("Bregman loss: wrong sign of <x, z>", BASE, "self._phi_star(z_) - x_ * z_", "self._phi_star(z_) + x_ * z_", THEOREM),
    Mutation("cut: two terms compute one value", "graph/cut.py", "several = len(readers) > 1 and not _is_repeated(node, facts, streams)", "several = False", "tests/graph/test_graphs.py"),
    Mutation("cut: two maps with parameters in one term", "graph/cut.py", "(node in facts.parametric and followed[node] and not _is_tuple(node))", "False", "tests/graph/test_graphs.py -k cut"),
    Mutation("attention: different inputs projected as one", "graph/attention.py", "packed = query is key and key is value and", "packed =", "tests/graph/test_graphs.py -k self_attention"),
    Mutation("build: F.linear loses its bias", "graph/build.py", "        module.bias = bias", "        module.bias = nn.Parameter(0.0 * bias)", "tests/graph/test_graphs.py -k f_linear"),
    Mutation("trace: the batch size of the trace is kept", "graph/agree.py", "return BatchSize(multiple), None", "return a, None", "tests/graph/test_graphs.py"),
    Mutation("trace: dropout does not follow its module", "graph/agree.py", "            return Mode(), None", "            return a, None", "tests/maps/test_traced.py"),
    Mutation("prepare: a tensor changed in place is read", "graph/prepare.py", "        if later:", "        if False:", "tests/graph/test_refusals.py"),
    Mutation("verify: coupled samples not seen", "graph/verify.py", "if not nearly_equal(together[number][:1], alone[number]):", "if False:", "tests/graph/test_refusals.py"),
    Mutation("traced: curvature of the first input only", "maps/_jacobians.py", "x if i == which else t", "x if i == 0 else t", "tests/maps/test_traced.py"),
    Mutation("sites: variance of a frozen batch is the unbiased one", "maps/sites.py", "variance * ((count - 1) / count)", "variance", "tests/maps/test_traced.py"),
    Mutation("maps: training mode during a run not seen", "maps/traced.py", "for path, module in self._changing:", "for path, module in ():", "tests/graph/test_modes.py -k during_a_run"),
    Mutation("maps: training mode after lift not seen", "problem/data_checks.py", "        require_pure(self._network.model)\n", "", "tests/graph/test_modes.py -k after_lift"),
    Mutation("maps: a call on one sample not compared", "maps/determinism.py", "if not nearly_equal(first[:1], alone):", "if False:", "tests/graph/test_modes.py -k hides"),
    Mutation("FromScalar: a jump taken for a slope", "activations/custom.py", ">= 0.5 * excess:", ">= 2.0 * excess:", "tests/activations/test_custom.py -k counter_example"),
    Mutation("joint: drop the ½ of the conjugate", BASE, "(u * (z_ - 0.5 * u)).sum(-1)", "(u * (z_ - u)).sum(-1)", OWN_JOINT),
    Mutation("joint: the divergence without Ψ(u)", BASE, "psi - self.compute_potential(u) - ", "psi - ", OWN_JOINT),
    Mutation("joint: infinity in the domain", BASE, "x.isfinite().all(-1) & self", "self", OWN_JOINT),
    Mutation("composite: a registered rule for the parent's class wins", "penalties/registry.py", "_RULES[min(fitting", "_RULES[max(fitting", "tests/problem/test_own_penalty.py -k most_special"),
    Mutation("composite: identity and penalty without the penalty's scale", "problem/composite.py", "return penalty.prox(activation.prox(v, a), b)", "return penalty.prox(activation.prox(v, a), 1.0)", "tests/problem/test_own_penalty.py -k identity"),
    Mutation("Bregman loss: gradient x - σ(z)", "losses/bregman.py", "(ctx.activation(z) - x), None", "(x - ctx.activation(z)), None", LOSSES),
    Mutation("Bregman loss: gradient forgets what comes from above", "losses/bregman.py", "gradients[0].unsqueeze(-1) * ", "", LOSSES),
    Mutation("loss: mean over samples becomes a sum", "losses/_targets.py", "values.mean() if reduction", "values.sum() if reduction", LOSSES),
    Mutation("loss: targets outside the domain let through", "losses/_targets.py", "lambda rows: ~activation.contains(rows)", "lambda rows: rows.isnan().any(-1)", LOSSES),
    Mutation("dense: forget the bias", DENSE, "self.module.weight, self.module.bias)", "self.module.weight)", PROBLEM),
    Mutation("dense: bias gradient not scaled", DENSE, "pulled[\"bias\"] = d.sum(0).mul_(scale)", "pulled[\"bias\"] = d.sum(0)", GRADIENTS),
    Mutation("problem: forget λ in the parameter gradient", LIFTED, "scale, d = self.weight(layer) / point.samples", "scale, d = 1.0 / point.samples", GRADIENTS),
    Mutation("problem: forget 1/s", LIFTED, "scale, d = self.weight(layer) / point.samples, ", "scale, d = self.weight(layer), ", GRADIENTS),
    Mutation("problem: λ_l where λ_{l+1} belongs", LIFTED, "self._pulled_through(point, term, layer), self.weight(term)", "self._pulled_through(point, term, layer), self.weight(layer)", GRADIENTS),
    Mutation("problem: wrong sign of z in the variable gradient", LIFTED, "torch.sub(self.pulled_back(point, layer), z, alpha", "torch.add(self.pulled_back(point, layer), z, alpha", GRADIENTS),
    Mutation("problem: swap x_{l-1} and x_{l+1}", "problem/blocks.py", "return (block.layer, *links.readers[block.layer])", "return (block.layer, *links.inputs[block.layer])", "tests/problem/test_blocks.py"),
    Mutation("problem: prox_Ψ where prox_{cΨ} belongs", LIFTED, "return own.prox(v, scale)", "return own.prox(v, 1.0)", PROBLEM),
    Mutation("problem: shrink by 1 + tλ forgotten", LIFTED, "shrink = 1.0 + scale", "shrink = 1.0", PROBLEM),
    Mutation("problem: curvature of the layer below", CURVATURE, "squared_input_norm(problem.network[term].map, point", "squared_input_norm(problem.network[layer].map, point", "tests/solvers/test_curvature.py"),
    Mutation("energy: forget λ", ENERGIES, "value = weight * value", "value = value", ENERGY),
    Mutation("energy: penalty on variables forgotten", ENERGIES, "if layer in problem.penalties else value", "if False else value", ENERGY),
    Mutation("split: ½‖x‖² counted twice", ENERGIES, "own.psi(point.x[layer]) if smooth_quadratic else", "own.phi(point.x[layer]) if smooth_quadratic else", ENERGY),
    Mutation("proximal gradient: ascent", "solvers/steps.py", "torch.sub(start[name], gradient[name], alpha=t)", "torch.add(start[name], gradient[name], alpha=t)", DESCENT),
    Mutation("curvature of x_l: the term's weight forgotten", CURVATURE, "total += problem.weight(term) * norm\n", "total += norm\n", "tests/solvers/test_curvature.py"),
    Mutation("curvature of Θ_l: the term's weight forgotten", CURVATURE, "total += problem.weight(term) * norm / point", "total += norm / point", "tests/solvers/test_curvature.py"),
    Mutation("curvature: estimates from below not enlarged", CURVATURE, "(1.0 + margin) * bound", "bound", "tests/solvers/test_sample_space.py"),
    Mutation("curvature: a norm kept although x_{l-1} has moved", CURVATURE, "inner is not None and inner.inputs.get(layer) is x and", "inner is not None and layer in inner.norms and", "tests/solvers/test_curvature.py"),
    Mutation("factorise: the floor does not grow", CHOLESKY, "        t *= _RAISE\n", "", SYSTEMS),
    Mutation("ridge: wrong sign of the low-rank part", CHOLESKY, "P.addmm_(inner, self._AD, alpha=-1.0)", "P.addmm_(inner, self._AD, alpha=1.0)", SYSTEMS),
    Mutation("ridge: d below the floor kept", CHOLESKY, "self._D = diagonal.clamp(min=floor)", "self._D = diagonal", SYSTEMS),
    Mutation("guarded factor: no floor", CHOLESKY, "_GUARD_FLOOR[K.dtype][samples]", "0.0", SYSTEMS),
    Mutation("certified bound: a factor is not asked for", "_linalg/spectral.py", "if Cholesky(shifted).definite:", "if True:", SPECTRAL),
    Mutation("least squares: eigenvalues of rounding kept", "_linalg/spectral.py", "values > negligible", "values > -1.0", SPECTRAL),
    Mutation("Nesterov: no extrapolation", "solvers/acceleration.py", "(theta - 1.0) / following", "0.0", DESCENT),
    Mutation("Nesterov: the step of the plain sweep", "solvers/acceleration.py", "return 1.0\n", "return 1.99\n", DESCENT),
    Mutation("heavy ball: the step of the plain sweep", "solvers/acceleration.py", "return 1.99 * (1.0 - self.momentum)", "return 1.99", DESCENT),
    Mutation("simultaneous sweep: coupling forgotten", "solvers/proximal_gradient.py", "self.acceleration.factor / self.sweep.coupling(problem.links)", "self.acceleration.factor", DESCENT),
    Mutation("coupling: x_l that moves too forgotten", "solvers/sweeps.py", "len(own & group) * (2 if follows else 1)", "len(own & group)", DESCENT),
    Mutation("primal-dual: no extrapolation", "solvers/primal_dual.py", "correction=1.0 + batch.total / batch.samples", "correction=1.0", "tests/solvers/test_outlook.py -k published"),
    Mutation("primal-dual: σ_l where the ascent in q belongs", "solvers/primal_dual.py", "sigma / (1.0 + sigma))", "1.0)", "tests/solvers/test_outlook.py -k gap"),
    Mutation("primal-dual: the step of the dual variable forgotten", "solvers/primal_dual.py", "self.dual_step * _moving(problem, term)", "_moving(problem, term)", "tests/solvers/test_outlook.py -k published"),
    Mutation("duality gap: the conjugate of the penalty forgotten", "solvers/primal_dual.py", "inside * V - g.least_value(inside)", "inside * V", "tests/solvers/test_outlook.py -k gap"),
    Mutation("stochastic ADMM: the old rows stay in the sums", "solvers/stochastic_admm.py", " - _rows(point.weigh(was)).double().t() @ last]", "]", "tests/solvers/test_outlook.py -k written_out"),
    Mutation("stochastic ADMM: multiplier of the copy not renewed", "solvers/stochastic_admm.py", "nu.add_(theta - state.solution[layer], alpha=rho)", "nu.add_(theta - state.solution[layer], alpha=0.0)", "tests/solvers/test_outlook.py -k written_out"),
    Mutation("stochastic ADMM: weights of samples forgotten", "solvers/stochastic_admm.py", "now = point.weigh(ones)", "now = ones", "tests/solvers/test_outlook.py -k weighted_least_squares"),
    Mutation("random coordinates: importance ignored", "solvers/random_coordinate_descent.py", ".pow(importance)", ".pow(0.0)", "tests/solvers/test_outlook.py -k proportional"),
    Mutation("random coordinates: z does not follow the units", "solvers/random_coordinate_descent.py", "z.add_((dense_map(problem, term).rows(new - x) @ W.t()).view_as(z))", "pass", "tests/solvers/test_outlook.py -k every_update"),
    Mutation("random coordinates: λ of φ left out of the importance", "solvers/random_coordinate_descent.py", "if strong else 0.0", "if False else 0.0", "tests/solvers/test_outlook.py -k proportional"),
    Mutation("curvature of columns: the samples' number forgotten", CURVATURE, "squared_norm(A) / point.samples", "squared_norm(A)", "tests/solvers/test_outlook.py -k proportional"),
    Mutation("loop: diverged parameters kept", LOOP, "            self._guard.restore(self)\n            since", "            since", "tests/training/test_divergence.py"),
    Mutation("loop: a run that explodes goes on", GUARD, "if self._times(run, row, self.lasting) > EXPLODED:", "if False:", "tests/training/test_divergence.py"),
    Mutation("loop: a run that ends far above its start is finished", GUARD, "        if self.behind:", "        if False:", "tests/training/test_divergence.py"),
    Mutation("loop: rows that are not good are kept", GUARD, "        if times <= GOOD:\n", "        if True:\n", "tests/training/test_divergence.py"),
    Mutation("loop: the last good parameters are not saved", LOOP, "if self._guard.steps == self.state.steps else", "if True else", "tests/training/test_divergence.py"),
    Mutation("growth: the loss of outputs 0 forgotten", "solvers/divergence.py", '"of a network with outputs 0": zero', '"of a network with outputs 0": 0.0', "tests/training/test_divergence.py"),
    Mutation("loop: a step that diverged goes on", LOOP, "if not math.isfinite(value):", "if False:", "tests/solvers/test_loop.py"),
    Mutation("loop: solver state not scanned", "solvers/finite.py", "    if where is not None:\n        raise Diverged", "    if False:\n        raise Diverged", "tests/training/test_divergence.py"),
    Mutation("loop: half-changed parameters count as whole", LOOP, "self.phase, self._whole_state = Phase.STEP, None", "self._whole_state = None", "tests/training/test_interruption.py"),
    Mutation("loop: position in the epoch forgotten", LOOP, 'self.epoch, self.batch, self.seconds = entries["epoch"], entries["batch"], entries["seconds"]', 'self.epoch, self.batch, self.seconds = entries["epoch"], 0, entries["seconds"]', RESUME),
    Mutation("loop: work of earlier runs counted", LOOP, "        problem.work.reset()  # a run counts its own work\n", "", "tests/training/test_fit.py -k own_work"),
    Mutation("loop: work of the history counted", "solvers/_rows.py", "        run.problem.work.reset(own_work)", "        pass", "tests/solvers/test_loop.py"),
    Mutation("loop: the problem is not told of a loaded state", LOOP, "        self.state.load_state_dict(own)\n        self.solver.attach(self.rank_problem, self.state)", "        self.state.load_state_dict(own)", RESUME),
    Mutation("history: objective of the last piece only", "solvers/evaluation.py", "objective += float(energies.objective(problem, point)) * share", "objective = float(energies.objective(problem, point))", "tests/training/test_fit.py"),
    Mutation("store: pictures are not looked at", LAB + "reproduction/store.py", 'require_shown(ending["pictures"])', "pass", "tests/lab/test_reproduction_store.py"),
    Mutation("preparation: whole zeros and ones are raw pixels", "data/preparation.py", "bool(array.max() > 1) and is_whole(array)", "bool(array.max() > 0) and array.dtype.kind in 'ui'", "tests/data/test_transforms.py"),
    Mutation("scaling: another scale is not looked for", "experiments/run_data.py", "self._preparation.warn_of_another_scale(array)", "pass", "tests/experiments/test_run_data.py"),
    Mutation("csv: lines of any number of cells", "data/csv_files.py", 'line.count(",") >= MOST_CELLS or ', "", "tests/experiments/test_table_bounds.py -k lines"),
    Mutation("archives: they may inflate without end", "data/_archives.py", "if self._left < 0:", "if False:", "tests/data/test_archives.py"),
    Mutation("settings: text is a number", "experiments/_checked.py", "strict=True, allow_inf_nan=False", "allow_inf_nan=False", "tests/experiments/test_settings.py"),
    Mutation("settings: infinity is a number", "experiments/_checked.py", "strict=True, allow_inf_nan=False", "strict=True", "tests/experiments/test_settings.py"),
    Mutation("settings: no epochs", "experiments/settings.py", "Count = Annotated[int, Field(ge=1)]", "Count = Annotated[int, Field(ge=0)]", "tests/cli/test_help.py -k file_is_named"),
    Mutation("flags: numbers stay text", "cli/_flags.py", "text if _takes_text(hints[name]) else from_text(text)", "text", "tests/experiments/test_settings.py -k flag"),
    Mutation("flags: the file is named for a wrong flag", "cli/train.py", "if wrong in file and wrong not in flags:", "if wrong in file:", "tests/cli/test_help.py -k file_is_named"),
    Mutation("command line: the first of several values counts", "cli/_app.py", "allow_repeating=True", "allow_repeating=False", "tests/cli/test_help.py -k last_of"),
    Mutation("command line: decimal numbers are rounded", "cli/parameters.py", "return int(tokens[0].value)", "return round(float(tokens[0].value))", "tests/cli/test_help.py -k whole"),
    Mutation("command line: all commands are imported", "cli/_app.py", "if name == called:", "if True:", "tests/cli/test_help.py -k torch"),
    Mutation("command line: help of a group is no error", "cli/_main.py", "    if path[-1].default_command is None and not left:", "    if False:", "tests/cli/test_help.py -k group"),
    Mutation("build: Glorot's parameters always", "experiments/build.py", 'if settings.initialisation != "torch":', "if True:", "tests/experiments/test_build.py"),
    Mutation("energies: objective by layer without the weights' penalty", "problem/energies.py", "means.get(layer, nothing) + _on_parameters(problem, layer)", "means.get(layer, nothing)", "tests/solvers/test_loop.py"),
    Mutation("history: sparsity of another layer", "problem/blocks.py", "return depth // 2", "return 1", "tests/training/test_fit.py tests/problem"),
    Mutation("batches: places stay on the CPU", "solvers/interface.py", "        places = places.to(self.X.device)\n", "", "tests/solvers/test_other_devices.py"),
    Mutation("loop: a loaded state stays on the CPU", LOOP, "own, self._kept = on_device(own, device), on_device(self._kept, device)", "pass", "tests/solvers/test_other_devices.py"),
    Mutation("inputs: a Dataset is read by its attributes", "training/inputs.py", " and not isinstance(data, Dataset)", "", "tests/training/test_fit.py -k every_form"),
    Mutation("streams: draws without the epoch", STREAMS, 'name = f"{self._name}: epoch {epoch}"', 'name = f"{self._name}: epoch"', STREAM_TESTS + "five_epochs"),
    Mutation("streams: draws without the batch", STREAMS, "return seeded(self._seed, name, number, self._like.device)", "return seeded(self._seed, name, 0, self._like.device)", STREAM_TESTS + "five_epochs"),
    Mutation("streams: the first batch is read twice", STREAMS, "if ahead is not None and (number, done) == (1, 0):", "if False:", STREAM_TESTS + "five_epochs"),
    Mutation("streams: global generators stay seeded", "data/_seeding.py", "            np.random.set_state(before[1])\n", "", STREAM_TESTS + "put_back"),
    Mutation("streams: an epoch goes on at its beginning", STREAMS, "        if not state:\n", "        if False:\n", STREAM_TESTS + "goes_on_bit_by_bit"),
    Mutation("streams: generators of the set are left alone", STREAMS, "        seed_all(self._kept, self._seed, name, number)\n", "", STREAM_TESTS + "goes_on_bit_by_bit"),
    Mutation("streams: generators of samplers are left alone", STREAMS, '        seed_all(kept_generators(orders), self._seed, f"{self._name}: order", epoch)\n', "", STREAM_TESTS + "goes_on_bit_by_bit"),
    Mutation("streams: workers are kept from epoch to epoch", STREAMS, "            loader._iterator = None", "            pass", STREAM_TESTS + "worker_processes"),
    Mutation("streams: other dtypes pass", STREAMS, "if self._first is not None and found != self._dtypes:", "if False:", MISTAKEN_STREAMS + "bad_batch"),
    Mutation("streams: an epoch without batches passes", STREAMS, "        if batches == 0:\n", "        if False:\n", MISTAKEN_STREAMS + "without_batches"),
    Mutation("streams: a failed stream leaves no checkpoint", LOOP, "            except StreamError as error:  # raised between steps: the last step is whole\n", "            except ZeroDivisionError as error:\n", MISTAKEN_STREAMS + "bad_batch"),
    Mutation("streams: solvers with a table of samples take them", "solvers/requirements.py", "    if solver.indexed:\n", "    if False:\n", STREAM_TESTS + "every_solver"),
    Mutation("streams: the death of a worker breaks off a step", "data/_worker_signals.py", "    signal.signal(signal.SIGCHLD, signal.SIG_DFL)\n    return handler", "    return None", MISTAKEN_STREAMS + "worker_that_is_killed"),
    Mutation("meter: an infinite objective is met at the end of the epoch", LOOP, "if self.meter is not None and not math.isfinite(self.meter.last):", "if False:", STREAM_TESTS + "diverges_on_a_stream"),
    Mutation("meter: a mean over batches", "solvers/_meter.py", "self._objective += self.last * samples", "self._objective += self.last", STREAM_TESTS + "by_hand"),
    Mutation("meter: the sums of a resumed epoch are lost", LOOP, '            self.meter.load_state_dict(entries["running"])\n', "            pass\n", STREAM_TESTS + "goes_on_bit_by_bit"),
    Mutation("inputs: a mask is dropped", "data/tensors.py", "if np.ma.is_masked(value):", "if False:", "tests/training/test_fit_mistakes.py"),
    Mutation("squared error: numbers for one output are taken for labels", "losses/output.py", " and like.shape[-1] > 1", "", LOSSES),
    Mutation("batches: order without the epoch", "solvers/batches.py", 'named_generator(seed, "data order", epoch)', 'named_generator(seed, "data order")', "tests/solvers/test_loop.py"),
    Mutation("loop: a row that is not finite is kept", GUARD, "            self._keep(run)\n", "            pass\n", "tests/training/test_divergence.py"),
    Mutation("loop: a row that was broken off counts as whole", LOOP, "        self.phase = Phase.ROW\n", "", "tests/training/test_interruption.py"),
    Mutation("loop: a batch of the whole set is shuffled", "solvers/batches.py", "return self.batch_size is None or self.batch_size >= len(self.data)", "return self.batch_size is None", "tests/training/test_fit.py"),
    Mutation("objective: constraints on variables count", ENERGIES, "if l in partition.hidden and not penalty.constraint]", "if l in partition.hidden]", "tests/training/test_fit.py"),
    Mutation("early stopping: remembers another run", "training/callbacks/early_stopping.py", "        if not self._resumed or run.state.steps == 0:", "        if False:", "tests/training/test_callbacks.py"),
    Mutation("checkpoint: remembers another run", "training/callbacks/checkpoint.py", "        self._folder = folder\n        self._begin()\n", "        self._folder = folder\n", "tests/training/test_callbacks.py"),
    Mutation("fit: addresses are compared", "training/ranks.py", 're.sub(r" at 0x[0-9a-f]+", "", repr(value))', "repr(value)", RESUME),
    Mutation("readings: runs of the main reading stand in", LAB + "reproduction/store.py", "recipe if self.stand_ins is None else self.stand_ins.get(recipe)", "recipe", "tests/lab/test_paper_readings.py"),
    Mutation("report: every note is repeated", LAB + "reproduction/report/claims.py", "noted.setdefault(note, claim.name)", "claim.name", "tests/lab/test_paper_page.py"),
    Mutation("readings: what does not change is judged again", LAB + "reproduction/paper.py", "if all(self.recipes[name] == before.get(name, name) for name in claim.recipes):", "if False:", "tests/lab/test_paper_readings.py"),
    Mutation("readings: all are compared with the main one", LAB + "reproduction/paper.py", "{} if self.base is None else self.base.recipes", "{}", "tests/lab/test_paper_readings.py"),
    Mutation("readings: the table forgets the base", LAB + "reproduction/report/tables.py", "return {**results.verdicts, **found}", "return results.verdicts", "tests/lab/test_paper_readings.py"),
    Mutation("verdicts: one standard error", LAB + "reproduction/claims.py", "< 2.0 * error", "< error", "tests/lab/test_reproduction.py"),
    Mutation("verdicts: the standard deviation for the standard error", LAB + "reproduction/claims.py", "deviation / math.sqrt(len(values))", "deviation", "tests/lab/test_reproduction.py"),
    Mutation("verdicts: the lower end of a tolerance is no bound", LAB + "reproduction/claims.py", "_decide(good, values, self.value - self.tolerance, ", "_decide(good, values, ", "tests/lab/test_reproduction.py"),
    Mutation("verdicts: seeds are not paired", LAB + "reproduction/claims.py", "_decide(left.mean() < right.mean(), left - right, 0.0)", "_decide(left.mean() < right.mean(), left, right.mean())", "tests/lab/test_reproduction.py"),
    Mutation("verdicts: an undecided part outweighs one that fails", LAB + "reproduction/claims.py", "(Status.NOT_REPRODUCED, Status.UNDECIDED, Status.REPRODUCED)", "(Status.UNDECIDED, Status.NOT_REPRODUCED, Status.REPRODUCED)", "tests/lab/test_reproduction.py"),
    Mutation("quantities: the largest for the smallest", LAB + "reproduction/quantities.py", "found.min(axis=1)", "found.max(axis=1)", "tests/lab/test_reproduction.py"),
    Mutation("report: a fact is counted as often as it is claimed", LAB + "reproduction/report/results.py", "{(claim.fact, self.verdicts", "{(claim.name, self.verdicts", "tests/lab/test_paper_page.py"),
    Mutation("report: quoted numbers are counted", LAB + "reproduction/report/tables.py", "judged = [claim for claim in claims if isinstance(claim.rule, Near)]", "judged = list(claims)", "tests/lab/test_paper_page.py"),
    Mutation("recipes: the code stays in the middle", LAB + "reproduction/running.py", "if code_layer is None:", "if True:", "tests/lab/test_reproduction_running.py"),
    Mutation("readings: claims that say nothing are judged", LAB + "reproduction/paper.py", " or claim.name in self.silent", "", "tests/lab/test_paper_readings.py"),
    Mutation("folder: callbacks not restored", "training/run_folder.py", "            callback.load_state_dict(state)\n", "            pass\n", RESUME),
    Mutation("early stopping: a lost history makes it forget", "training/callbacks/early_stopping.py", "        if not self._resumed or run.state.steps == 0:", "        if not run.history:", RESUME + " -k lost_are_told"),
    Mutation("folder: lost rows are not told", "training/run_folder.py", "        if not lost:\n", "        if True:\n", RESUME + " -k lost_are_told"),
    Mutation("folder: a state that no callback takes is dropped", "training/run_folder.py", "for name, own in left.items() if any(own))", "for name, own in left.items() if False)", RESUME + " -k callback"),
    Mutation("folder: no checkpoint of a callback that was added", "training/fit.py", "if not ranks.broadcast(folder.differs):", "if True:", RESUME + " -k added"),
    Mutation("folder: workspaces of the dead stay", "training/run_folder.py", "            files.sweep(self.path)\n", "            pass\n", "tests/training/test_run_folder.py -k swept"),
    Mutation("files: workspaces of the living are swept", "training/files.py", "                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "", "tests/training/test_run_folder.py -k swept"),
    Mutation("history: rows that were deleted or changed during the run are not missed", "training/history_file.py", "            if self._content().startswith(content):", "            if True:", "tests/training/test_run_folder.py -k under_the_run"),
    Mutation("history: any shorter file is taken for the beginning", "training/history_file.py", " and len(lines) < position[\"rows\"]", "", RESUME + " -k shorter_history"),
    Mutation("manifest: files are not compared", "training/manifest.py", "        if listed[name] != FileHash.of(files[name]):", "        if False:", "tests/experiments/test_damaged_runs.py"),
    Mutation("manifest: lists files while they change", "training/manifest.py", "        _replace(folder / MANIFEST, seal(kept))\n", "        pass\n", "tests/experiments/test_damaged_runs.py -k kill"),
    Mutation("manifest: changed by hand", "training/manifest.py", "    if digest != json_hash(entries):", "    if False:", "tests/experiments/test_damaged_runs.py -k changed_together"),
    Mutation("checkpoints: content is not compared", "training/snapshot.py", "    if found != expected:", "    if False:", "tests/training/test_checkpoint_policy.py -k falls_back"),
    Mutation("checkpoints: a directory is published before it is on the disk", "training/checkpoints.py", "                files.sync_directory(new)\n", "", "tests/training/test_checkpoint_faults.py -k reached_the_disk"),
    Mutation("checkpoints: a failed save is not undone", "training/checkpoints.py", "            os.rename(path, new)\n", "            pass\n", "tests/training/test_checkpoint_faults.py -k kth_call_fails"),
    Mutation("checkpoints: links are followed", "training/files.py", "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_RDONLY | os.O_NONBLOCK", "tests/training/test_checkpoint_hostile.py -k every_case"),
    Mutation("checkpoints: a giant header is read", "training/snapshot.py", "        if length > JSON_LIMIT:", "        if False:", "tests/training/test_checkpoint_hostile.py"),
    Mutation("folder: history not cut at the checkpoint", "training/history_file.py", "                file.truncate()\n", "", RESUME),
    Mutation("folder: other settings accepted", "training/run_folder.py", "            if before != now:", "            if False:", RESUME),
    Mutation("early stopping: best parameters not restored", "training/callbacks/early_stopping.py", "            run.problem.model.load_state_dict(self._parameters)", "            pass", "tests/training/test_callbacks.py"),
    Mutation("early stopping: accuracy should fall", "training/callbacks/early_stopping.py", 'return not monitor.endswith("accuracy")', "return True", "tests/training/test_callbacks.py"),
    Mutation("checkpoint: no way back from a broken step", "training/callbacks/checkpoint.py", "            self._go_back(run)", "            pass", "tests/training/test_interruption.py"),
    Mutation("checkpoint: saved before the others have seen the row", "training/fit.py", "[*rest, folder, *savers]", "[*savers, folder, *rest]", RESUME),
    Mutation("signals: a long step is not broken off", "training/signals.py", "                self._wait(_GRACE)", "                pass", "tests/training/test_interruption.py"),
    Mutation("signals: a second Ctrl-C waits", "training/signals.py", "            raise StopNow", "            pass", "tests/training/test_interruption.py"),
    Mutation("scale: a number of each sum forgotten", LAB + "scale/tables.py", '(parameters + (algorithm == "back-propagation"))', "parameters", "tests/lab/test_scale_running.py -k ratios_of_rounds"),
    Mutation("scale: speed-up turned round", LAB + "scale/tables.py", "sorted(one / two", "sorted(two / one", "tests/lab/test_scale_running.py -k ratios_of_rounds"),
    Mutation("race: a target needs no zeros", LAB + "race/archive/analysis.py", "reaches &= rows", "rows", "tests/lab/test_race_analysis.py"),
    Mutation("race: cut repetitions count", LAB + "race/archive/results.py", 'own[own["whole"]] if own["whole"].any() else own', "own", "tests/lab/test_race_analysis.py"),
    Mutation("race: variance with n degrees of freedom", LAB + "race/verdicts.py", "differences.std(ddof=1)", "differences.std(ddof=0)", "tests/lab/test_race_verdicts.py"),
    Mutation("race: no seed counts twice", LAB + "race/verdicts.py", " / math.sqrt(len(ours))", "", "tests/lab/test_race_verdicts.py"),
    Mutation("race: the error has the rate of the loss", LAB + "race/verdicts.py", 'by = "error" if criterion == "error" else "loss"', 'by = "loss"', "tests/lab/test_race_verdicts.py"),
    Mutation("race: times of other groups compared", LAB + "race/verdicts.py", 'min(reached, default=math.inf) / row["reference_seconds"]', "min(reached, default=math.inf)", "tests/lab/test_race_verdicts.py"),
    Mutation("race: tuning sees the new samples", LAB + "race/samples.py", "X_new=self.X[new], Y_new=self.Y[new]", "X_new=self.X_new, Y_new=self.Y_new", "tests/lab/test_race_samples.py"),
    Mutation("race: tables scaled by all rows", LAB + "race/samples.py", "features[train].mean(0), features[train].std(0)", "features.mean(0), features.std(0)", "tests/lab/test_race_samples.py"),
    Mutation("race: the next epoch has the same order", LAB + "race/runs.py", "self.seed, epoch + 1)", "self.seed, 1)", "tests/lab/test_race_runs.py -k batches_of_fit"),
    Mutation("race: the code is not penalised", LAB + "race/problems.py", " + self.code_penalty * code.abs().sum(1).mean()", "", "tests/lab/test_race_opponents.py -k loss_that_is_lifted"),
    Mutation("race: evaluation is timed", LAB + "race/runs.py", "            run.stop(Outcome.INTERRUPTED, \"The race was ended.\")\n        self._started = time.process_time()", "            run.stop(Outcome.INTERRUPTED, \"The race was ended.\")", "tests/lab/test_race_runs.py -k only_steps"),
    Mutation("race: a walk looks one way", LAB + "race/running.py", "for place in (best - 1, best + 1):", "for place in (best + 1,):", "tests/lab/test_race_running.py -k walk"),
    Mutation("texts: wrong bytes in the cache are used", "data/_places.py", "if len(content) != file.size or found != file.sha256:", "if len(content) != file.size:", "tests/data/test_texts.py"),
    Mutation("mirrors: a dead one is asked again", "data/_obtain.py", "dead.add(base)", "pass", "tests/data/test_downloads.py -k passed_over"),
    Mutation("downloads: as many bytes as are sent", "data/_http.py", "if self._written > self._limit:", "if False:", "tests/data/test_downloads.py -k passed_over"),
    Mutation("sub-problem: the outer proximal term forgotten", "problem/lifted.py", "(*self.anchors, (centre, weight)) if weight", "((centre, weight),) if weight", "tests/solvers/test_implicit_sgd_variants.py -k both_terms"),
    Mutation("MAC-QP: steps tried without the proximal term", "solvers/baselines/mac_qp.py", " + float(energies.quadratic_terms(problem))", "", "tests/solvers/test_baselines_mac_qp.py -k sub_problem"),
    Mutation("schedules: not looked at before a run", LOOP, "        solver.require_steps(problem, steps)\n", "", SCHEDULES + "refused"),
    Mutation("schedules: the first step decides", "solvers/schedules.py", "return range(min(steps, _LOOKED_AT))", "return (0,)", SCHEDULES + "refused"),
    Mutation("schedules: cosine without its half", "solvers/schedules.py", "return 0.5 * (1.0 + math.cos(math.pi * fraction))", "return 1.0 + math.cos(math.pi * fraction)", SCHEDULES + "those_of_torch"),
    Mutation("schedules: a warm-up that starts at 0", "solvers/schedules.py", "self.peak * (step + 1) / self.warm_up", "self.peak * step / self.warm_up", SCHEDULES + "those_of_torch"),
    Mutation("schedules: epochs are no part of a run that ends with them", "training/fit.py", 'epochs: dict[str, Any] = {"epochs": run.epochs} if solver.ends_with_run else {}', "epochs: dict[str, Any] = {}", RESUME + " -k ends_with_the_run"),
    Mutation("schedules: a wrapped solver counts outer steps", "solvers/constrained.py", "self.solver.planned(steps * self.inner_steps, epochs)", "self.solver.planned(steps, epochs)", SCHEDULES + "inner_solvers"),
    Mutation("AdamW: decay passes through the moments", "solvers/baselines/adamw.py", "decoupled=True", "decoupled=False", BACKPROP + "those_of_torch"),
    Mutation("SGD: decay forgotten without momentum", "solvers/baselines/sgd.py", "if self.weight_decay > 0.0:", "if False:", BACKPROP + "those_of_torch"),
    Mutation("clipping: long gradients stay long", "solvers/baselines/_backpropagation.py", "if factor < 1.0:", "if False:", BACKPROP + "clipped"),
    Mutation("clipping: short gradients are stretched", "solvers/baselines/_backpropagation.py", "if factor < 1.0:", "if factor > 0.0:", BACKPROP + "clipped"),
    Mutation("label smoothing: towards 0", "losses/output.py", "torch.full_like(y, 1.0 / y.shape[-1])", "torch.zeros_like(y)", LOSSES),
    Mutation("estimators: class weights replace sample weights", "estimators/classifier.py", "else by_class * sample_weight", "else by_class", "tests/estimators/test_arguments.py -k class_weights"),
    Mutation("estimators: held-out samples count the same", "estimators/_base.py", "validation_weights=w_held_out", "validation_weights=None", "tests/estimators/test_arguments.py -k early_stopping"),
    Mutation("estimators: targets standardised without weights", "estimators/_training.py", "w = torch.ones(len(Y), dtype=Y.dtype) if weights is None else weights.double()", "w = torch.ones(len(Y), dtype=Y.dtype)", "tests/estimators/test_regressor.py -k standardised_by_weight"),
    Mutation("estimators: a warm start forgets the solver's state", "estimators/_training.py", 'self.left["of"] == self.solver', 'self.left["of"] == run.solver', "tests/estimators/test_continuation.py -k longer_run"),
    Mutation("estimators: a warm start's length without the steps so far", "estimators/_training.py", "done, ahead = run.state.steps, run.epochs", "done, ahead = 0, run.epochs", "tests/estimators/test_continuation.py -k fewer_samples"),
    Mutation("estimators: predictions stay standardised", "estimators/regressor.py", "self._target_scale.restore(outputs)", "outputs", "tests/estimators/test_regressor.py -k ridge"),
    Mutation("estimators: samples held out are standardised by themselves", "estimators/_base.py", "held_out[0], standardise(held_out[1], scale, inputs.dtype)", "held_out[0], standardise(held_out[1], None, inputs.dtype)", "tests/estimators/test_regressor.py -k unit_of_the_targets"),
    Mutation("estimators: indicators by softmax", "estimators/classifier.py", "(z.sigmoid() if self.multilabel_ else z.softmax(1))", "z.softmax(1)", "tests/estimators/test_tables.py -k binary_cross_entropy"),
    Mutation("estimators: the first rows are predicted again and again", "estimators/_base.py", "settings.dense(X[first : first + _ROWS])", "settings.dense(X[: _ROWS])", "tests/estimators/test_tables.py -k few_rows"),
    Mutation("estimators: auto always holds out", "estimators/_settings.py", "return samples >= ENOUGH_TO_HOLD_OUT", "return True", "tests/estimators/test_tables.py -k held_out_where"),
    Mutation("schedules: rounds counted for updates", "solvers/asynchronous_piag.py", "require_steps(problem, steps * self.round_updates)", "require_steps(problem, steps)", SCHEDULES + "updates_of_a_round"),
    Mutation("implicit SGD: the first term decides", "solvers/implicit_sgd.py", "        self._require_solver(problem, require_schedule(", "        self._require_solver(problem, 0.0 * require_schedule(", SCHEDULES + "takes_no_term"),
    Mutation("implicit SGD: anchor forgotten", "solvers/_descent.py", "p.add_(anchor[name], alpha=pull)", "pass", "tests/solvers/test_implicit_sgd.py"),
    Mutation("gram sweep: the unit of large targets without the samples' weights", "solvers/gram/sweep.py", "if batch.weights is None else sample_norms(E) * batch.weights.sqrt()", "if True else sample_norms(E)", "tests/solvers/test_graph_sample_weights.py"),
    Mutation("gram sweep: signals of large targets at full size", "solvers/gram/sweep.py", 'E.div_(own["scale"].square())', 'E.div_(own["scale"])', GRAM_TESTS),
    Mutation("partial_fit: the reference of earlier calls forgotten", GUARD, "        if run.earlier is not None:", "        if False:", "tests/estimators/test_continuation.py"),
    Mutation("Gram: a copied model keeps the recorder", "optim/_hooks.py", "        return type(self)()\n\n    def __reduce__", "        return self\n\n    def __reduce__", OPTIM + "copied"),
    Mutation("gram moves: metric without damping", CHOLESKY, "    diagonal.add_(t)\n", "", SYSTEMS),
    Mutation("gram moves: blocks of zeros divide by 0", CHOLESKY, "    t.masked_fill_(mean < _NOTHING, 1.0 / _NOTHING)", "    pass", GRAM_FAULTS),
    Mutation("shard: means not counted by their samples", "problem/nested.py", "        if share < 1.0:\n", "        if False:\n", IN_PARTS + "Adam"),
    Mutation("shard: mean over the samples of this rank", "problem/point.py", "total.div_(self.samples)", "total.div_(len(self.x[0]))", QUANTITIES + "every_quantity"),
    Mutation("shard: norms are added up", "problem/shard.py", "squares = own.square()", "squares = own.clone()", QUANTITIES + "sums_and_rows"),
    Mutation("shard: squares overflow", "problem/shard.py", "if bool(squares.isfinite().all()):", "if True:", QUANTITIES + "overflow"),
    Mutation("shard: a later batch counts", "solvers/interface.py", "return Batch(self.X[start:stop], self.Y[start:stop], self.index[start:stop], self.total, weights)", "return Batch(self.X[start:stop], self.Y[start:stop], self.index[start:stop], self.total, weights, self.shard)", QUANTITIES + "whole_batches"),
    Mutation("shard: parts in reverse order", SHARD, "start = sum(self._sizes[: self.rank])", "start = sum(self._sizes[self.rank + 1 :])", QUANTITIES + "sums_and_rows"),
    Mutation("shard: gradient of one's own samples", LIFTED, "        point.shard.all_sum(*gradient.values())\n", "", QUANTITIES + "every_quantity"),
    Mutation("shard: energies of one's own samples", "problem/point.py", "        self.shard.all_sum(*sums)\n", "", QUANTITIES + "every_quantity"),
    Mutation("shard: back-propagation of one's own samples", "problem/nested.py", "    shard.all_sum(value, *gradient)\n", "", IN_PARTS + "Adam"),
    Mutation("shard: norm of one's own rows", "problem/curvature.py", "            self._shard.all_sum(*image)\n", "", QUANTITIES + "large_batches"),
    Mutation("shard: system of one's own rows", "solvers/_majorise.py", "    point.shard.all_sum(K)\n", "", SETTINGS + "Majorised"),
    Mutation("shard: variables of one's own samples kept", "solvers/implicit_sgd.py", "whole_variables(batch.shard, point.state), dict(memory)", "point.state, dict(memory)", SETTINGS + "four_processes"),
    Mutation("shard: promises of one's own samples", "solvers/steps.py", "promised += next(of_variables) if isinstance(block, VariableBlock) else promise", "promised += promise", IN_PARTS + "moves_of_all"),
    Mutation("shard: table of one's own samples", "solvers/_gradient_table.py", "        shard.all_sum(*change.values())\n", "", IN_PARTS + "SAG"),
    Mutation("shard: history of one's own part", "solvers/evaluation.py", "sums = sum_numbers(own.shard, objective, zeros, numbers, right)", "sums = objective, zeros, numbers, right", IN_PARTS + "in_parts"),
    Mutation("shard: batch not divided", LOOP, "        batch = fetched.share(self.ranks)\n", "        batch = fetched\n", IN_PARTS + "own_part"),
    Mutation("agreement: every process calls the callbacks", LOOP, "            if self.agreement.rank > 0 and not callback.everywhere:\n                continue\n", "", ENDINGS + "anywhere_ends"),
    Mutation("agreement: parameters kept that are broken elsewhere", LOOP, "            self._guard.restore(self)\n        self.outcome", "            pass\n        self.outcome", ENDINGS + "only_one"),
    Mutation("agreement: the highest rank decides", AGREEMENT, "rank, length = min(found)", "rank, length = max(found)", ENDINGS + "highest_precedence"),
    Mutation("agreement: where it began is not told", LOOP, "            wanted = wanted if since is None else replace(wanted, since=since)\n", "", ENDINGS + "not_finite"),
    Mutation("agreement: errors of callbacks stay where they are", LOOP, "                self.agreement.share_error(error, callback_error(callback, moment, error))\n", "                raise\n", CALLBACKS),
    Mutation("agreement: parameters sent by those who have failed", LOOP, "        self.agreement.share_error(None)  # a rank that has failed sends nothing\n", "", CALLBACKS),
    Mutation("agreement: the last callbacks fail alone", LOOP, "        self.agreement.share_error(None)  # raises the error of a callback on another rank\n", "", CALLBACKS),
    Mutation("agreement: a stop outweighs an error", AGREEMENT, "_ERROR = (1, 0), (-1, 0)", "_ERROR = (1, 0), (2, 0)", ENDINGS + "outweighs"),
    Mutation("launcher: no time to save after a failure", "distributed/launcher.py", "deadline = min(deadline, time.monotonic() + GRACE)", "deadline = 0.0", "tests/distributed/test_launcher.py -k saves"),
    Mutation("launcher: an error is tried again", "distributed/launcher.py", "for code in failed if code != LOST", "for code in failed if False", "tests/distributed/test_launcher.py -k come_again"),
    Mutation("launcher: a killed worker is an error", "distributed/launcher.py", "return code < 0 and -code not in _STOPS", "return False", "tests/distributed/test_launcher.py -k started_again"),
    Mutation("worker: ends as Python does", "distributed/worker.py", "atexit.register(lambda: end_at_once(code))", "pass", "tests/distributed/test_launcher.py -k abort"),
    Mutation("team: sum in another order", TEAM, "zip(self._gather(flat), shares[first:], strict=False)", "reversed(list(zip(self._gather(flat), shares[first:], strict=False)))", "tests/distributed/test_team.py"),
    Mutation("team: variables stay where they are", TEAM, "                    x[part] = done[: len(part)]", "                    pass", "tests/distributed/test_team.py"),
    Mutation("gram signals: one nudge for all samples", GRAM_SIGNAL, ".div_(sample_norms(g))", ".div_(sample_norms(g).amax())", SIGNALS),
    Mutation("border: the borrowed variable stays as it was", BORDER, "point.set_variable(layer, problem.border.from_below(point.x[layer]))", "problem.border.from_below(point.x[layer])", IN_LAYERS + "deep_network"),
    Mutation("partition: a variable that another rank moves is not borrowed", "graph/partition.py", "read.difference(self.terms)", "read.difference(self.terms, range(2))", BORDERS + "cross_a_border"),
    Mutation("partition: readers on this rank borrow", "graph/partition.py", "if any(reader not in", "if all(reader not in", BORDERS + "cross_a_border"),
    Mutation("border: the borrowed variable is not kept", "graph/partition.py", "return (*self.borrowed, *self.hidden)", "return tuple(self.hidden)", IN_LAYERS + "goes_on"),
    Mutation("border: another process's parameters in the forward pass", LIFTED, "        if self.partition.count > 1:\n            return", "        if False:\n            return", IN_LAYERS + "deep_network"),
    Mutation("border: the layer above is taken for one's own", LIFTED, "if layer in self.partition.lent:", "if False:", IN_LAYERS + "deep_network"),
    Mutation("border: penalties counted by every process", ENERGIES, "_on_parameters(problem, layer) for layer in partition.terms]", "_on_parameters(problem, layer) for layer in layers(depth)]", IN_LAYERS + "deep_network"),
    Mutation("border: what moves x_{a-1} goes up", PROCESS_BORDER, "self._send(rows, self.rank - 1)", "self._send(rows, self.rank + 1)", BORDERS + "neighbours"),
    Mutation("border: the pull-back before the curvature", "solvers/steps.py", "        self.lend(problem, point, memory)\n        lend(problem, point)\n", "        lend(problem, point)\n        self.lend(problem, point, memory)\n", IN_LAYERS + "deep_network"),
    Mutation("border: of a name that several have, the last", PROCESS_BORDER, "json.loads(text).items() if name not in found}", "json.loads(text).items()}", BORDERS + "among_all_ranks"),
    Mutation("border: of an entry that several have, the last", PROCESS_BORDER, "return [value, *(self._rebuilt", "return [*(self._rebuilt", BORDERS + "among_all_ranks"),
    Mutation("border: numbers of one's own layers in the history", "solvers/_rows.py", "run.border.all_names(metrics)", "metrics", IN_LAYERS + "deep_network"),
    Mutation("border: a fault going up is as early as one going down", PROCESS_BORDER, "self.fault = self._moment + (to > self.rank)", "self.fault = self._moment", BORDERS + "first_not_finite"),
    Mutation("border: sweeps are not counted", PROCESS_BORDER, "        self._moment += 2\n        return", "        return", BORDERS + "first_not_finite"),
    Mutation("partition: the sum of all parts", BALANCE, "max(best[k - 1, i], sums[j] - sums[i])", "best[k - 1, i] + sums[j] - sums[i]", IN_LAYERS + "balanced"),
    Mutation("partition: the first of equal cuts", BALANCE, "if worst <= best.get", "if worst < best.get", IN_LAYERS + "several_cuts"),
    Mutation("partition: a convolution used at one place", BALANCE, "3.0 * p.numel() * size / p.shape[0]", "3.0 * p.numel()", IN_LAYERS + "costs"),
    Mutation("by term: the power iteration of x_l with term l", CURVATURE, "power(memory, term, variable_key(layer))", "power(memory, layer, variable_key(layer))", IN_LAYERS + "goes_on"),
    Mutation("by term: every rank keeps all terms", BY_TERM, "for term, entry in value.items() if term in partition.terms}", "for term, entry in value.items()}", IN_LAYERS + "each_rank"),
    Mutation("by term: variables of others take the place of theirs", BY_TERM, "for layer in partition.held}}", "for layer in range(1, len(variables) + 1)}}", IN_LAYERS + "deep_network"),
    Mutation("by term: the highest rank decides", BY_TERM, "{**second, **first, **shared}", "{**first, **second, **shared}", IN_LAYERS + "rank_0_decides"),
    Mutation("by term: counts continue on every rank", BY_TERM, " | {name: 0 for name in counts if name in own and partition.rank > 0}", "", IN_LAYERS + "counts_are"),
    Mutation("by term: counts of one's own terms", BY_TERM, ' | added_up(entries, border, counts) | {"metrics": metrics}', ' | {"metrics": metrics}', IN_LAYERS + "counts_are"),
    Mutation("pipelined sweep: means over micro-batches", PIPELINE, "gradients[layer], batch.samples)", "gradients[layer], len(d))", PIPELINED + "brute_force"),
    Mutation("pipelined sweep: the last micro-batch only", PIPELINE, "    decay = 1.0\n", "    decay = 0.0\n", PIPELINED + "brute_force"),
    Mutation("pipelined sweep: sample weights forgotten", PIPELINE, "point.weigh(d)", "d", "tests/solvers/test_sample_weights.py -k PipelinedSweep"),
    Mutation("pipelined sweep: residual from before x_l has moved", PIPELINE, "            point.set_variable(layer, moved_variable(problem, point, layer, steps[layer]))\n        residuals[layer] = point.residual(layer)\n", "            moved = moved_variable(problem, point, layer, steps[layer])\n        residuals[layer] = point.residual(layer)\n        if layer in problem.partition.hidden:\n            point.set_variable(layer, moved)\n", PIPELINED + "brute_force"),
    Mutation("pipelined sweep: gradient at the x_{l-1} that has moved", PIPELINE, "read = problem.network.read(x, layer)", "read = problem.network.read(point.x, layer)", PIPELINED + "brute_force"),
    Mutation("checkpoint: layers not brought together", "training/callbacks/checkpoint.py", "            run.collect()\n", "", FIT_LAYERS + "another_number"),
    Mutation("early stopping: layers not brought together", "training/callbacks/early_stopping.py", "        run.collect(state=False)\n", "", FIT_LAYERS + "early_stopping_alone"),
    Mutation("asynchronous PIAG: the bound one update too late", ROUND, "self.update - v > self._bound", "self.update - v > self._bound + 1", PIAG + "bound_is_kept"),
    Mutation("asynchronous PIAG: age from when the part came", ROUND, "self.versions[p] = self.handed[p]", "self.versions[p] = self.update", PIAG + "bound_is_kept"),
    Mutation("asynchronous PIAG: a round that ends with work under way", ROUND, "receive(everybody if last else due)", "receive(due)", PIAG + "bound_is_kept"),
    Mutation("asynchronous PIAG: step size without the bound", ROUND, "(2.0 * self.solver.delay_bound + 1.0) * bound", "bound", PIAG + "step_size"),
    Mutation("asynchronous PIAG: the largest part for L", ROUND, "bound = sum(own.get(layer, 0.0) for own in self.state.curvature)", "bound = max(own.get(layer, 0.0) for own in self.state.curvature)", PIAG + "step_size"),
    Mutation("asynchronous PIAG: a new part added to the old", ROUND, "state.parts[p] = gradient", "accumulate(state.parts[p], gradient, 1.0)", PIAG + "recursion"),
    Mutation("asynchronous PIAG: variables stay where they are", ROUND, "        variables.update(rows, point.state)\n", "", PIAG + "recursion"),
    Mutation("asynchronous PIAG: who comes later is not recorded", ROUND, "state.arrived[number, p] = True", "state.arrived[number, next(iter(arrived))] = True", PIAG + "bound_is_kept"),
    Mutation("asynchronous processes: parameters that were handed out not taken", WORKERS, "            overwrite(parameters, theta)\n            if", "            if", IN_PROCESSES + "replay"),
    Mutation("asynchronous processes: rank 0 blamed for every fault", WORKERS, "host = max(round.fault.worker, 0) % dist.get_world_size(self.group)", "host = 0", IN_PROCESSES + "told_with_their_rank"),
    Mutation("graph: the first reader of a variable only", LIFTED, "total = torch.add(total, pulled, alpha=weight)", "total = total + 0.0", "tests/problem/test_graph_problems.py -k gradients"),
    Mutation("graph: a shared parameter counted in one term only", LIFTED, "            self._add_shared(point, user, layer, gradient)\n", "            pass\n", "tests/problem/test_graph_problems.py -k gradients"),
    Mutation("gram signals: the tangent of the layer above with the wrong sign", GRAM_SIGNAL, "return quotient(activation, z, g, nudge,", "return quotient(activation, z, -g, nudge,", SIGNALS),
    Mutation("gram signals: not divided by the nudge", GRAM_SIGNAL, "prox(torch.sub(z, g, alpha=nudge))).div_(nudge)", "prox(torch.sub(z, g, alpha=nudge)))", SIGNALS),
    Mutation("gram sweep in parts: signals of the last part only", TOP_DOWN, "else torch.cat(parts)", "else torch.cat([parts[-1] for _ in parts])", SWEEP + " -k micro_batches"),
    Mutation("cholesky: a failed matrix spoils the others", CHOLESKY, "failed = torch.stack([info for _, info in factors]).bool()", "failed = torch.stack([info for _, info in factors]).any().repeat(len(K))", SYSTEMS + " -k disturbs_no_other"),
    Mutation("gram sweep: the output's residual is not watched", "solvers/gram/sweep.py", 'residual = state.metrics["output_residual"] = ', "residual = ", GRAM_FAULTS + " -k not_finite"),
    Mutation("gram rule: lengths do not know the size of the weights", GRAM_RULE, "    eta = list(torch._foreach_sqrt(sizes))\n", "    eta = [torch.full_like(size, 0.3) for size in sizes]\n", GRAM_TESTS),
    Mutation("gram rule: no limit of a move", GRAM_RULE, "return list(torch._foreach_minimum(eta, sizes))", "return eta", GRAM_TESTS),
    Mutation("gram rule: biases decay too", GRAM_MOVES, "for p in move.theta.values() if p.ndim > 1] if move.decay", "for p in move.theta.values()] if move.decay", GRAM_TESTS),
    Mutation("gram rule: the decay of an epoch for each", GRAM_RULE, "math.sqrt(epochs) * schedule", "epochs * schedule", GRAM_TESTS),
    Mutation("gram rule: proximal map of a penalty with step 1", GRAM_MOVES, "move.prox(rule.prox_step(move.memory, step, self.k))", "move.prox(torch.ones_like(step))", SWEEP + " -k penalty"),
    Mutation("optim: signals of a mean", "optim/gram.py", "return x.to(dtype), E.to(dtype) * (samples if scale is None else samples * scale)", "return x.to(dtype), E.to(dtype)", OPTIM + "numbers_of_fit"),
    Mutation("optim: a layer that is called twice in its metric", "optim/gram.py", "    if len({record.forward for record in done}) < len(done):\n", "    if not done:\n", OPTIM + "called_twice"),
    Mutation("optim: the first of several backward passes", "optim/gram.py", "E = torch.cat(signals) if len(signals) > 1 else signals[0]", "E = torch.cat([signals[0]] * len(signals))", OPTIM + "accumulation"),
    Mutation("optim: the output layer of a backward pass", "optim/_records.py", "if self._running or not self._forward:", "if True:", OPTIM + "checkpointing"),
    Mutation("optim: rows of one rank", "optim/_ranks.py", "        sizes = [torch.zeros(()", "        return rows\n        sizes = [torch.zeros(()", "tests/distributed/test_optim.py"),
    Mutation("noise: its variance in place of its standard deviation", "maps/noise.py", "mul_(self.std)", "mul_(self.std**2)", "tests/maps/test_noise.py -k law"),
    Mutation("sites: noise multiplies", "maps/sites.py", "return x + drawn", "return x * drawn", "tests/maps/test_noise.py -k ridge"),
    Mutation("sites: noise in evaluation mode too", "maps/sites.py", "return self.training_mode and self.std > 0.0", "return self.std > 0.0", "tests/maps/test_noise.py -k evaluation"),
    Mutation("loop: the same noise in every step", LOOP, '"masks", self.state.steps)', '"masks", 0)', "tests/maps/test_noise.py -k training_with"),
    Mutation("noise: dropout of the inputs too", "maps/noise.py", "if dropout > 0.0 and linear > 0:", "if dropout > 0.0:", "tests/estimators/test_noise.py -k hidden"),
    Mutation("estimators: the last objective with noise", "estimators/_base.py", "with problem.network.evaluating():", "if True:", "tests/estimators/test_noise.py -k partial"),
    Mutation("study: both together with the architecture", LAB + "study/variance.py", " - effects[0,] - effects[1,]", " - effects[0,]", "tests/lab/test_bench_study.py -k regressions"),
    Mutation("study: levels by the loss and not its logarithm", LAB + "study/running.py", "math.log(loss / level) / math.log(loss / self.loss)", "(loss - level) / (loss - self.loss)", "tests/lab/test_bench_study.py -k levels"),
    Mutation("optim: gradients unscaled twice", "optim/gram.py", "return 1.0 / factor, None if found is not None else 1.0 / factor", "return 1.0 / factor, 1.0 / factor", OPTIM + "scaler"),
    Mutation("gram rule: no correction of the first steps", GRAM_RULE, "math.sqrt(1.0 - SECOND**k) / (1.0 - MOMENTUM**k)", "1.0", GRAM_TESTS),
    Mutation("gram rule: metric without its scale", GRAM_RULE, "inverse.mul_((t * (1.0 + tau))[:, None, None])", "inverse", GRAM_TESTS),
    Mutation("gram rule: signals without their metric", GRAM_RULE, "return G if P_E is None else P_E @ G", "return G", GRAM_TESTS + " -k patches"),
    Mutation("gram rule: a length for each number of inputs alike", GRAM_RULE, "1.0 / math.sqrt(p.numel() * n) for p, n", "1.0 / math.sqrt(p.numel()) for p, n", GRAM_TESTS),
    Mutation("gram rule: lengths forget the number of layers", GRAM_RULE, "math.sqrt(length**0.25 * min(max(1, layers), MANY))", "math.sqrt(length**0.25)", GRAM_TESTS),
    Mutation("gram rule: full batches decay in full", GRAM_RULE, " * min(1.0, total / (_BATCHES * epochs))", "", GRAM_TESTS),
    Mutation("gram rule: decay of one step in eight", GRAM_MOVES, "1.0 - rule.DECAY_EVERY * move.decay", "1.0 - move.decay", GRAM_TESTS),
    Mutation("gram rule: damping of a batch by the eigenvalues of its samples", GRAM_RULE, "[damping * len(a) / a.shape[1] for a in blocks]", "[damping for a in blocks]", GRAM_TESTS),
    Mutation("gram sweep: shared weights count once", "solvers/gram/sweep.py", "sum(len(problem.links.users[l]) for l in own)", "sum(1 for l in own)", "tests/models/test_unfolded.py -k lifted_training"),
    Mutation("gram rule: the last updates count alone", GRAM_RULE, "share = max(1.0 - GRAM_MEMORY, 1.0 / times)", "share = 1.0", GRAM_TESTS),
    Mutation("gram rule: sample weights forgotten", GRAM_MOVES, "            A, E = A * root, E * root\n", "", GRAM_TESTS),
    Mutation("gram rule: a layer at 0 stays there", GRAM_RULE, "_LEAST_NORM = 0.1", "_LEAST_NORM = 0.0", GRAM_TESTS + " -k begins_at_zero"),
    Mutation("gram rule: Gram matrices of this rank's rows", GRAM_MOVES, "            self._shard.all_sum(gram)\n", "            pass\n", SETTINGS + "gram_sweep"),
    Mutation("sites: a new mask at every call of a step", "maps/sites.py", "return self.frozen or (self.once and self._found)", "return self.frozen", "tests/maps/test_core.py"),
    Mutation("anchors: left out of the energy", ENERGIES, "mean + _on_parameters(problem, layer) + _to_anchors(problem, layer)\n", "mean + _on_parameters(problem, layer)\n", "tests/solvers/test_implicit_sgd_variants.py -k proximal_problem"),
    Mutation("softmax: a masked place counts", SIMPLEX, "torch.where(x_ == 0.0, 0.0, x_ * z_.log_softmax(-1))", "x_ * z_.log_softmax(-1)", "tests/activations/test_joint.py -k masked"),
    Mutation("backward: the batch's mean is not undone", "backward/_rule.py", "terms = terms * (1 if first is None else first.shape[0])", "terms = terms * 1", "tests/backward/test_answers.py"),
    Mutation("backward: every activation gets the whole nudge", "backward/_answer.py", "self.nudge / longest_path", "self.nudge / 1", "tests/backward/test_answers.py -k chain"),
    Mutation("backward: the nudge is not limited by z", "backward/_answer.py", "(LARGEST_NUDGE * size / length).clamp(", "(torch.inf * size / length).clamp(", "tests/backward/test_answers.py -k chain"),
    Mutation("backward: one limit for the batch", "backward/_answer.py", "length = _norms(G)", "length = G.norm()", "tests/backward/test_answers.py -k sample"),
    Mutation("backward: no floor below a sample of zeros", "backward/_answer.py", "_norms(z, precision).clamp(min=least_norm(z, precision))", "_norms(z, precision)", "tests/backward/test_answers.py -k begins_at_zero"),
    Mutation("backward: overflow is hidden", "backward/_answer.py", " + 0.0 * length", "", "tests/backward/test_answers.py -k overflowed"),
    Mutation("backward: the scale of the loss forgotten", "backward/_rule.py", "return terms / self.scale()", "return terms", "tests/backward/test_tools.py -k scaler"),
    Mutation("backward: in place without writing", "backward/_answer.py", "return z.copy_(call.function(before))", "return z.add_(0.0)", "tests/backward/test_models.py -k in_place"),
    Mutation("backward: half precision stays", "backward/_answer.py", "    precision = torch.promote_types(z.dtype, torch.float32)\n    return answer(", "    precision = z.dtype\n    return answer(", "tests/backward/test_tools.py -k autocast"),
    Mutation("backward: calls behind reentrant checkpointing do not count", "backward/_survey.py", "else hidden.get(id(node), 0)", "else 0", "tests/backward/test_tools.py -k checkpointed"),
    Mutation("backward: checkpointed functions are not noticed", "backward/_survey.py", "if not in_module:", "if False:", "tests/backward/test_mistakes.py -k checkpointing"),
    Mutation("backward: a penalty without its signal", "backward/_answer.py", "composite_prox(call.activation, call.penalty, v, 1.0, step / call.terms)", "composite_prox(call.activation, None, v, 1.0, step / call.terms)", "tests/backward/test_answers.py -k penalty"),
    Mutation("differences: a dead ReLU", "activations/differences.py", "scaled.clamp(max=0.0).neg_()", "scaled.clamp(max=0.0).mul_(0.0)", "tests/activations/test_differences.py"),
    Mutation("differences: softmax shifted without its mean", "activations/differences.py", "torch.expm1((s - d)", "torch.expm1((0.0 - d)", "tests/activations/test_differences.py -k softmax"),
    Mutation("differences: in float32 throughout", "activations/differences.py", "z_, t = z.double(), steps.double()", "z_, t = z, steps", "tests/activations/test_differences.py -k float32"),
    Mutation("chain: a jump of the wrong sign", CHAIN, "(2.0 * v[:, 1:].to(x.dtype) - 1.0)", "(1.0 - 2.0 * v[:, 1:].to(x.dtype))", VARIATION),
    Mutation("chain: jumps forgotten in the mean", CHAIN, "(x - before + after).flatten()", "x.flatten()", VARIATION),
    Mutation("plane: the gap without the dual", PLANE, " - (D * q).sum(0)).flatten(1)", ").flatten(1)", VARIATION),
    Mutation("plane: the adjoint of one dimension", PLANE, "u[..., 1:, :] += q[1][..., :-1, :]", "pass", VARIATION),
    Mutation("total variation: scale ignored along a line", "penalties/total_variation.py", "chain_prox(rows, self.weight * scale)", "chain_prox(rows, self.weight)", VARIATION),
    Mutation("sums: SquaredL2 does not shrink the scale", "penalties/sums.py", "scale / shrink), None", "scale), None", VARIATION),
    Mutation("scalar: the conjugate forgets the ends", "penalties/scalar.py", ", *(end for end in (self.low, self.high) if math.isfinite(end))]", "]", VARIATION),
    Mutation("primal-dual: prox_Ψ for prox_{σΨ/(1+σ)}", PRIMAL_DUAL, "layer.prox(v / (1.0 + sigma), sigma / (1.0 + sigma)) - y", "layer.prox(v / (1.0 + sigma), 1.0) - y", INVERSION),
    Mutation("primal-dual: the certificate without its radius", PRIMAL_DUAL, "radius * rest.flatten(1).norm(dim=1) - inner_product", "-inner_product", INVERSION),
    Mutation("primal-dual: the certificate without φ(y)", PRIMAL_DUAL, "layer.phi(p + y) - layer.phi(y)", "layer.phi(p + y)", INVERSION),
    Mutation("descent: samples that get worse are kept", "tasks/descent.py", "worse = ~(energies <= state.energies + rounding)", "worse = ~energies.isfinite()", INVERSION),
    Mutation("inversion: the penalty is left out of the energy", "tasks/_inverse_problem.py", " + self.penalties(point.x[0])", "", INVERSION),
    Mutation("inversion: outputs outside the range are taken", "tasks/_inversion_checks.py", "        _require_domain(problem, y)\n", "", "tests/tasks/test_inversion_mistakes.py"),
    Mutation("unfolded denoiser: the gradient's sign", UNFOLDED, "analyse(z - self.bank", "analyse(z + self.bank", f"{UNFOLDED_TESTS}forward_backward"),
    Mutation("unfolded denoiser: a step that is not over the threshold", UNFOLDED, "self.log_step.exp() / threshold", "self.log_step.exp()", f"{UNFOLDED_TESTS}soft_threshold"),
    Mutation("unfolded denoiser: the dual variable without its threshold", UNFOLDED, "synthesise(self.bank.threshold * v)", "synthesise(v)", f"{UNFOLDED_TESTS}total_variation"),
    Mutation("unfolded denoiser: noise added to the image", UNFOLDED, "return image - noise[", "return image + noise[", f"{UNFOLDED_TESTS}soft_threshold"),
    Mutation("unfolded denoiser: filters of several bases with too large a norm", "models/_filters.py", "math.prod(kernel) * len(blocks)", "math.prod(kernel)", f"{UNFOLDED_TESTS}norm_at_most_one"),
    Mutation("lb.Map: coupling through a second input goes unseen", "maps/determinism.py", "module(*(x[:1] for x in inputs))", "module(*inputs)[:1]", "tests/maps/test_maps.py -k couples"),
    Mutation("bench denoising: PSNR of outputs that are not clipped", f"{LAB}denoising/samples.py", "found.clamp(0.0, 1.0) - clean", "found - clean", "tests/lab/test_bench_denoising.py -k psnr"),
    Mutation("pictures: colours last", "data/loading.py", "pixels.permute(2, 0, 1)", "pixels.permute(2, 1, 0)", "tests/data/test_pictures.py -k once_and_kept"),
]  # fmt: skip


class Unproven(Exception):
    """A mutation that cannot be tried as it stands."""


class Trees:
    """Copies of the tree, each for one mutation at a time."""

    def __init__(self, folder: Path, number: int) -> None:
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._passes: dict[tuple[str, str], bool] = {}
        for place in range(number):
            tree = folder / str(place)
            for part in ("src", "lab", "tests"):
                shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", tree)
            self._free.put(tree)

    def caught(self, mutation: Mutation) -> bool:
        """Whether the mutation's tests fail on a mutated tree; the tree is restored."""
        tree = self._free.get()
        try:
            return self._caught(mutation, tree)
        finally:
            self._free.put(tree)

    def _caught(self, mutation: Mutation, tree: Path) -> bool:
        path = mutation.path(tree)
        original = path.read_text()
        if original.count(mutation.old) != 1:
            raise Unproven(f"its line stands {original.count(mutation.old)} times in {mutation.file}")
        for chosen in EVERY_DAY, ALL:
            if not self._pass(mutation.tests, chosen, tree):
                raise Unproven(f"{mutation.tests} fails without it too, and would prove nothing")
            path.write_text(original.replace(mutation.old, mutation.new))
            try:
                if fails(mutation.tests, chosen, tree):
                    return True
            finally:
                path.write_text(original)
        return False

    def _pass(self, tests: str, chosen: str, tree: Path) -> bool:
        """Whether the tests pass on the tree as it is; tried once for each."""
        with self._locks[tests + chosen]:
            if (tests, chosen) not in self._passes:
                self._passes[tests, chosen] = not fails(tests, chosen, tree)
            return self._passes[tests, chosen]


EVERY_DAY, ALL = "not long", ""  # pytest's marks
NONE_CHOSEN = 5  # pytest's exit code where no test has the marks


def fails(tests: str, chosen: str, tree: Path) -> bool:
    """Whether one of the tests fails; `chosen` are the marks of those that are run."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "lab" / "src")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", chosen, "-p", "no:cacheprovider", *tests.split()]
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1) and not (chosen and run.returncode == NONE_CHOSEN):
        raise Unproven(f"{tests}: pytest did not run\n{run.stdout}{run.stderr}")
    return run.returncode == 1


def main() -> None:
    """Tries the mutations and prints the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations to try; all by default")
    parser.add_argument("--workers", type=int, default=2, help="mutations that are tried at the same time")
    options = parser.parse_args()
    names = options.names
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    if unknown := set(names) - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"unknown mutations: {', '.join(sorted(unknown))}")
    number = 0
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(options.workers) as pool:
        trees = Trees(Path(directory), options.workers)
        tried = {pool.submit(trees.caught, mutation): mutation for mutation in chosen}
        for future in as_completed(tried):
            name = tried[future].name
            try:
                found = future.result()
            except Unproven as error:
                print(f"UNPROVEN  {name}: {error}", flush=True)
                continue
            number += found
            print(f"{'caught  ' if found else 'SURVIVED'}  {name}", flush=True)
    print(f"{number} of {len(chosen)} mutations caught: {100.0 * number / max(len(chosen), 1):.1f} %")
    sys.exit(0 if number == len(chosen) else 1)


if __name__ == "__main__":
    main()
