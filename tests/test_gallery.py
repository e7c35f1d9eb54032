"""Every example of the gallery runs, in an empty folder and without warnings, and holds what it says.

The examples assert their own claims.  Here each gets one more check, by other means than it uses itself.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

DOCS = Path(__file__).parent.parent / "docs"
GALLERY = DOCS / "gallery"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs an example as a script in a folder of its own; returns its names."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("Agg", force=True)
    monkeypatch.chdir(tmp_path)
    random_state = torch.get_rng_state()

    def execute(name):
        return runpy.run_path(str(GALLERY / f"{name}.py"), run_name="__main__")

    yield execute
    plt.close("all")
    torch.set_rng_state(random_state)
    assert not os.listdir(tmp_path), "an example leaves nothing behind"


def accuracy(logits, labels):
    return np.mean(np.argmax(np.asarray(logits), axis=1) == np.asarray(labels))


@pytest.mark.long
def test_your_own_loop(run):
    names = run("your_own_loop")
    model, X = names["model"], names["digits"].test.X
    assert not any("forward" in vars(module) for module in model.modules())
    # relu, hardtanh, hardtanh: the forward pass in NumPy
    p = {key: value.double().numpy() for key, value in model.state_dict().items()}
    h = np.maximum(X.double().numpy() @ p["enter.weight"].T + p["enter.bias"], 0.0)
    for k in range(2):
        centred = h - h.mean(1, keepdims=True)
        normal = centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5) * p[f"norms.{k}.weight"] + p[f"norms.{k}.bias"]
        h = h + np.clip(normal @ p[f"blocks.{k}.weight"].T + p[f"blocks.{k}.bias"], -1.0, 1.0)
    found = accuracy(h @ p["leave.weight"].T + p["leave.bias"], names["digits"].test.y)
    assert found == pytest.approx(names["accuracies"]["lifted"], abs=1e-6)


@pytest.mark.long
def test_train_a_sequential(run):
    names = run("train_a_sequential")
    model, (first, *_, last) = names["model"], names["history"]
    assert [type(module) for module in model] == [nn.Linear, nn.ReLU, nn.Linear, nn.Tanh, nn.Linear]
    # the forward pass in NumPy, the cross-entropy from its definition
    W1, b1, W2, b2, W3, b3 = (p.detach().double().numpy() for p in model.parameters())
    Z = np.tanh(np.maximum(names["X"].double().numpy() @ W1.T + b1, 0.0) @ W2.T + b2) @ W3.T + b3
    labels = names["y"].numpy()
    log_sums = np.log(np.exp(Z).sum(1))
    assert last["objective"] == pytest.approx(np.mean(log_sums - Z[np.arange(len(Z)), labels]), rel=1e-4)
    assert accuracy(Z, labels) == pytest.approx(last["accuracy"], abs=1e-6)
    assert first["epoch"] == 1


@pytest.mark.long
def test_residual_network(run):
    names = run("residual_network")
    model, result = names["model"], names["result"]
    assert not model.training
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(names["X"]), names["y"])
    assert result.history[-1]["objective"] == pytest.approx(float(loss), rel=1e-4)
    # 1,433 digits in batches of 50: 29 steps an epoch, each of which records its statistics once
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert int(module.num_batches_tracked) == 29 * len(result.history)


def test_residual_form(run):
    names = run("residual_form")
    model, X = names["model"], names["X_test"].double().numpy()
    # x - max(Wx + b, 0), block after block in NumPy
    p = {key: value.double().numpy() for key, value in model.state_dict().items()}
    x = X @ p["enter.weight"].T + p["enter.bias"]
    for k in range(8):
        x = x - np.maximum(x @ p[f"blocks.{k}.weight"].T + p[f"blocks.{k}.bias"], 0.0)
    assert accuracy(x @ p["leave.weight"].T + p["leave.bias"], names["y_test"]) == pytest.approx(names["accuracy"])
    # entry, eight activations and the output; the stream adds a variable after each block but the last
    assert (names["derived"].depth, names["problem"].depth) == (1 + 8 + 1, 1 + 8 + 7 + 1)


@pytest.mark.long
def test_unfolded_denoiser(run):
    names = run("unfolded_denoiser")
    clean, found = names["Y_test"].double().numpy(), names["after"].clamp(0, 1).double().numpy()
    assert -10 * np.log10(np.mean((found - clean) ** 2)) == pytest.approx(names["psnr"](names["after"]), abs=1e-4)
    assert all((step.module.bank.threshold > 0).all() for step in names["model"].steps)


@pytest.mark.long
def test_small_gpt(run):
    names = run("small_gpt")
    model, X, Y = names["model"], names["X"], names["Y"]
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(X).flatten(0, 1), Y.flatten())
    assert names["nats"][-1] == pytest.approx(float(loss), rel=1e-4)
    # attention by torch's own softmax, from the parameters of the first block
    block, sample = model.blocks[0], names["sample"]
    with torch.no_grad():
        x = model.tokens(sample) + model.places
        q, k, _ = block.qkv(block.norm1(x))[0].split(32, dim=1)
        q, k = (t.view(-1, 4, 8).transpose(0, 1) for t in (q, k))
        later = torch.ones(24, 24, dtype=torch.bool).triu(1)
        weights = (q @ k.mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
    np.testing.assert_allclose(names["attention"], weights, atol=1e-5)
    assert model.head.weight is model.tokens.weight


@pytest.mark.long
def test_unet_denoiser(run):
    names = run("unet_denoiser")
    model, X, Y = names["model"], names["X"], names["Y"]
    with torch.no_grad():
        errors = 0.5 * (model(X) - Y).square().flatten(1).sum(1)
        first = nn.functional.softshrink(model.enter(X), 0.1)
    value = float((errors + 3e-3 * first.abs().flatten(1).sum(1)).mean())
    assert names["history"][-1]["objective"] == pytest.approx(value, rel=1e-4)


@pytest.mark.long
def test_data_loader_augmentation(run):
    names = run("data_loader_augmentation")
    digits, shifts = names["digits"].test, [(down, across) for down in (-1, 0, 1) for across in (-1, 0, 1)]
    images = digits.X.view(-1, 8, 8)
    for model, rows in ((names["model"], names["result"].history), (names["plain"], names["held"].history)):
        with torch.no_grad():
            reached = [accuracy(model(images.roll(s, dims=(1, 2)).flatten(1)), digits.y) for s in shifts]
        # one shift of each of 364 digits, drawn from nine: the deviation of a mean of as many is below 0.027
        assert rows[-1]["validation_accuracy"] == pytest.approx(np.mean(reached), abs=0.08)
    assert "objective" not in names["result"].history[-1] and "objective" in names["held"].history[-1]


@pytest.mark.long
def test_scikit_learn_pipeline(run):
    names = run("scikit_learn_pipeline")
    search, X, y = names["search"], names["X_test"], names["y_test"]
    assert len(search.cv_results_["params"]) == 4
    network, scaler = search.best_estimator_[-1].model_, search.best_estimator_[0]
    with torch.no_grad():
        logits = network(torch.from_numpy((X - scaler.mean_) / scaler.scale_).float())
    assert accuracy(logits, y) == pytest.approx(names["accuracy"], abs=0.005)  # the scaling was rounded differently
    assert names["codes"].shape == (len(X), 96)


@pytest.mark.long
def test_sparse_codes(run):
    names = run("sparse_codes")
    codes, X = names["codes"], names["X_test"]
    W1, b1, W2, b2 = (p.detach().double() for p in names["encoder"].parameters())
    before = ((X.double() @ W1.T + b1).clamp(min=0.0) @ W2.T + b2).numpy()
    by_hand = np.sign(before) * np.maximum(np.abs(before) - 0.15, 0.0)
    np.testing.assert_allclose(codes.numpy(), by_hand, atol=1e-5)
    assert names["sparsity"] == pytest.approx(np.mean(codes.numpy() == 0.0))
    assert names["result"].history[-1]["sparsity"] == pytest.approx(names["sparsity"], abs=0.1)


@pytest.mark.long
def test_detect_abnormal_samples(run):
    names = run("detect_abnormal_samples")
    # AUROC is the share of pairs of a six and another digit that are in order
    scores, six = names["scores"], names["labels"] == 6
    order = scores[six][:, None] < scores[~six][None]
    assert names["auroc"] == pytest.approx(order.mean(), abs=1e-6)
    assert set(names["other"].predict(names["images"][:50])) <= {-1, 1}


@pytest.mark.long
def test_invert_a_network(run):
    names = run("invert_a_network")
    W, y = names["linear"].weight.detach().double().numpy(), names["y"].double().numpy()
    u = names["found"]["α = 0.015"].input.double().numpy()
    z = u.reshape(1, -1) @ W.T
    # ½max(z, 0)² - yz + ½y² summed, and total variation from its definition
    loss = np.sum(0.5 * np.maximum(z, 0.0) ** 2 - y * z + 0.5 * y**2)
    across, down = np.zeros_like(u[0]), np.zeros_like(u[0])
    across[:, :-1], down[:-1] = np.diff(u[0], axis=1), np.diff(u[0], axis=0)
    energy = loss + 0.015 * np.sum(np.hypot(across, down))
    assert float(names["found"]["α = 0.015"].energy) == pytest.approx(energy, rel=1e-4)
    assert float(names["deep"].residual.max()) < 0.2 * float(names["outputs"].flatten(1).norm(dim=1).max())


@pytest.mark.long
def test_save_and_load(run):
    names = run("save_and_load")
    for loaded in (names["by_torch"], names["by_safetensors"]):
        assert loaded is not names["model"]
    assert accuracy(names["expected"], names["y"]) > 0.9
    # the copy that was loaded by torch was not trained further, and so still is what was saved
    with torch.no_grad():
        assert torch.equal(names["by_torch"](names["X"]), names["expected"])
        assert not torch.equal(names["model"](names["X"]), names["expected"])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # which torch's exporter itself uses
def test_export_to_onnx(run):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    names = run("export_to_onnx")
    outputs = names["outputs"].astype(np.float64)
    assert outputs.shape == (len(names["X"]), 10)
    np.testing.assert_allclose(outputs.sum(1), 1.0, atol=1e-5)  # points of the simplex
    # their projection: z - p is the same number on the support, and not larger off it
    with torch.no_grad():
        z = names["model"][:-1](names["X"]).double().numpy()
    thresholds = np.where(outputs > 0, z - outputs, -np.inf).max(1, keepdims=True)
    assert np.all(np.abs(z - outputs - thresholds)[outputs > 0] < 1e-4)
    assert np.all((z <= thresholds + 1e-4)[outputs == 0])
    used = {node.op_type for node in names["onnx_program"].model_proto.graph.node}
    assert "Atan" in used


@pytest.mark.long
def test_fine_tune(run):
    names = run("fine_tune")
    for model, reached in ((names["forth"], names["lifted_then_adam"]), (names["back"], names["adam_then_lifted"])):
        assert len(reached) == 12
        with torch.no_grad():
            logits = model(names["X"]).double()
        nll = -logits.log_softmax(1).gather(1, names["y"][:, None]).mean()
        assert reached[-1] == pytest.approx(float(nll), rel=1e-4)
    assert names["lifted_then_adam"][0] != names["adam_then_lifted"][0]


@pytest.mark.long
def test_resume(run):
    names = run("resume")
    rows = names["resumed"].history
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert [row["step"] for row in rows] == list(range(15, 121, 15))  # 1,433 digits in batches of 100
    assert rows[:3] == names["interrupted"].history, "rows before the cut are not made again"
    assert names["continued"] is not names["expected"]


@pytest.mark.long
def test_your_own_parts(run):
    scipy_integrate = pytest.importorskip("scipy.integrate")
    names = run("your_own_parts")
    activation = names["activation"]
    for z in (-2.5, 0.4, 3.0):
        integral, _ = scipy_integrate.quad(lambda t: 0.5 * (t + np.sqrt(t * t + 1.0)), 0.0, z, epsabs=1e-12)
        found = float(activation.conjugate(torch.tensor([z], dtype=torch.float64)))
        assert found == pytest.approx(integral, abs=1e-9)
    last = names["movement"].moves[-1]
    assert len(last) == 2 and max(last) < 0.05 <= max(names["movement"].moves[-2])


def cross_entropy(model, X, y):
    """Of a network of two linear maps and a ReLU, in NumPy."""
    W1, b1, W2, b2 = (p.detach().double().numpy() for p in model.parameters())
    Z = np.maximum(X.double().numpy() @ W1.T + b1, 0.0) @ W2.T + b2
    return np.mean(np.log(np.exp(Z).sum(1)) - Z[np.arange(len(Z)), y.numpy()])


def of_a_tool(test):
    """A long test in which the tool may warn of few workers, and of functions of torch and of others that will go."""
    for allowed in ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*does not have many workers"):
        test = pytest.mark.filterwarnings(allowed)(test)
    return pytest.mark.long(test)


@of_a_tool
def test_with_lightning(run):
    pytest.importorskip("lightning")
    names = run("with_lightning")
    held_out = names["digits"].test
    by_lifted, by_autograd = names["by_lifted"].net, names["by_autograd"].net
    assert np.isclose(
        cross_entropy(names["restored"].net, held_out.X, held_out.y), cross_entropy(by_lifted, held_out.X, held_out.y)
    )
    assert cross_entropy(by_lifted, held_out.X, held_out.y) < 0.5
    assert not torch.equal(by_lifted[0].weight, by_autograd[0].weight), "lifted signals are others"
    assert [len(losses) for losses in names["rows"].values()] == [8, 8]


@of_a_tool
def test_with_accelerate(run):
    pytest.importorskip("accelerate")
    names = run("with_accelerate")
    model = names["model"]
    W1, b1, W2, b2 = (p.detach().double().numpy() for p in model.parameters())
    Z = np.tanh(names["X"].double().numpy() @ W1.T + b1) @ W2.T + b2
    assert accuracy(Z, names["y"]) == pytest.approx(names["accuracy"], abs=1e-6)
    assert not torch.equal(model[0].weight, names["by_autograd"][0].weight), "lifted signals are others"
    assert len(names["lifted_losses"]) == 8 and names["lifted_losses"][-1] < 0.2 * names["lifted_losses"][0]


@of_a_tool
def test_with_tensorboard(run):
    pytest.importorskip("tensorboard")
    follows_its_curve(run("with_tensorboard"))


@of_a_tool
def test_with_mlflow(run, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # so that it is taken back
    follows_its_curve(run("with_mlflow"))


@of_a_tool
def test_with_wandb(run):
    pytest.importorskip("wandb")
    names = run("with_wandb")
    follows_its_curve(names | {"curves": {"loop": list(enumerate(names["losses"], start=1))}})


def follows_its_curve(names):
    """The last point of a loop is the cross-entropy of its model."""
    assert len(names["curves"]["loop"]) == 8
    assert names["curves"]["loop"][-1][1] == pytest.approx(cross_entropy(names["model"], *names["held_out"]), rel=1e-4)


def test_examples_of_tools_that_are_missing_are_not_run():
    order = runpy.run_path(str(DOCS / "_extensions" / "gallery_order.py"))
    for name, package in order["NEEDS"].items():
        assert re.search(rf"^(import|from) {package}\b", (GALLERY / f"{name}.py").read_text(), re.M), name
    pattern = order["executed"](["with_wandb", "with_mlflow"])
    run = {path.stem for path in GALLERY.glob("*.py") if re.search(pattern, str(path))}
    assert run == set(order["ORDER"]) - {"with_wandb", "with_mlflow"}
    assert all(re.search(order["executed"]([]), str(path)) for path in GALLERY.glob("*.py"))


def test_every_example_is_tested_and_has_its_place():
    examples = {path.stem for path in GALLERY.glob("*.py")}
    assert examples == {name.removeprefix("test_") for name in globals() if name.startswith("test_")} - {
        "every_example_is_tested_and_has_its_place",
        "examples_are_readable_on_their_pages",
        "examples_of_tools_that_are_missing_are_not_run",
    }
    order = runpy.run_path(str(DOCS / "_extensions" / "gallery_order.py"))
    assert set(order["ORDER"]) == examples
    with pytest.raises(ValueError, match="not in tuple"):
        order["key"]("forgotten.py")


@pytest.mark.parametrize("path", sorted(GALLERY.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_readable_on_their_pages(path):
    """A page shows 90 characters of a line of code; text is set by the browser."""
    code = path.read_text().split('"""', 2)[2]
    for line in code.splitlines():
        assert len(line) <= 90 or line.startswith("#"), line
