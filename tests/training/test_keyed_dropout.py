"""Dropout from keys: as random as dropout has to be, and the same wherever a client is trained."""

import pytest
import torch

from secagg.training.models import KeyedDropout, dropped, key_buffers


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_rate_under_every_key(rate: float) -> None:
    ones = torch.ones(100, 100)
    for key in (0, 1, 2**31, 2**32 - 1):
        kept = (dropped(ones, torch.tensor(key), rate) > 0).float()
        assert abs(kept.mean().item() - (1 - rate)) < 0.02
        assert kept.mean(0).std().item() < 0.08
        assert kept.mean(1).std().item() < 0.08


def test_what_is_kept_is_scaled_up() -> None:
    shown = dropped(torch.ones(1000), torch.tensor(3), 0.25)
    torch.testing.assert_close(shown[shown > 0], torch.full_like(shown[shown > 0], 1 / 0.75))


def test_keys_and_neighbouring_keys_are_independent() -> None:
    patterns = torch.stack([dropped(torch.ones(10_000), torch.tensor(key), 0.5) > 0 for key in range(8)]).float()
    correlation = torch.corrcoef(patterns)
    assert (correlation - torch.eye(8)).abs().max().item() < 0.05


def test_examples_that_follow_change_nothing() -> None:
    values = torch.ones(8, 3, 5)
    assert torch.equal(dropped(values, torch.tensor(9), 0.3)[:5], dropped(values[:5], torch.tensor(9), 0.3))


def test_a_key_for_each_client_drops_what_the_client_alone_would_drop() -> None:
    keys = torch.tensor([5, 6, 7])
    together = dropped(torch.ones(4, 3, 10), keys[None, :, None], 0.4)
    for place, key in enumerate(keys):
        assert torch.equal(together[:, place], dropped(torch.ones(4, 10), key, 0.4))


def test_nothing_is_dropped_in_evaluation() -> None:
    layer = KeyedDropout(0.5)
    assert torch.equal(layer.eval()(torch.ones(10)), torch.ones(10))
    assert not torch.equal(layer.train()(torch.ones(10)), torch.ones(10))


def test_a_layer_that_stands_in_two_places_has_one_key() -> None:
    layer = KeyedDropout(0.5)
    assert len(key_buffers(torch.nn.ModuleList([layer, layer, KeyedDropout(0.1)]))) == 2
