"""Mutated checkpoints: each is refused with a named error or comes back bit by bit; none differs in silence."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training.checkpoints import Checkpoints, verify_checkpoint
from tests.training.checkpoint_helpers import bits, content, memory_folder, snapshot

OLD, NEW = "step-00000001", "step-00000002"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


def flip(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def truncate(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def insert(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data) + 1)
    data[place:place] = draw.randbytes(draw.choice([1, 1, 4, 100]))


def delete(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data))
    del data[place : place + draw.choice([1, 2, 8, 50])]


def swap_bytes(data: bytearray, draw: random.Random) -> None:
    one, other = draw.randrange(len(data)), draw.randrange(len(data))
    data[one], data[other] = data[other], data[one]


def swap_blocks(data: bytearray, draw: random.Random) -> None:
    size = draw.randrange(1, max(2, len(data) // 2))
    one = draw.randrange(len(data) - 2 * size + 1) if len(data) >= 2 * size else 0
    data[one : one + 2 * size] = data[one + size : one + 2 * size] + data[one : one + size]


def zero(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data))
    size = min(draw.choice([1, 4, 64]), len(data) - place)
    data[place : place + size] = bytes(size)


def digit(data: bytearray, draw: random.Random) -> None:
    # The change that a person would make: another number where a number stands.
    places = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
    if places:
        data[draw.choice(places)] = ord(draw.choice("0123456789"))


IN_A_FILE = [flip, flip, truncate, insert, delete, swap_bytes, swap_blocks, zero, digit]


def mutate_a_file(folder: Path, draw: random.Random) -> str:
    files = [folder / "LATEST", *sorted((folder / NEW).iterdir())]
    path = draw.choice(files)
    mutation = draw.choice(IN_A_FILE)
    data = bytearray(path.read_bytes())
    mutation(data, draw)
    path.write_bytes(data)
    return f"{mutation.__name__} {path.name}"


def remove_a_file(folder: Path, draw: random.Random) -> str:
    path = draw.choice([folder / "LATEST", *sorted((folder / NEW).iterdir())])
    path.unlink()
    return f"remove {path.name}"


def duplicate_a_file(folder: Path, draw: random.Random) -> str:
    source, target = draw.sample(sorted((folder / NEW).iterdir()), 2)
    shutil.copyfile(source, draw.choice([target, target.with_name(f"copy_{source.name}")]))
    return "duplicate"


def take_from_the_other(folder: Path, draw: random.Random) -> str:
    names = sorted(path.name for path in (folder / NEW).iterdir())
    for name in draw.sample(names, draw.randrange(1, len(names) + 1)):
        one, other = (folder / OLD / name), (folder / NEW / name)
        first = one.read_bytes()
        if draw.random() < 0.5:
            one.write_bytes(other.read_bytes())
        other.write_bytes(first)
    return "take from the other"


def swap_files(folder: Path, draw: random.Random) -> str:
    one, other = draw.sample(sorted((folder / NEW).iterdir()), 2)
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)
    return "swap files"


def move_the_directory(folder: Path, draw: random.Random) -> str:
    (folder / NEW).rename(folder / draw.choice(["step-00000003", "step-00000000", "step-99999999", "elsewhere"]))
    return "move"


def swap_the_directories(folder: Path, draw: random.Random) -> str:
    (folder / OLD).rename(folder / "aside")
    (folder / NEW).rename(folder / OLD)
    (folder / "aside").rename(folder / NEW)
    return "swap directories"


MUTATIONS: list[tuple[float, Callable[[Path, random.Random], str]]] = [
    (0.88, mutate_a_file),
    (0.02, remove_a_file),
    (0.03, duplicate_a_file),
    (0.03, take_from_the_other),
    (0.02, swap_files),
    (0.01, move_the_directory),
    (0.01, swap_the_directories),
]


def restore(folder: Path, originals: dict[str, bytes], same: dict[str, bool]) -> None:
    for entry in folder.iterdir():
        if entry.name not in (OLD, NEW, "LATEST"):
            shutil.rmtree(entry)
    for name in (OLD, NEW):
        (folder / name).mkdir(exist_ok=True)
        for path in (folder / name).iterdir():
            if f"{name}/{path.name}" not in originals:
                path.unlink()
    for name, data in originals.items():
        if not same[name]:
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("count", [1000, pytest.param(3000, marks=pytest.mark.long)])
def test_no_mutation_goes_unnoticed(tmp_path: Path, count: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    expected = {step: bits(snapshot(step)) for step in (1, 2)}
    checkpoints.save(snapshot(1), best=True)
    verified = verify_checkpoint(checkpoints.save(snapshot(2)))
    originals = {name: data for name, data in content(tmp_path).items() if name not in (OLD, NEW)}
    assert len(originals) == 11
    draw = random.Random(20240501)
    kinds: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        (mutation,) = draw.choices([m for _, m in MUTATIONS], [weight for weight, _ in MUTATIONS])
        what = mutation(tmp_path, draw)
        kinds[what] += 1
        now = content(tmp_path)
        same = {name: now.get(name) == data for name, data in originals.items()}
        untouched = all(same.values())
        # The checkpoint itself: refused, or the same.
        refused = []
        if (tmp_path / NEW).is_dir():
            try:
                assert bits(checkpoints.load(2).snapshot) == expected[2], what
            except CheckpointError as error:
                assert str(tmp_path / NEW) in str(error)
                refused.append("load")
            try:
                assert verify_checkpoint(tmp_path / NEW) == verified, what
            except CheckpointError:
                refused.append("verify")
            assert refused in ([], ["load", "verify"]), what
        # The newest sound one: the same without a word, or another with a warning.
        try:
            loaded = checkpoints.load()
        except CheckpointError:
            outcomes["nothing left"] += 1
            assert not all(same[name] for name in same if name.startswith(OLD)), what
        else:
            assert bits(loaded.snapshot) == expected[loaded.snapshot.step], what
            if loaded.snapshot.step == 2:
                assert not refused
                assert loaded.warning is None or not same["LATEST"], what
                outcomes["untouched" if untouched else "same"] += 1
            else:
                assert loaded.warning is not None, what
                outcomes["fell back"] += 1
        restore(tmp_path, originals, same)
    assert sum(outcomes.values()) == count
    assert len(kinds) > 45, kinds  # every mutation of every file
    assert outcomes["fell back"] > 0.75 * count, outcomes
    assert checkpoints.load().warning is None  # what was restored is what there was
