"""Decompositions equal torch's own modules and functions, and a trace shows each activation in them.

The oracle is torch: outputs, and derivatives with respect to inputs and parameters, in float64.  What is compared
is the traced graph, run on another number of samples than the one it was traced with.
"""

import itertools
import random

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import lifted_bregman as lb
from lifted_bregman.errors import SettingError, UnsupportedModuleError
from lifted_bregman.graph.decompose import FUNCTIONS, MODULES, normal_cdf

F64 = torch.float64


class ExampleProxy(fx.Proxy):
    """A proxy that knows the shape and dtype of what it stands for."""

    @property
    def example(self):
        return self.node.meta["example"]

    @property
    def shape(self):
        return self.example.shape

    @property
    def dtype(self):
        return self.example.dtype

    @property
    def device(self):
        return self.example.device

    def size(self, dim=None):
        return self.example.size() if dim is None else self.example.size(dim)

    def dim(self):
        return self.example.dim()


class ExampleTracer(fx.Tracer):
    """Runs every node on an example, and writes out what is in the tables."""

    proxy_buffer_attributes = True

    def __init__(self, example):
        super().__init__()
        self.first = example
        self.running = False

    def getattr(self, attr, value, cache):
        return value if self.running else super().getattr(attr, value, cache)

    def proxy(self, node):
        return ExampleProxy(node, self)

    def create_proxy(self, kind, target, args, kwargs, *rest, **more):
        if kind == "call_function" and target in FUNCTIONS:
            return FUNCTIONS[target](*args, **kwargs)
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        values, options = pytree.tree_map_only(fx.Proxy, lambda p: p.node.meta["example"], (args, kwargs))
        self.running = True  # modules give their parameters, not proxies of them
        with torch.no_grad():
            proxy.node.meta["example"] = self.run(kind, target, values, options)
        self.running = False
        return proxy

    def run(self, kind, target, values, options):
        if kind == "placeholder":
            return self.first
        if kind == "get_attr":
            return _attribute(self.root, target)
        if kind == "call_function":
            return target(*values, **options)
        if kind == "call_method":
            return getattr(values[0], target)(*values[1:], **options)
        if kind == "call_module":
            return _attribute(self.root, target).forward(*values, **options)
        return None

    def call_module(self, module, forward, args, kwargs):
        if type(module) in MODULES:
            return MODULES[type(module)](module, *args, **kwargs)
        return super().call_module(module, forward, args, kwargs)


def _attribute(root, path):
    for name in path.split("."):
        root = getattr(root, name)
    return root


class Call(nn.Module):
    """Calls `function(module, *tensors)`."""

    def __init__(self, module, function, number):
        super().__init__()
        self.module, self.function, self.number = module, function, number

    def forward(self, tensors):
        return self.function(self.module, *[tensors[i] for i in range(self.number)])


def trace(module, function, tensors):
    root = Call(module, function, len(tensors))
    return fx.GraphModule(root, ExampleTracer(tuple(tensors)).trace(root))


def targets(graph_module):
    """How often each function or method is called in a trace."""
    nodes = [node.target for node in graph_module.graph.nodes if node.op in ("call_function", "call_method")]
    return {target: nodes.count(target) for target in nodes}


def outputs_and_gradients(run, module, tensors):
    """All outputs, and the derivatives of a fixed combination of them, as two lists."""
    tensors = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    outputs = [out for out in pytree.tree_leaves(run(*tensors)) if out is not None]
    generator = torch.Generator().manual_seed(7)
    loss = sum((out * torch.randn(out.shape, generator=generator, dtype=F64)).sum() for out in outputs)
    leaves = [t for t in tensors if t.requires_grad] + [p for p in module.parameters() if p.requires_grad]
    return outputs, torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def assert_same(module, function, make, gradient_atol=1e-12):
    """`make(samples)` gives the tensors; the trace of 2 samples has to equal torch for 3."""
    traced = trace(module, function, make(2))
    tensors = make(3)
    expected = outputs_and_gradients(lambda *own: function(module, *own), module, tensors)
    actual = outputs_and_gradients(lambda *own: traced(own), module, tensors)
    for ours, theirs, atol in zip(actual, expected, (1e-12, gradient_atol), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=atol, equal_nan=True)
    return traced


def covering(**options):
    """Few rows of options in which every pair of values of two options occurs."""
    generator = random.Random(0)
    missing = {
        frozenset([(one, a), (other, b)])
        for one, other in itertools.combinations(options, 2)
        for a, b in itertools.product(options[one], options[other])
    }
    rows = []
    while missing:
        first = dict(min(missing, key=sorted_names))  # one missing pair, and what else fits best of 60 draws
        drawn = [{name: generator.choice(values) for name, values in options.items()} | first for _ in range(60)]
        rows.append(max(drawn, key=lambda row: sum(pair <= row.items() for pair in missing)))
        missing = {pair for pair in missing if not pair <= rows[-1].items()}
    return [pytest.param(row, id="-".join(str(value) for value in row.values())) for row in rows]


def sorted_names(pair):
    return sorted((name, str(value)) for name, value in pair)


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# Gates

MODULE_GATES = {
    "SiLU": (nn.SiLU(), {torch.sigmoid: 1}),
    "GELU": (nn.GELU(), {normal_cdf: 1}),
    "GELU tanh": (nn.GELU(approximate="tanh"), {torch.tanh: 1}),
    "Mish": (nn.Mish(), {torch.tanh: 1, F.softplus: 1}),
    "Hardswish": (nn.Hardswish(), {F.hardsigmoid: 1}),
    "GLU": (nn.GLU(), {torch.sigmoid: 1}),
    "GLU, dim 1": (nn.GLU(1), {torch.sigmoid: 1}),
    "Softmin": (nn.Softmin(-1), {torch.softmax: 1}),
    "Softmin, dim 1": (nn.Softmin(1), {torch.softmax: 1}),
}
FUNCTION_GATES = {
    "silu": lambda x: F.silu(x),
    "gelu": lambda x: F.gelu(x),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": lambda x: F.mish(x),
    "hardswish": lambda x: F.hardswish(x),
    "glu": lambda x: F.glu(x),
    "glu, dim": lambda x: F.glu(x, dim=1),
    "softmin": lambda x: F.softmin(x, dim=-1),
    "softmin, dim": lambda x: F.softmin(x, 1),
}


# In float64 torch's derivative of hardsigmoid is 1/6 rounded to float32, 5e-9 off; |x| is below 20.
SLACK = {"Hardswish": 1e-7, "hardswish": 1e-7}


def gate_inputs(samples):
    return [4.0 * draw(samples, samples, 6, 80)]


@pytest.mark.parametrize("name", MODULE_GATES)
def test_modules_of_gates_equal_torch(name):
    module, seen = MODULE_GATES[name]
    traced = assert_same(module, lambda own, x: own(x), gate_inputs, SLACK.get(name, 1e-12))
    assert seen.items() <= targets(traced).items()
    assert not any(node.op == "call_module" for node in traced.graph.nodes)


@pytest.mark.parametrize("name", FUNCTION_GATES)
def test_functions_of_gates_equal_torch(name):
    function = FUNCTION_GATES[name]
    traced = assert_same(nn.Identity(), lambda own, x: function(x), gate_inputs, SLACK.get(name, 1e-12))
    assert not FUNCTIONS.keys() & targets(traced).keys()


@pytest.mark.parametrize("module", [nn.SiLU(inplace=True), nn.Mish(inplace=True), nn.Hardswish(inplace=True)])
def test_gates_in_place_return_a_new_tensor_of_the_same_numbers(module):
    (x,) = gate_inputs(2)
    given = x.clone()
    torch.testing.assert_close(trace(module, lambda own, x: own(x), [x])((x,)), module(given.clone()))
    assert torch.equal(x, given)


def test_settings_that_torch_would_refuse_are_refused():
    x = draw(0, 2, 3)
    for name, call in {
        "halves": lambda own, x: F.glu(x),
        "dimension": lambda own, x: F.softmin(x),
        "'erf'": lambda own, x: F.gelu(x, approximate="erf"),
    }.items():
        with pytest.raises(SettingError, match=name):
            trace(nn.Identity(), call, [x])


# The normal distribution function as an activation

ENDS = [-9.0, -3.0, -1.0, -0.1, 0.0, 0.2, 1.5, 4.0, 8.0]


def test_normal_cdf_keeps_its_digits_in_both_tails():
    mpmath = pytest.importorskip("mpmath")
    for z in (-37.0, -20.0, -8.0, -1.0, -1e-9, 0.0, 0.3, 2.0, 9.0):
        with mpmath.workdps(40):
            exact = float(mpmath.ncdf(mpmath.mpf(z)))
        assert float(normal_cdf(torch.tensor(z, dtype=F64))) == pytest.approx(exact, rel=1e-12, abs=0.0)


def test_a_trace_shows_normal_cdf_as_one_call():
    traced = trace(nn.GELU(), lambda own, x: own(x), gate_inputs(2))
    assert targets(traced)[normal_cdf] == 1
    assert torch.erfc not in targets(traced)


def test_normal_cdf_is_a_proximal_map_whose_bregman_loss_and_prox_are_accurate():
    mpmath = pytest.importorskip("mpmath")
    own = lb.activations.FromScalar(normal_cdf)
    z = torch.tensor(ENDS, dtype=F64).unsqueeze(1)
    x = torch.tensor([1e-6, 0.02, 0.1, 0.4, 0.5, 0.7, 0.93, 0.999, 1.0 - 1e-6], dtype=F64).unsqueeze(1)

    def phi_star(s):  # ∫_0^s Φ = s Φ(s) + density(s) - density(0)
        return s * mpmath.ncdf(s) + mpmath.npdf(s) - mpmath.npdf(0)

    def inverse(u):
        return mpmath.sqrt(2) * mpmath.erfinv(2 * u - 1)

    with mpmath.workdps(40):
        for zi, xi, loss in zip(z.flatten().tolist(), x.flatten().tolist(), own.bregman(x, z).tolist(), strict=True):
            u, v = mpmath.mpf(xi), mpmath.mpf(zi)
            s = inverse(u)
            exact = (u * s - phi_star(s)) + phi_star(v) - u * v  # φ(x) + φ*(z) - x z
            assert loss == pytest.approx(float(exact), rel=1e-9, abs=1e-13)
        for c in (0.3, 1.0, 4.0):
            for v, u in zip(z.flatten().tolist(), own.prox(z, c).flatten().tolist(), strict=True):
                # u = Φ(s) with Φ(s) + c (s - Φ(s)) = v, which increases in s
                s = mpmath.findroot(
                    lambda s, c=c, v=v: mpmath.ncdf(s) + c * (s - mpmath.ncdf(s)) - v,
                    (-60.0, 60.0), solver="anderson", tol=1e-50, maxsteps=400, verify=False,
                )  # fmt: skip
                assert u == pytest.approx(float(mpmath.ncdf(s)), rel=1e-9, abs=1e-14)


def test_tables_name_functions_and_modules_of_torch_only():
    assert all(kind.__module__.startswith("torch.nn.modules") for kind in MODULES)
    assert all(getattr(F, function.__name__) is function for function in FUNCTIONS)
    assert nn.SELU not in MODULES and F.selu not in FUNCTIONS


def test_multi_head_attention_forward_is_refused():
    own = nn.MultiheadAttention(4, 2, dtype=F64)

    def call(own, x):
        weights = (own.in_proj_weight, own.in_proj_bias, None, None, False, 0.0, own.out_proj.weight, own.out_proj.bias)
        return F.multi_head_attention_forward(x, x, x, 4, 2, *weights)[0]

    with pytest.raises(UnsupportedModuleError, match=r"nn\.MultiheadAttention"):
        trace(own, call, [draw(0, 3, 2, 4)])
