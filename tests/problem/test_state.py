"""The state: counted from 1, copied, selected, written back, saved."""

import pytest
import torch

import lifted_bregman as lb


def state():
    return lb.LiftedState([torch.arange(12.0).reshape(4, 3), torch.arange(8.0).reshape(4, 2) + 100.0])


def test_variables_count_from_one():
    s = state()
    assert len(s) == 2
    assert s[1].shape == (4, 3)
    assert s[2].shape == (4, 2)
    s[2] = torch.zeros(4, 2)
    assert torch.equal(s[2], torch.zeros(4, 2))
    for wrong in (0, 3, -1):
        with pytest.raises(lb.errors.SettingError, match="from 1 to 2"):
            s[wrong]
        with pytest.raises(lb.errors.SettingError, match="from 1 to 2"):
            s[wrong] = torch.zeros(4, 2)


def test_a_clone_has_memory_of_its_own():
    s = state()
    copy = s.clone()
    copy[1].zero_()
    assert s[1].abs().sum() > 0


def test_to_another_dtype():
    s = state().to(torch.float64)
    assert [x.dtype for x in s] == [torch.float64] * 2


def test_select_and_update_are_inverse():
    s = state()
    rows = torch.tensor([2, 0])
    part = s.select(rows)
    assert torch.equal(part[1], s[1][[2, 0]])
    assert torch.equal(part[2], s[2][[2, 0]])
    part[1].neg_()
    assert torch.equal(s[1], state()[1])
    s.update(rows, part)
    assert torch.equal(s[1][[2, 0]], -state()[1][[2, 0]])
    assert torch.equal(s[1][[1, 3]], state()[1][[1, 3]])
    with pytest.raises(lb.errors.TensorError, match="1 variables"):
        s.update(rows, lb.LiftedState([part[1]]))


def test_save_and_load():
    s = state()
    entries = s.state_dict()
    assert list(entries) == ["x_1", "x_2"]
    again = lb.LiftedState.from_state_dict(dict(reversed(entries.items())))
    assert all(torch.equal(a, b) for a, b in zip(s, again, strict=True))
    with pytest.raises(lb.errors.TensorError, match="x_2"):
        lb.LiftedState.from_state_dict({"x_1": s[1], "x_3": s[2]})


def test_variables_must_have_the_same_samples():
    with pytest.raises(lb.errors.TensorError, match=r"\[3, 4\] samples"):
        lb.LiftedState([torch.zeros(4, 2), torch.zeros(3, 2)])


def test_repr_names_the_shapes():
    assert repr(state()) == "LiftedState(x_1: (4, 3), x_2: (4, 2))"
