"""What users get wrong, one line each: the exit code, a sentence with the remedy, no traceback, nothing left behind."""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from lifted_bregman import data
from lifted_bregman.cli import main
from tests.cli.program import call, program

USAGE, DATA, CHECKPOINT = 2, 3, 4
UNAVAILABLE = "cuda:99" if torch.cuda.is_available() else "cuda"
TRAIN = "train --data table.npz --out runs/new "
CLASSIFIER = "--data table.npz --hidden 5 --epochs 2 --batch-size 20 --quiet --out"


@dataclass(frozen=True)
class Mistake:
    """A command line as a user would type it in the folder of `world`, and what must be said."""

    title: str
    command: str
    code: int
    words: tuple[str, ...]


def mistakes(code: int, *rows: tuple[str, str, tuple[str, ...]]) -> list[Mistake]:
    return [Mistake(title, command, code, words) for title, command, words in rows]


MISTAKES = [
    *mistakes(
        USAGE,
        ("a command that does not exist", "trian --data digits", ("trian", "--help")),
        ("an option that does not exist", TRAIN + "--epoch 5", ("--epoch", "--epochs", "--help")),
        ("an option without its value", TRAIN + "--epochs", ("--epochs", "--help")),
        ("a word for a number", TRAIN + "--epochs five", ("epochs is 'five'", "a whole number")),
        ("a run without its folder", "predict", ("Missing argument", "--help")),
        ("no data", "train --out runs/new", ("no data", "--data", "mnist-1k")),
        ("a task that does not exist", TRAIN + "--task clasify", ("clasify", "classify, regress, autoencode, denoise")),
        ("no epochs", TRAIN + "--epochs 0", ("epochs is 0", "at least 1")),
        ("a negative batch size", TRAIN + "--batch-size -1", ("batch_size is -1", "at least 1")),
        ("a negative seed", TRAIN + "--seed -1", ("seed is -1", "at least 0")),
        ("no threads", TRAIN + "--threads 0", ("threads is 0", "at least 1")),
        ("no time", TRAIN + "--time-limit 0", ("time_limit is 0", "above 0")),
        ("no patience", TRAIN + "--patience 0", ("patience is 0", "at least 1")),
        ("a checkpoint every 0 steps", TRAIN + "--checkpoint-steps 0", ("checkpoint_steps is 0", "at least 1")),
        ("half precision", TRAIN + "--dtype float16", ("float16", "float32, float64")),
        ("a layer of width 0", TRAIN + "--hidden 64,0", ("hidden holds 0", "at least 1")),
        ("a width that is no number", TRAIN + "--hidden 64,wide", ("hidden", "'wide'", "64,32")),
        ("no layers", TRAIN + "--hidden=", ("hidden", "list of whole numbers")),
        ("a layer without end", TRAIN + "--hidden 1000000000000", ("not enough memory", "narrower")),
        ("an activation that is no proximal map", TRAIN + "--activation gelu", ("gelu", "no proximal map", "relu")),
        ("a misspelt activation", TRAIN + "--activation rleu", ("rleu", "did you mean 'relu'?")),
        ("a negative threshold", TRAIN + "--activation soft-threshold:-1", ("threshold is -1", "greater than 0")),
        (
            "a step rule without its numbers",
            TRAIN + "--solver classical-lifted --set step_rule=fixed-step",
            ("fixed-step:",),
        ),
        ("a threshold that is no number", TRAIN + "--activation soft-threshold:a", ("soft-threshold:threshold",)),
        ("a parameter too many", TRAIN + "--activation relu:1", ("relu:1", "write relu")),
        ("activations for other layers", TRAIN + "--activation relu,tanh,relu", ("3 entries", "2 hidden", "one for")),
        ("a negative weight", TRAIN + "--weights -1", ("weights holds -1", "above 0")),
        ("weights for other layers", TRAIN + "--weights 1,2,3", ("3 entries", "2 hidden layers", "one for each")),
        ("a loss that does not exist", TRAIN + "--loss hinge", ("hinge", "cross-entropy, squared-error")),
        (
            "a loss of classes for numbers",
            "train --task regress --data table.npz --loss cross-entropy --out runs/new",
            ("cross-entropy", "regress", "squared-error"),
        ),
        ("noise for a classifier", TRAIN + "--noise 0.1", ("noise", "classify", "denoise")),
        ("a code for a classifier", TRAIN + "--code-penalty 0.1", ("code_penalty", "classify", "autoencode")),
        ("no noise to remove", TRAIN + "--task denoise --noise 0", ("noise is 0", "above 0")),
        (
            "two thresholds",
            TRAIN + "--task autoencode --hidden 5,4,5 --activation relu,relu,relu --code-threshold 1",
            ("activation", "leave code_threshold out"),
        ),
        ("a fraction above 1", TRAIN + "--validation 20", ("validation is 20", "between 0 and 1")),
        ("a validation that does not exist", TRAIN + "--validation tset", ("tset", "test, none")),
        ("a table of images", "train --data digits --prepare standardise --out runs/new", ("digits", "centre")),
        (
            "one mean of a table",
            "train --data diabetes --task regress --prepare centre-together --out runs/new",
            ("diabetes", "centre"),
        ),
        ("a target for a named set", "train --data digits --target label --out runs/new", ("digits", "leave it out")),
        ("a solver that does not exist", TRAIN + "--solver implict-sgd", ("did you mean 'implicit-sgd'?",)),
        ("a misspelt setting of a solver", TRAIN + "--solver adam --set learning_rat=1", ("mean 'learning_rate'?",)),
        ("a setting without a value", TRAIN + "--set step_size", ("--set", "NAME=VALUE")),
        (
            "a negative proximal weight",
            TRAIN + "--solver implicit-sgd --set prox_weight=-5",
            ("prox_weight is -5", "at least 0"),
        ),
        ("a word for a setting", TRAIN + "--solver adam --set epsilon=small", ("epsilon", "small", "a number")),
        (
            "a sweep that does not exist",
            TRAIN + "--solver admm --set sweep=top-dwon",
            ("top-dwon", "did you mean 'top-down'?"),
        ),
        ("a setting that needs Python", TRAIN + "--solver bregman-iterations --set penalties=1", ("only", "in Python")),
        ("a rate that is missing", TRAIN + "--solver sgd", ("learning_rate", "--set learning_rate=VALUE")),
        (
            "batches for a whole-set solver",
            TRAIN + "--solver proximal-gradient --batch-size 10",
            ("whole set", "leave batch_size out", "implicit-sgd"),
        ),
        (
            "an activation that the solver cannot take",
            TRAIN + "--solver lpom --activation softmax",
            ("LPOM requires", "missing"),
        ),
        ("settings that are not there", "train --config nowhere.toml", ("nowhere.toml", "name a TOML file")),
        ("settings that are no TOML", "train --config syntax.toml", ("syntax.toml", "no TOML file", "epochs = 5")),
        ("an unknown setting in a file", "train --config unknown.toml", ("unknown.toml", "did you mean 'epochs'?")),
        (
            "a word for a number in a file",
            "train --config types.toml",
            ("types.toml", "'five', which is text", "whole"),
        ),
        ("a number for a word in a file", "train --config number.toml", ("data is 3", "it must be text")),
        ("an unknown setting of the solver in a file", "train --config solver.toml", ("did you mean 'prox_weight'?",)),
        ("the folder in a file", "train --config out.toml", ("out.toml", "--out")),
        ("a file as the folder of a run", TRAIN + "--out table.npz", ("table.npz", "is a file", "a folder")),
        ("the folder of another run", TRAIN + "--out runs/a", ("holds a run already", "lifted resume runs/a", "--out")),
        ("a folder with other things in it", TRAIN + "--out full", ("holds other files", "notes.txt", "--out")),
        ("codes of a classifier", "encode runs/a table.npz", ("encode", "classify", "lifted predict")),
        ("reconstructions of a classifier", "reconstruct runs/a table.npz", ("classify", "lifted predict")),
        ("classes of an autoencoder", "predict runs/images images.npy", ("autoencode", "lifted reconstruct")),
        ("predictions to nowhere", "predict runs/a table.npz --out no/such/p.npy", ("p.npy", "choose another place")),
        (
            "predictions of no known kind, before anything is read",
            "predict runs/nowhere nowhere.npy --out p.pkl",
            ("p.pkl", ".npy or .csv"),
        ),
        ("codes to a folder", "encode runs/images images.npy --out full", ("full", ".npy or .csv")),
        *(
            (f"a device that is not there, before {what}", f"{command} --device {UNAVAILABLE}", ("'cuda", "take 'cpu'"))
            for what, command in (
                ("data are read", "train --data nowhere.npz --out runs/new"),
                ("a run is continued", "resume runs/a --epochs 5"),
                ("a run is opened to predict", "predict runs/nowhere nowhere.npy"),
                ("a run is opened to encode", "encode runs/nowhere nowhere.npy"),
                ("a run is opened to reconstruct", "reconstruct runs/nowhere nowhere.npy"),
            )
        ),
        ("a device that does not exist", TRAIN + "--device gpu", ("device is 'gpu'", "take 'cpu'")),
        (
            "another device for several processes",
            TRAIN + "--parallel data=2 --device cuda",
            ("device is 'cuda'", "parallel is 'data=2'", "lb.fit"),
        ),
        ("a word for more epochs", "resume runs/a --epochs more", ("epochs is 'more'", "a whole number")),
        ("fewer epochs than it has", "resume runs/a --epochs 1", ("epochs is 1", "has 2 already", "ask for more")),
        (
            "early stopping for a run that was started without",
            "resume runs/a --epochs 5 --patience 3",
            ("--patience", "fixed when a run is started", "lifted train --config RUN/settings.toml --patience"),
        ),
        ("an option that no run has", "resume runs/a --patient", ("--patient", "--help")),
        ("a time limit for a run without", "resume runs/a --time-limit 5", ("time_limit", "leave it out")),
    ),
    *mistakes(
        DATA,
        ("a misspelt data set", "train --data fashion-mnits --out runs/new", ("did you mean 'fashion-mnist'?",)),
        ("more samples than there are", "train --data digits-2k --out runs/new", ("2,000", "1,433")),
        ("a file that is not there", "train --data nowhere.npz --out runs/new", ("nowhere.npz", "check the name")),
        ("a file of no known kind", "train --task autoencode --data notes.txt --out runs/new", ("notes.txt", ".npy")),
        ("a file for a folder of data", "train --data digits --data-dir table.npz --out runs/new", ("file", "folder")),
        ("a part without some classes", "train --data digits-5 --data-dir sets --out runs/new", ("no sample", "more")),
        ("samples of one class", "train --data one-class.csv --out runs/new", ("'1'", "at least two classes")),
        (
            "a class that is only tested",
            "train --data untrained.npz --out runs/new",
            ("class '2'", "no sample in the tr"),
        ),
        ("labels that are no classes", "train --data half.csv --out runs/new", ("label is 0.5", "--task regress")),
        ("words for numbers", "train --task regress --data words.csv --out runs/new", ("words.csv", "repair")),
        ("numbers for classes", "train --data diabetes --out runs/new", ("diabetes", "--task regress")),
        ("a column that is not there", "train --data half.csv --target lable --out runs/new", ("mean 'label'?",)),
        ("text among the numbers", "train --data text.csv --out runs/new", ("text.csv", "'tall'", "repair")),
        ("a row that is too short", "train --data ragged.csv --out runs/new", ("ragged.csv", "repair")),
        ("a table without rows", "train --data empty.csv --out runs/new", ("empty.csv", "no samples")),
        ("a table of targets alone", "train --data single.csv --out runs/new", ("single.csv", "column of inputs")),
        ("images without labels", "train --data images.npy --out runs/new", ("images.npy", "--target labels.npy")),
        (
            "labels of other samples",
            "train --data images.npy --target labels.npy --out runs/new",
            ("30 samples", "29 targets", "one for each"),
        ),
        (
            "names of classes in an array",
            "train --data images.npy --target names.npy --out runs/new",
            ("names.npy", "<U3", "numpy.unique(names, return_inverse=True)[1]", ".csv"),
        ),
        ("semicolons between the cells", "train --data semicolons.csv --out runs/new", ("semicolons", "commas")),
        ("an archive without targets", "train --data inputs.npz --out runs/new", ("no 'y'", "numpy.savez")),
        ("a damaged archive", "train --data damaged.npz --out runs/new", ("damaged.npz", "numpy.savez")),
        ("a damaged file", "train --task autoencode --data damaged.npy --out runs/new", ("damaged.npy", "announces")),
        ("a pickled file", "train --task autoencode --data pickled.npy --out runs/new", ("pickled.npy", "numbers")),
        ("a pickle", "train --task autoencode --data pickle.npy --out runs/new", ("pickle.npy", "numpy.save")),
        (
            "NaN among the samples",
            "train --task autoencode --data nan.npy --out runs/new",
            ("nan.npy", "NaN", "repair"),
        ),
        (
            "too few samples to hold some out",
            "train --data one.npz --validation 0.5 --out runs/new",
            ("too few", "none"),
        ),
        ("a file of predictions that is not there", "predict runs/a nowhere.npy", ("nowhere.npy", "check the name")),
        ("samples of another width", "predict runs/a images.npy", ("(4, 4)", "expected (6,)", "as in training")),
        ("images of another size", "predict runs/digits images.npy", ("(30, 4, 4)", "expected (samples, 64)")),
        ("NaN among the images", "predict runs/digits nan-digits.npy", ("NaN", "repair")),
        ("pixels that were not divided", "predict runs/digits bright.npy", ("divide", "16")),
        ("a table without a column", "predict runs/table text.csv", ("no column 'width'", "height")),
        ("data that have changed", "resume runs/changed", ("no longer", "restore it")),
    ),
    *mistakes(
        CHECKPOINT,
        ("a run that is not there", "resume runs/nowhere", ("no folder runs/nowhere", "--out")),
        ("a folder that is no run", "resume full", ("full", "no run", "--out")),
        ("a file that is no run", "predict table.npz images.npy", ("table.npz", "--out")),
        ("a run whose checkpoints are damaged", "resume runs/damaged", ("no sound checkpoint",)),
        ("settings that were changed", "resume runs/other", ("settings.toml is not what the run wrote", "restore it")),
        (
            "settings that were edited badly",
            "resume runs/edited",
            ("settings of the run are damaged", "mean 'epochs'?"),
        ),
        ("data.json that was edited badly", "predict runs/record table.npz", ("data.json", "restore")),
        ("a result that was edited badly", "resume runs/result", ("result.json",)),
        ("a trained model that is damaged", "predict runs/model table.npz", ("model.safetensors", "damaged")),
        ("checkpoints that are damaged", "checkpoint verify runs/damaged", ("are damaged", "start it again")),
        ("one checkpoint that is damaged", "checkpoint verify runs/one", ("1 of 2", "newest sound one")),
        ("checkpoints that are not there", "checkpoint verify full", ("full", "no checkpoints", "--out")),
        ("a folder that cannot be made", TRAIN + "--out /proc/runs/new", ("/proc/runs/new", "another folder")),
    ),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, settings and runs, sound and damaged ones."""
    folder = tmp_path_factory.mktemp("mistakes")
    _write_data(folder)
    _write_settings(folder)
    _write_runs(folder)
    return folder


def _write_data(folder: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 6))
    np.savez(folder / "table.npz", X=X, y=(X[:, 0] > 0).astype(np.int64))
    shutil.copy(folder / "table.npz", folder / "changing.npz")
    np.savez(folder / "inputs.npz", X=X)
    np.savez(folder / "one.npz", X=X[:1], y=np.ones(1))
    np.savez(folder / "untrained.npz", X=X, y=np.arange(60) % 2, X_test=X, y_test=np.arange(60) % 3)
    (folder / "damaged.npz").write_bytes((folder / "table.npz").read_bytes()[:300])
    images = generator.integers(0, 255, size=(30, 4, 4), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", np.arange(29) % 2)
    np.save(folder / "names.npy", np.array(["ash", "oak"])[np.arange(30) % 2])
    (folder / "damaged.npy").write_bytes((folder / "images.npy").read_bytes()[:-100])
    np.save(folder / "pickled.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    (folder / "pickle.npy").write_bytes(pickle.dumps([1, 2, 3]))
    broken = np.ones((30, 64))
    broken[7, 3] = np.nan
    np.save(folder / "nan.npy", broken)
    np.save(folder / "nan-digits.npy", broken)
    np.save(folder / "bright.npy", np.full((3, 64), 15.5))
    (folder / "notes.txt").write_text("notes\n")
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("notes\n")
    rows = "".join(f"{i},{i * i},{i % 2}\n" for i in range(20))
    (folder / "good.csv").write_text("height,width,label\n" + rows)
    (folder / "half.csv").write_text("height,width,label\n" + "".join(f"{i},{i * i},{i % 2 / 2}\n" for i in range(20)))
    (folder / "one-class.csv").write_text("height,width,label\n" + "".join(f"{i},{i * i},1\n" for i in range(20)))
    (folder / "words.csv").write_text("height,label\n" + "".join(f"{i},good\n" for i in range(20)))
    (folder / "text.csv").write_text("height,breadth,label\n" + "".join(f"tall,{i},{i % 2}\n" for i in range(20)))
    (folder / "ragged.csv").write_text("height,width,label\n" + rows + "3,1\n")
    (folder / "semicolons.csv").write_text(("height,width,label\n" + rows).replace(",", ";"))
    (folder / "empty.csv").write_text("height,width,label\n")
    (folder / "single.csv").write_text("label\n1\n2\n")
    data.get("digits", data_dir=folder / "sets")


def _write_settings(folder: Path) -> None:
    start = 'data = "table.npz"\n'
    for name, text in {
        "syntax": start + "epochs = \n",
        "unknown": start + "epoch = 5\n",
        "types": start + 'epochs = "five"\n',
        "number": "data = 3\n",
        "solver": start + '[solver]\nname = "implicit-sgd"\nproxweight = 5\n',
        "out": start + 'out = "runs/new"\n',
    }.items():
        (folder / f"{name}.toml").write_text(text)


def _write_runs(folder: Path) -> None:
    runs = folder / "runs"
    table = f"--data {folder}/table.npz --hidden 5 --epochs 2 --batch-size 20 --quiet --out"
    for command in (
        f"{table} {runs}/a",
        f"{table.replace('table.npz', 'changing.npz')} {runs}/changed",
        f"--task autoencode --data {folder}/images.npy --hidden 5 --epochs 1 --quiet --out {runs}/images",
        f"--data digits --data-dir {folder}/sets --hidden 5 --epochs 1 --quiet --out {runs}/digits",
        f"--data {folder}/good.csv --hidden 5 --epochs 1 --quiet --out {runs}/table",
    ):
        assert main(["train", *command.split()]) == 0
    for name in ("damaged", "one", "other", "edited", "record", "result", "model"):
        shutil.copytree(runs / "a", runs / name)
    for name in ("changed", "damaged", "other"):  # they have not ended
        (runs / name / "result.json").unlink()
    np.savez(folder / "changing.npz", X=np.ones((60, 6)), y=np.arange(60) % 2)
    for step in sorted((runs / "damaged" / "checkpoints").glob("step-*")):
        _flip(step / "model.safetensors")
    assert len(list((runs / "one" / "checkpoints").glob("step-*"))) == 2
    _flip(max((runs / "one" / "checkpoints").glob("step-*")) / "state.json")
    _edit(runs / "other" / "settings.toml", lambda text: text.replace("hidden = [5]", "hidden = [6]"))
    _edit(runs / "edited" / "settings.toml", lambda text: text.replace("epochs = 2", "epocs = 2", 1))
    _edit(runs / "record" / "data.json", lambda text: text[: len(text) // 2])
    (runs / "result" / "result.json").write_text("[]\n")
    _flip(runs / "model" / "model.safetensors")


def _edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 0xFF
    path.write_bytes(bytes(content))


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder, with what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def require_one_remark(err: str) -> None:
    """One line of one or two sentences."""
    assert err.startswith("lifted: ") and err.endswith("\n") and err.count("\n") == 1, err
    sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z'])", err.strip())
    assert len(sentences) <= 2, sentences
    assert err.strip()[-1] in ".", err


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_a_mistake_is_explained(
    mistake: Mistake, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    before = tree(world)
    called = call(capsys, *mistake.command.split(" "))
    after = tree(world)
    shutil.rmtree(world / "runs" / "new", ignore_errors=True)  # so that one failure does not make others
    assert called.code == mistake.code, called.err
    require_one_remark(called.err)
    for word in mistake.words:
        assert word in called.err
    assert "Traceback" not in called.out + called.err
    assert after == before


def test_there_are_at_least_fifty_mistakes() -> None:
    assert len({mistake.command for mistake in MISTAKES}) == len(MISTAKES) >= 50
    assert {mistake.code for mistake in MISTAKES} == {USAGE, DATA, CHECKPOINT}


def test_the_world_is_sound(world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the mistakes are made with works when no mistake is made."""
    monkeypatch.chdir(world)
    for command in (
        "checkpoint verify runs/a",
        "resume runs/a",
        "predict runs/a table.npz",
        "predict runs/table good.csv",
        "reconstruct runs/images images.npy --out made.npy",
        "train --data table.npz --hidden 5 --epochs 1 --quiet --out runs/sound",
    ):
        assert call(capsys, *command.split()).code == 0, command
    shutil.rmtree("runs/sound")
    (world / "made.npy").unlink()


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(next(m for m in MISTAKES if m.title == title), marks=() if place == 0 else pytest.mark.long)
        for place, title in enumerate(("a damaged file", "no epochs", "a run that is not there"))
    ],
    ids=lambda mistake: mistake.title,
)
def test_the_program_says_the_same(mistake: Mistake, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    called = program(*mistake.command.split(" "))
    assert called.code == mistake.code
    require_one_remark(called.err)
    assert all(word in called.err for word in mistake.words)


def test_a_traceback_for_those_who_ask(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    assert "Traceback" in call(capsys, "resume", "runs/nowhere", "--traceback").err
    monkeypatch.setenv("LIFTED_DEBUG", "1")
    asked = call(capsys, "resume", "runs/nowhere")
    assert asked.code == CHECKPOINT and "Traceback" in asked.err
