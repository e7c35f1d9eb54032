"""Settings: every default in one place, every mistake named, and a TOML file that reads back as what was written."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lifted_bregman import solvers
from lifted_bregman._text import from_text
from lifted_bregman.cli._flags import entries_of
from lifted_bregman.errors import LiftedBregmanError, SettingError
from lifted_bregman.experiments import Settings, as_toml, from_entries, read_settings, to_entries
from lifted_bregman.experiments.build import build_model
from lifted_bregman.experiments.settings import SETTING_NAMES
from lifted_bregman.training import default_solver

# Each setting with another value than its default, in one consistent set.
OTHER: dict[str, Any] = {
    "data": "my images.npy",
    "task": "denoise",
    "target": "labels.npy",
    "data_dir": "some where",
    "prepare": "none",
    "noise": 0.125,
    "validation": 0.25,
    "hidden": (7, 5, 7),
    "activation": ("leaky-relu:0.1",),
    "initialisation": "torch",
    "loss": "squared-error",
    "code_threshold": 0.5,
    "code_penalty": 0.0625,
    "dropout": 0.25,
    "input_noise": 0.5,
    "weights": (1.0, 2.0, 0.5),
    "solver": "implicit-sgd",
    "solver_settings": {"inner_steps": 3, "prox_weight": "growing:5.0:0.5", "coupling": "before"},
    "epochs": 3,
    "batch_size": 17,
    "seed": 4,
    "dtype": "float64",
    "tolerance": 1e-7,
    "record_every": 2,
    "patience": 6,
    "time_limit": 7.5,
    "checkpoint_epochs": 8,
    "checkpoint_steps": 9,
    "checkpoint_seconds": 10.5,
    "threads": 1,
    "device": "cuda:1",
    "parallel": "data=2,restarts=5",
}


def through_file(settings: Settings, folder: Path) -> Settings:
    path = folder / "settings.toml"
    path.write_text(as_toml(settings), encoding="utf-8")
    return read_settings(path)


def test_the_other_values_are_other_values() -> None:
    assert OTHER.keys() == {field.name for field in dataclasses.fields(Settings)}
    plain = Settings(data="digits")
    assert [name for name in OTHER if getattr(plain, name) == OTHER[name]] == []


def test_every_setting_survives_a_file(tmp_path: Path) -> None:
    settings = Settings(**OTHER)
    assert {name: getattr(settings, name) for name in OTHER} == OTHER
    assert through_file(settings, tmp_path) == settings
    assert through_file(settings.resolved(), tmp_path) == settings.resolved()


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b"\xef\xbb\xbf" + b'data = "digits"\n')
    assert read_settings(path) == Settings(data="digits")


@pytest.mark.parametrize("name", sorted(set(OTHER) - {"solver_settings"}))
def test_a_flag_is_the_entry_of_a_file(name: str) -> None:
    value = OTHER[name]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    others = {key: value for key, value in OTHER.items() if key != name}
    assert Settings(**others, **entries_of({name: text})) == Settings(**OTHER)


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_file_name_survives_a_file(name: str) -> None:
    settings = Settings(data=f"{name}.npy", task="autoencode")
    assert from_entries(tomllib.loads(as_toml(settings))) == settings


@given(st.floats(1e-300, 1e300), st.floats(0.0, 1e300))
def test_numbers_survive_a_file_to_the_last_digit(positive: float, weight: float) -> None:
    settings = Settings(data="digits", task="autoencode", time_limit=positive, code_penalty=weight)
    assert from_entries(tomllib.loads(as_toml(settings))) == settings


def test_a_name_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(SettingError, match="cannot be written as UTF-8: rename"):
        as_toml(Settings(data="\udcff.npy", task="autoencode"))


@pytest.mark.parametrize(
    ("task", "data", "expected"),
    [
        ("classify", "digits", {"loss": "cross-entropy", "prepare": "centre", "code_threshold": None, "noise": None}),
        ("classify", "a.csv", {"loss": "cross-entropy", "prepare": "standardise", "code_penalty": None}),
        ("regress", "diabetes", {"loss": "squared-error", "prepare": "standardise", "hidden": (64, 64)}),
        ("autoencode", "digits", {"prepare": "centre", "code_threshold": 0.09, "code_penalty": 0.09, "noise": None}),
        ("denoise", "a.npy", {"prepare": "centre", "noise": 0.3, "hidden": (128, 64, 128), "loss": "squared-error"}),
    ],
)
def test_defaults_follow_the_task(task: str, data: str, expected: dict[str, Any]) -> None:
    resolved = Settings(data=data, task=task).resolved()
    assert {name: getattr(resolved, name) for name in expected} == expected
    assert resolved.threads == torch.get_num_threads()
    assert resolved == resolved.resolved()


def test_no_solver_is_the_default_of_fit() -> None:
    settings = Settings(data="digits").resolved()
    assert settings.make_solver() == default_solver()
    changed = Settings(data="digits", solver_settings={"step_size": 0.5}).resolved()
    assert changed.make_solver() == dataclasses.replace(default_solver(), step_size=0.5)  # type: ignore[type-var]


def test_what_was_given_to_the_solver_is_kept() -> None:
    settings = {"reading": "literal:true:none:false", "solver": "none", "prox_weight": "growing:2"}
    given = Settings(data="digits", solver="implicit-sgd", solver_settings=settings)
    assert given.resolved().make_solver() == given.make_solver()
    assert given.resolved().make_solver().reading == solvers.Literal(True, None, False)


def test_batches_follow_the_solver() -> None:
    assert Settings(data="digits", solver="adam").resolved().batch_size == 100
    assert Settings(data="digits", solver="adam", batch_size=7).resolved().batch_size == 7
    assert Settings(data="digits", solver="proximal-gradient").resolved().batch_size is None


def test_a_code_without_a_threshold() -> None:
    assert Settings(data="digits", task="autoencode", code_threshold=0).resolved().code_threshold == 0.0
    listed = Settings(data="digits", task="autoencode", hidden=(4, 3, 4), activation=("relu", "tanh", "relu"))
    assert listed.resolved().code_threshold is None


def test_files_are_stored_by_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = Settings(data="a.npy", target="labels.npy", data_dir="sets").resolved()
    assert (resolved.data, resolved.target) == (str(tmp_path / "a.npy"), str(tmp_path / "labels.npy"))
    assert resolved.data_dir == str(tmp_path / "sets")
    assert Settings(data="a.csv", target="price").resolved().target == "price"


def test_a_list_may_be_one_value_or_text() -> None:
    for given_as in ([64], 64, "64", (64,)):
        assert from_entries({"data": "digits", "hidden": given_as}).hidden == (64,)
    assert from_entries({"data": "digits", "hidden": "8, 4"}).hidden == (8, 4)
    assert from_entries({"data": "digits", "solver": "adam"}) == from_entries(
        {"data": "digits", "solver": {"name": "adam"}}
    )


@pytest.mark.parametrize("name", sorted(set(SETTING_NAMES) - {"solver"}))
@pytest.mark.parametrize("wrong", [{"a": 1}, [[1]], True], ids=repr)
def test_no_setting_takes_another_type(name: str, wrong: Any) -> None:
    with pytest.raises(SettingError, match=f"^{name} (is|holds) "):
        from_entries({"data": "digits", name: wrong})


def test_numbers_must_be_finite() -> None:
    for name in ("time_limit", "code_penalty", "tolerance", "noise", "weights", "validation"):
        for wrong in (float("nan"), float("inf"), 10**400):
            with pytest.raises(SettingError, match=name):
                Settings(data="digits", task="denoise", **{name: wrong})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("threads = 10000000", "threads is 10000000; .* at most 1024"),
        (f"epochs = 1{'0' * 5000}", "no TOML file"),
        (f"hidden = [1{'0' * 30}]", "hidden holds 1000.*; .* at most"),
        (f"{'a.' * 100_000}a = 1", "names of at most 100 parts"),
        (f"x = {{{'a.' * 100_000}a = 1}}", "names of at most 100 parts"),
        ("[" * 100_000, "no TOML file"),
    ],
    ids=["threads", "thousands of digits", "width", "dotted key", "dotted key of a table", "nesting"],
)
def test_a_number_or_a_name_without_bound_is_refused_before_any_work(written: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(f'data = "digits"\n{written}\n')
    with pytest.raises(SettingError, match=said):
        read_settings(tmp_path / "settings.toml")


def test_long_lists_of_decimal_numbers_and_paths_with_many_dots_are_read(tmp_path: Path) -> None:
    layers = 500
    text = f'data = "{"../" * 20}a.npz"\nhidden = {[4] * layers}\nweights = {[0.5] * layers}\n'
    (tmp_path / "settings.toml").write_text(text)
    assert read_settings(tmp_path / "settings.toml").weights == (0.5,) * layers


def test_a_network_beyond_the_memory_is_refused_before_it_is_built() -> None:
    settings = Settings(data="digits", hidden=(2**31, 2**31)).resolved()
    with pytest.raises(SettingError, match=r"not enough memory.*narrower layers"):
        build_model(settings, 64, 10)


@pytest.mark.parametrize("written", ["inf", "Infinity", "+inf"])
def test_a_solver_s_setting_may_be_infinite_and_survives_a_file(written: str, tmp_path: Path) -> None:
    given_as = {"data": "digits", "solver": {"name": "gram-sweep", "total_steps": from_text(written)}}
    settings = from_entries(given_as).resolved()
    assert settings.make_solver() == solvers.GramSweep(total_steps=math.inf)
    assert through_file(settings, tmp_path) == settings
    assert "\ntotal_steps = inf\n" in (tmp_path / "settings.toml").read_text()


@given(
    st.dictionaries(
        st.sampled_from([*SETTING_NAMES, "solver", "epoch"]), st.integers() | st.text() | st.floats() | st.none()
    )
)
def test_entries_are_settings_or_a_named_error(entries: dict[str, Any]) -> None:
    try:
        settings = from_entries(entries)
    except LiftedBregmanError as error:
        assert str(error)
    else:
        assert from_entries(to_entries(settings)) == settings
