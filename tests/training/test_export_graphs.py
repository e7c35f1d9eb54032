"""Trained graphs are plain modules: torch.export and ONNX take them, and give the numbers of the model itself."""

import copy
import warnings

import pytest
import torch

import lifted_bregman as lb
from tests.graph.architectures import MODELS, answer, drawn, first

NAMES = ["post-activation residual", "language model", "two inputs"]
BATCH = torch.export.Dim("batch")


def trained(name):
    model, inputs = MODELS[name]()
    torch.manual_seed(2)
    X = drawn(inputs, 12)
    as_floats = tuple(x.float() if x.is_floating_point() else x for x in (X if isinstance(X, tuple) else (X,)))
    X = as_floats if len(as_floats) > 1 else as_floats[0]
    model = model.float()
    Y = torch.randn_like(answer(copy.deepcopy(model).eval(), X).detach())
    lb.fit(lb.lift(model, loss=lb.SquaredError(), example=first(X, 2)), (X, Y), epochs=2, batch_size=6)
    return model.eval(), as_floats


@pytest.mark.parametrize("name", NAMES)
def test_the_exported_program_computes_the_trained_model(name):
    model, X = trained(name)
    dynamic = tuple({0: BATCH} for _ in X)
    program = torch.export.export(model, tuple(x[:3] for x in X), dynamic_shapes=dynamic).module()
    with torch.no_grad():
        torch.testing.assert_close(program(*X), model(*X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_onnxruntime_computes_the_trained_model(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, X = trained(name)
    dynamic = tuple({0: BATCH} for _ in X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of its own internals
        program = torch.onnx.export(model, tuple(x[:3] for x in X), dynamo=True, dynamic_shapes=dynamic, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {own.name: x.numpy() for own, x in zip(session.get_inputs(), X, strict=True)}
    (found,) = session.run(None, given)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(*X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_goes_into_a_new_model(name):
    model, X = trained(name)
    other, _ = MODELS[name]()
    other = other.float().eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(other(*X), model(*X))
