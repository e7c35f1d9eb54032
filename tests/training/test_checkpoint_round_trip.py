"""What is saved comes back bit by bit, and the files are what the documentation says they are."""

import hashlib
import json
import math
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.training import snapshot as snapshot_module
from lifted_bregman.training.checkpoints import Checkpoints, Snapshot, verify_checkpoint
from lifted_bregman.training.manifest import json_hash
from lifted_bregman.training.snapshot import load_tensors
from tests.training.checkpoint_helpers import bits, memory_folder, snapshot

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
    torch.float8_e4m3fnuz,
    torch.float8_e8m0fnu,
    torch.complex64,
    torch.complex128,
    torch.complex32,
]
WHOLE = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64]
# What the safetensors library itself can read into torch.
KNOWN_TO_SAFETENSORS = [*FLOATS[:8], torch.complex64, *WHOLE, torch.int64]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


def every_bit_pattern(dtype: torch.dtype) -> Tensor:
    """Finite numbers of a dtype: all of them for 8 bits, else a sample of the patterns with the extremes."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True])
    patterns = torch.arange(256, dtype=torch.uint8)
    if dtype.itemsize > 1:
        draw = torch.Generator().manual_seed(0)
        patterns = torch.randint(0, 256, (64 * dtype.itemsize,), generator=draw, dtype=torch.uint8)
        patterns[: dtype.itemsize] = 0
        patterns[dtype.itemsize : 2 * dtype.itemsize] = 0x80  # with -0 or a subnormal among them
    values = patterns.view(dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        return values
    numbers = values if not dtype.is_complex else torch.view_as_real(values)
    finite = numbers.to(torch.float64).isfinite()
    return values[finite.all(-1) if dtype.is_complex else finite]


def saved_and_loaded(folder: Path, value: Any) -> Any:
    checkpoints = Checkpoints(folder)
    checkpoints.save(Snapshot(1, {"model": value}, {}, {}))
    return checkpoints.load().snapshot.parts["model"]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE, torch.int64], ids=str)
def test_every_dtype_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    line = every_bit_pattern(dtype)
    assert len(line) >= 3
    value = {"line": line, "scalar": line[1], "empty": line[:0].reshape(0, 3), "every second": line[::2]}
    loaded = saved_and_loaded(tmp_path, value)
    assert bits(loaded) == bits(value)
    if dtype in KNOWN_TO_SAFETENSORS:
        read = safetensors.torch.load_file(tmp_path / "step-00000001" / "model.safetensors")
        assert bits({name: read[name] for name in value}) == bits(value)


@pytest.mark.parametrize("dtype", KNOWN_TO_SAFETENSORS, ids=str)
def test_files_of_the_safetensors_library_are_read(dtype: torch.dtype) -> None:
    line = every_bit_pattern(dtype)
    tensors = {"b": line, "a": line[:3].clone(), "none": line[:0].clone(), "0": line[2].clone()}
    read = load_tensors(safetensors.torch.save(tensors, {"some": "metadata"}))
    assert bits({name: read[name] for name in tensors}) == bits(tensors)


def test_views_come_back_with_memory_of_their_own(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    numbers = torch.randn(5, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    value = {
        "tied": (base, base),
        "transposed": base.t(),
        "expanded": base[:1].expand(3, 6),
        "inner": base[1:3, 2:4],
        "backwards": base.flip(0)[::2],
        "conjugate": numbers.conj(),
        "negative": numbers.conj().imag,
        "negative in one piece": torch._neg_view(base),
        "parameter": nn.Parameter(base.clone()),
    }
    loaded = saved_and_loaded(tmp_path, value)
    assert bits(loaded) == bits(value)
    first, second = loaded["tied"]
    first.zero_()
    assert torch.equal(second, base)


def test_a_tied_network_is_restored(tmp_path: Path) -> None:
    def network(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return model

    model, other = network(1), network(2)
    loaded = saved_and_loaded(tmp_path, model.state_dict())
    other.load_state_dict(loaded)
    assert bits(dict(other.state_dict())) == bits(dict(model.state_dict()))
    assert other[2].weight is other[0].weight
    third = network(3)
    third.load_state_dict(safetensors.torch.load_file(tmp_path / "step-00000001" / "model.safetensors"))
    assert bits(dict(third.state_dict())) == bits(dict(model.state_dict()))


NUMBERS = st.none() | st.booleans() | st.integers() | st.integers(-(2**128), 2**128) | st.floats(width=64) | st.text()
KEYS = st.text() | st.integers()
TENSORS = st.lists(st.integers(-100, 100), max_size=4).map(lambda row: torch.tensor(row, dtype=torch.float32))
TREES = st.recursive(
    NUMBERS | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=25,
)


@given(tree=TREES)
def test_any_nesting_comes_back(tree: Any) -> None:
    with memory_folder() as folder:
        assert bits(saved_and_loaded(folder, tree)) == bits(tree)


@pytest.mark.parametrize(
    "value",
    [
        {1: "int", "1": "str", -5: 0, "": None},
        {"a.b": torch.ones(1), "a": {"b": torch.zeros(2)}, "a.b:2": torch.ones(3)},  # names that would collide
        {"__metadata__": torch.ones(2)},
        {"tensor": ["x", "float32"], "float": "0" * 16, "tuple": [], "dict": []},  # words of our own notation
        [{"tensor": ["x", "float32"]}, {"float": "0" * 16}, {"tuple": []}, {"dict": []}, {"other": {}}],
        {chr(0xD800): torch.ones(2), chr(0xDFFF): torch.zeros(2), "bad": chr(0xD800)},  # no text, but allowed
        torch.tensor(2.5),
        torch.ones([1] * 65),
        (((((),),),), [], {}),
        [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, struct.unpack("<d", b"\1\2\3\4\5\6\xf8\xff")[0]],
        2**4095,
        -(2**64),
        None,
    ],
)
def test_awkward_values_come_back(tmp_path: Path, value: Any) -> None:
    assert bits(saved_and_loaded(tmp_path, value)) == bits(value)
    safetensors.torch.load_file(tmp_path / "step-00000001" / "model.safetensors")  # other programs can read it too


def test_the_awkward_nan_is_not_the_ordinary_one() -> None:
    assert bits(struct.unpack("<d", b"\1\2\3\4\5\6\xf8\xff")[0]) != bits(math.nan)


def test_mappings_and_subclasses_come_back_plain(tmp_path: Path) -> None:
    value = OrderedDict(z=1, a=MappingProxyType({"size": torch.Size([2, 3])}))
    loaded = saved_and_loaded(tmp_path, value)
    assert bits(loaded) == bits({"z": 1, "a": {"size": (2, 3)}})


def test_state_and_settings_come_back(tmp_path: Path) -> None:
    state = {"epoch": 3, "seconds": 0.1 + 0.2, "best": math.inf, "text": "Ω\n", "rows": [1, [None, True]]}
    settings = MappingProxyType({"rate": 1e-3, "layers": (784, 10)})
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Snapshot(7, {}, state, settings))
    loaded = checkpoints.load().snapshot
    assert loaded.step == 7
    assert bits(loaded.state) == bits(state)
    assert bits(loaded.settings) == bits({"rate": 1e-3, "layers": (784, 10)})


def test_the_folder_is_laid_out_as_documented(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    path = Checkpoints(folder).save(snapshot(1234), best=True)
    assert path == folder / "step-00001234"
    assert sorted(entry.name for entry in folder.iterdir()) == ["LATEST", "step-00001234"]
    assert (folder / "LATEST").read_text() == "step-00001234\n"
    files = {"model.safetensors", "solver.safetensors", "variables.safetensors", "state.json"}
    assert {entry.name for entry in path.iterdir()} == files | {"manifest.json"}
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["torch"] == torch.__version__
    assert set(manifest["files"]) == files
    for name, entry in manifest["files"].items():
        data = (path / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert manifest["settings_sha256"] == json_hash({"solver": "ADMM", "width": 8})
    verified = verify_checkpoint(path)
    assert (verified.step, verified.best) == (1234, True)
    assert {name: file.size for name, file in verified.files.items()} == {n: (path / n).stat().st_size for n in files}


def test_the_hash_of_settings_is_that_of_their_canonical_json() -> None:
    expected = hashlib.sha256(b'{"a":[1,2.5,null],"b":"\\u00e9"}').hexdigest()
    assert json_hash({"b": "é", "a": (1, 2.5, None)}) == expected
    assert json_hash({"a": [1, 2.5, None], "b": "é"}) == expected
    assert json_hash({"a": [1, 2.5, 0], "b": "é"}) != expected


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def loop() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x": object()}, "model['x'] is a object"),
        ({"x": {1.5: 0}}, "model['x'] has the key 1.5"),
        ({True: 0}, "the key True"),
        ({"x": [0, {"set": {1}}]}, "model['x'][1]['set'] is a set"),
        ({"x": torch.ones(2).to_sparse()}, "model['x'] is a sparse_coo tensor"),
        ({"x": torch.empty(2, device="meta")}, "on meta"),
        ({"x": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, "float4"),
        ({"x": deep(70)}, "nested deeper"),
        ({"x": loop()}, "nested deeper"),
        ({"x": 1 << 20000}, "cannot be written as JSON"),
        ({"x": ["word" * 100] * 20000}, "bytes of JSON"),
    ],
)
def test_what_cannot_come_back_is_refused(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(tmp_path).save(Snapshot(1, {"model": value}, {}, {}))
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_too_many_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "JSON_LIMIT", 1000)
    with pytest.raises(CheckpointError, match="model has 30 tensors, too many for one part"):
        Checkpoints(tmp_path).save(Snapshot(1, {"model": [torch.zeros(1)] * 30}, {}, {}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["state", "settings"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x": {1.5: 0}}, "has the key 1.5"),
        ({"x": torch.ones(1)}, "is a Tensor"),
        ({"x": [Path("a")]}, "[0] is a PosixPath"),
        ({"x": deep(70)}, "nested deeper"),
    ],
)
def test_state_and_settings_hold_no_tensors_and_no_objects(tmp_path: Path, name: str, value: Any, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(tmp_path).save(Snapshot(1, {}, **{"state": {}, "settings": {}, name: value}))
    assert str(caught.value).startswith(name + "['x']")
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["state", "settings"])
def test_numbers_that_no_json_parser_takes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be written as JSON: Exceeds the limit"):
        Checkpoints(tmp_path).save(Snapshot(1, {}, **{"state": {}, "settings": {}, name: {"x": -(1 << 20000)}}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "Model", "../model", "a/b", "1", "a.b", "m" * 65, "state.json", "é"])
def test_a_part_has_a_plain_name(name: str) -> None:
    with pytest.raises(SettingError, match="small letters"):
        Snapshot(1, {name: {}}, {}, {})


@pytest.mark.parametrize("step", [-1, 1.0, True, "3", 10**18])
def test_a_step_is_a_whole_number(step: Any) -> None:
    with pytest.raises(SettingError, match="step is"):
        Snapshot(step, {}, {}, {})


def test_as_deep_as_allowed_comes_back(tmp_path: Path) -> None:
    value = deep(60)
    assert saved_and_loaded(tmp_path, {"x": value}) == {"x": value}
