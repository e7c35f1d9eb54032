"""The case lists are complete: every public activation, loss and penalty is in them."""

import inspect

import lifted_bregman as lb
from lifted_bregman import activations, losses, penalties
from tests import cases


def public_classes(module, base):
    return {
        value
        for key, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and not inspect.isabstract(value)
        and not key.startswith("_")
    }


def test_every_activation_is_a_case():
    assert public_classes(activations, activations.Activation) == {type(a) for a in cases.ACTIVATIONS}


def test_every_loss_is_a_case():
    from torch import nn

    assert public_classes(losses, nn.Module) == {type(loss) for loss in cases.LOSSES}


def test_every_penalty_is_a_case():
    assert public_classes(penalties, penalties.Penalty) == {type(p) for p in cases.PARAMETER_PENALTIES}


def test_public_names_exist_and_are_documented():
    for name in lb.__all__:
        assert (getattr(lb, name).__doc__ or "").strip(), name
    for name in activations.__all__:
        assert (getattr(activations, name).__doc__ or "").strip(), name
