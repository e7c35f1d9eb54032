"""With what training scripts use: compile, autocast, GradScaler, checkpointing, torch.func, export, DDP, FSDP."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import lifted_bregman as lb
from tests.backward.nets import Residual, Transformer, assert_same, batch, chain, gradients
from tests.distributed.processes import forked
from tests.graph import architectures

# torch.compile


def compiled(model, backend):
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own parts
        return torch.compile(model, fullgraph=True, backend=backend)


def compare_compiled(model, x, y, backend, **options):
    model = lb.lifted_backward(model, 2.0, example=x[:2], **options)
    expected = gradients(model, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = gradients(compiled(model, backend), x, y)
    assert_same({key.removeprefix("_orig_mod."): g for key, g in found.items()}, expected, rtol=1e-4, atol=1e-6)


def test_a_compiled_residual_network_has_no_graph_break_and_the_same_gradients():
    torch.manual_seed(0)
    compare_compiled(Residual(), *batch(dtype=torch.float32), "aot_eager")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("kind", ["resnet", "residual", "transformer", "gates", "own"])
def test_compiled_models_have_the_same_gradients(kind, backend):
    torch.manual_seed(0)
    x, y = batch(dtype=torch.float32)
    if kind == "resnet":
        compare_compiled(architectures.ResNet(), torch.randn(4, 2, 8, 8), torch.arange(4) % 3, backend)
    elif kind == "residual":
        compare_compiled(Residual(), x, y, backend)
    elif kind == "transformer":
        compare_compiled(Transformer(), torch.arange(12).view(3, 4) % 11, torch.arange(3), backend)
    elif kind == "gates":
        compare_compiled(chain(nn.GELU(), nn.SiLU(), dtype=torch.float32), x, y, backend, gates=True)
    else:
        own = chain(lb.activations.GroupSoftThreshold(0.1).as_module(), nn.Softplus(), nn.Hardsigmoid())
        compare_compiled(own.float(), x, y, backend)


# Precision


def test_autocast_takes_differences_in_float32():
    torch.manual_seed(0)
    model = chain(nn.ReLU(), nn.Tanh(), nn.Softmax(-1), widths=(5, 64, 64, 64), dtype=torch.float32)
    x, y = batch(samples=32, dtype=torch.float32)
    lifted = lb.lifted_backward(copy.deepcopy(model), 1e-3)
    full = gradients(lifted, x, y)

    def in_half(model):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        return {key: p.grad.clone() for key, p in model.named_parameters()}

    # ν g is some 1e-6, far below bfloat16's 4e-3: a difference taken in it would be 0 or rubbish
    half, plain = in_half(lifted), in_half(model)
    for key, g in full.items():
        error = (half[key] - g).norm() / g.norm()
        assert error <= 1.5 * (plain[key] - gradients(model, x, y)[key]).norm() / g.norm() + 1e-3 and error < 0.05


def test_a_grad_scaler_is_accounted_for():
    x, y = batch(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    plain = Residual()
    expected = gradients(lb.lifted_backward(copy.deepcopy(plain), 2.0), x, y)
    model = lb.lifted_backward(copy.deepcopy(plain), 2.0, loss_scale=scaler)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):  # and after the scale has changed
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        assert_same({key: p.grad for key, p in model.named_parameters()}, expected, rtol=1e-4, atol=1e-6)
        scaler.update(2.0**14)
    # overflow is seen, and the step left out
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    scaler.scale(1e38 * F.cross_entropy(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert scaler.get_scale() < 2.0**14
    assert copy.deepcopy(model).forward.rule.loss_scale is scaler


# Checkpointing


class Blocks(nn.Module):
    """Blocks that are recomputed in the backward pass, if asked."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(5, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(Residual() for _ in range(2))
        for block in self.blocks:
            block.enter, block.leave = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Tanh())
        self.how = how

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        for block in self.blocks:
            h = block(h) if self.how is None else checkpoint(block, h, use_reentrant=self.how)
        h = self.last(h) if self.how is None else checkpoint_sequential(self.last, 2, h, use_reentrant=self.how)
        return self.leave(h)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_have_the_same_gradients(reentrant):
    x, y = batch()
    expected_model = lb.lifted_backward(Blocks(None).double(), 2.0)
    model = lb.lifted_backward(Blocks(reentrant).double(), 2.0)
    for _ in range(2):
        assert_same(gradients(model, x, y), gradients(expected_model, x, y), rtol=1e-12, atol=1e-15)
    found, expected = lb.backward_report(model), lb.backward_report(expected_model)
    assert found.longest_path == expected.longest_path == 11
    assert {row.kind for row in found.lifted} == {row.kind for row in expected.lifted}


# torch.func and export


def test_torch_func_gives_the_same_gradients():
    model = lb.lifted_backward(Residual().double(), 2.0)
    x, y = batch()
    expected = gradients(model, x, y)
    parameters = {key: p.detach() for key, p in model.named_parameters()}

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    assert_same(grad(loss)(parameters, x, y), expected, rtol=1e-10, atol=1e-14)
    each = vmap(grad(lambda p, x, y: loss(p, x[None], y[None])), (None, 0, 0))(parameters, x, y)
    assert_same({key: g.mean(0) for key, g in each.items()}, expected, rtol=1e-10, atol=1e-14)


def test_a_lifted_model_is_exported_as_the_plain_one():
    model = architectures.ResNet().eval()
    x = torch.randn(3, 2, 8, 8)
    plain = torch.export.export(copy.deepcopy(model), (x,))
    lifted = torch.export.export(lb.lifted_backward(model), (x,))
    assert [node.target for node in lifted.graph.nodes] == [node.target for node in plain.graph.nodes]
    assert torch.equal(lifted.module()(x), plain.module()(x))
    again = torch.export.export(lb.plain_backward(model), (x,))
    assert torch.equal(again.module()(x), plain.module()(x))


@pytest.mark.long
def test_onnxruntime_computes_the_plain_model():
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = lb.plain_backward(lb.lifted_backward(architectures.ResNet())).eval()
    x = torch.randn(3, 2, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-5)


# Several processes


def shared_gradients(rank, kind):
    """The gradients of one of two processes, each with half of the batch."""
    dist.init_process_group("gloo")
    try:
        torch.manual_seed(0)
        x, y = batch(samples=8)
        rows = slice(4 * rank, 4 * rank + 4)
        model = lb.lifted_backward(Residual().double(), 2.0, example=x[:2])
        if kind == "ddp":
            return gradients(nn.parallel.DistributedDataParallel(model), x[rows], y[rows])
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model.block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        return {key: p.grad.full_tensor() for key, p in model.named_parameters()}
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
def test_two_processes_have_the_gradients_of_one(kind):
    torch.manual_seed(0)
    x, y = batch(samples=8)
    expected = gradients(lb.lifted_backward(Residual().double(), 2.0), x, y)
    for found in forked(2, lambda rank: shared_gradients(rank, kind)):
        assert isinstance(found, dict), found
        found = {key.removeprefix("module."): g for key, g in found.items()}
        assert_same(found, expected, rtol=1e-10, atol=1e-14)
