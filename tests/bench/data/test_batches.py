"""Batches of local training: every image once an epoch; order and views have separate draws."""

from typing import Any

import pytest
import torch

from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.system.seeding import generator


def make_data(size: int) -> ClientData:
    """Data whose image i is constant with value i and has label i."""
    values = torch.arange(size)
    images = values.to(torch.uint8).view(-1, 1, 1, 1).expand(size, 1, 4, 4).contiguous()
    return ClientData(images, values)


def batches(data: ClientData, epochs: int = 1, size: int = 4, **options: Any) -> list[Batch]:
    given = {"keep_last": True, "min_batch": 1, "views": ("plain",), "seed": 0, **options}
    views, seed = given.pop("views"), given.pop("seed")
    order, augment = generator(seed, "order"), generator(seed, "views")
    return list(data.batches(views, epochs, size, order=order, augment=augment, **given))


def test_every_epoch_sees_every_image_once() -> None:
    made = batches(make_data(10), epochs=3)
    assert [len(b.labels) for b in made] == [4, 4, 2] * 3
    for epoch in (made[:3], made[3:6], made[6:]):
        assert sorted(torch.cat([b.labels for b in epoch]).tolist()) == list(range(10))
    orders = [tuple(torch.cat([b.labels for b in made[i : i + 3]]).tolist()) for i in (0, 3, 6)]
    assert len(set(orders)) == 3
    for batch in made:  # images keep their labels: plain is pixel / 127.5 - 1
        (view,) = batch.views
        torch.testing.assert_close(view[:, 0, 0, 0], batch.labels / 127.5 - 1)


@pytest.mark.parametrize(
    ("size", "keep_last", "min_batch", "lengths"),
    [
        (10, True, 1, [4, 4, 2]),
        (10, False, 1, [4, 4]),
        (9, True, 2, [4, 4]),
        (3, True, 1, [3]),
        (3, False, 1, []),
        (1, True, 1, [1]),
        (1, True, 2, []),
        (0, True, 1, []),
        (0, False, 1, []),
    ],
)
def test_incomplete_batches(size: int, keep_last: bool, min_batch: int, lengths: list[int]) -> None:
    made = batches(make_data(size), keep_last=keep_last, min_batch=min_batch)
    assert [len(b.labels) for b in made] == lengths


def test_views_are_drawn_apart_and_anew() -> None:
    data = ClientData(
        torch.randint(256, (8, 1, 8, 8), generator=generator(0, "x")).to(torch.uint8),
        torch.arange(8),
    )
    first, second = batches(data, epochs=2, size=8, views=("simclr-o", "simclr-o"))
    assert not torch.equal(*first.views)
    back = [torch.argsort(b.labels) for b in (first, second)]
    assert not torch.equal(first.views[0][back[0]], second.views[0][back[1]])
    again = batches(data, epochs=2, size=8, views=("simclr-o", "simclr-o"))
    assert torch.equal(first.views[1], again[0].views[1])
    other = batches(data, epochs=2, size=8, views=("simclr-o", "simclr-o"), seed=1)
    assert not torch.equal(first.views[1], other[0].views[1])


def test_order_and_augmentation_have_draws_of_their_own() -> None:
    """A method with more views trains on the same batches."""
    data = make_data(20)
    one = batches(data, epochs=2)
    three = batches(data, epochs=2, views=("plain", "simclr-o", "base"))
    assert all(torch.equal(a.labels, b.labels) for a, b in zip(one, three, strict=True))


def test_choosing_and_relabelling() -> None:
    data = make_data(5)
    chosen = data.relabel(torch.tensor([9, -1, 7, -1, 5]), torch.tensor([1, 0, 1, 0, 1]).bool())
    assert chosen.labels.tolist() == [9, 7, 5]
    assert chosen.images[:, 0, 0, 0].tolist() == [0, 2, 4]
    assert data.keep(torch.tensor([3, 3])).labels.tolist() == [3, 3]
    assert len(data.keep(torch.zeros(5).bool())) == 0
    assert data.labelled
    assert not data.relabel(torch.full((5,), -1), torch.ones(5).bool()).labelled


def test_an_ordered_pass_keeps_the_order() -> None:
    parts = list(make_data(7).ordered("plain", generator(0, "x"), batch_size=3))
    assert [len(p) for p in parts] == [3, 3, 1]
    values = (torch.cat(parts)[:, 0, 0, 0] + 1) * 127.5
    torch.testing.assert_close(values, torch.arange(7.0))
