"""Every activation leaves PyTorch: torch.export follows `as_module`, for batches of any size, and ONNX takes it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from lifted_bregman import activations as act
from tests import cases

BATCH = torch.export.Dim("batch")


def exported(activation, dtype):
    """The exported graph of an activation, traced with a batch of another size than it is called with."""
    module = activation.as_module()
    return torch.export.export(module, (torch.ones(7, 5, dtype=dtype),), dynamic_shapes=({0: BATCH},)).module()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_the_exported_graph_computes_the_activation(activation, dtype):
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(40, 5, generator=generator, dtype=dtype) * torch.logspace(-3, 2.5, 40, dtype=dtype)[:, None]
    atol = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(exported(activation, dtype)(z), activation(z), rtol=atol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_exported_sigmoid_keeps_its_tail(dtype):
    z = torch.linspace(-740.0, 740.0, 990, dtype=dtype).view(198, 5)
    assert torch.equal(exported(act.Sigmoid(), dtype)(z), act.Sigmoid()(z))


def test_the_exported_sparsemax_is_a_projection():
    z = torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.5], [9.0, 1.0, 1.0, 1.0, 1.0], [1.0, 0.9, 0.0, -3.0, 0.9]])
    # by hand: the threshold 0.6 of the third row solves (1 - t) + 2 (0.9 - t) = 1
    expected = torch.tensor([[0.2] * 5, [1.0, 0.0, 0.0, 0.0, 0.0], [0.4, 0.3, 0.0, 0.0, 0.3]])
    torch.testing.assert_close(exported(act.Sparsemax(), torch.float32)(z), expected, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("activation", [act.Softmax(), act.Sparsemax(), act.GroupSoftThreshold(0.7)], ids=cases.name)
def test_a_joint_activation_of_channels_is_exported(activation):
    module = activation.as_module(dim=1)
    graph = torch.export.export(module, (torch.ones(6, 4, 3, 2),), dynamic_shapes=({0: BATCH},)).module()
    z = torch.randn(5, 4, 3, 2, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(graph(z), module(z), rtol=1e-6, atol=1e-6)


def test_onnxruntime_agrees_with_every_activation():
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    branches = nn.ModuleList([activation.as_module() for activation in cases.ACTIVATIONS])

    class Side(nn.Module):
        """All activations of one z, so that one export serves for all."""

        def __init__(self):
            super().__init__()
            self.branches = branches

        def forward(self, z):
            return torch.stack([branch(z) for branch in self.branches])

    z = 2.0 * torch.randn(11, 5, generator=torch.Generator().manual_seed(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of its own internals
        program = torch.onnx.export(Side().eval(), (z[:3],), dynamo=True, dynamic_shapes=({0: BATCH},), verbose=False)
    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: z.numpy()})
    for activation, value in zip(cases.ACTIVATIONS, torch.from_numpy(found), strict=True):
        torch.testing.assert_close(value, activation(z), rtol=0.0, atol=1e-5, msg=lambda m, a=activation: f"{a}: {m}")
