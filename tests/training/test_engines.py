"""Engines: all give the same updates, which depend only on the work."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import current_thread, main_thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.training import driver
from secagg.training.configuration import Configuration, LocalTraining
from secagg.training.engines import ENGINES, PlainModel, ThreadsEngine, make_engine, schedule_of, swapped
from secagg.training.models import KeyedDropout, initial_parameters, model_factory
from secagg.training.parts import Assignment, Engine, Examples, ModelFactory, Stream, TrainedClient, seed_of, torch_seed

SIZES = (20, 5, 33, 8)
EVERYTHING = LocalTraining(epochs=2, batch=8, rate=0.05, momentum=0.9, weight_decay=0.01, proximal=0.1, clip=0.3)
PLAIN = LocalTraining(epochs=2, batch=8, rate=0.05)


class Tiny(nn.Module):
    """A few hundred parameters, with every kind of layer that engines rewrite."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.wide = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.pool = nn.AvgPool2d(2)
        self.flat = nn.Flatten()
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(16, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shown = torch.relu(self.norm(self.conv(images)))
        scores: torch.Tensor = self.head(self.dropout(self.flat(self.pool(torch.relu(self.wide(shown))))))
        return scores


def work(
    shape: tuple[int, ...], classes: int, *, vocabulary: int | None = None, dtype: torch.dtype = torch.float32
) -> list[Assignment]:
    """Draw clients' examples; the draws do not depend on the type."""
    drawn = list[Assignment]()
    for client, size in enumerate(SIZES):
        coins = torch.Generator().manual_seed(torch_seed(seed_of(5, Stream.PARTITION, client=client)))
        inputs = torch.randn(size, *shape, generator=coins).to(dtype)
        if vocabulary is not None:
            inputs = torch.randint(vocabulary, (size, *shape), generator=coins)
        examples = Examples(inputs, torch.randint(classes, (size,), generator=coins))
        seed = seed_of(5, Stream.TRAINING, round_number=1, client=client)
        drawn.append(Assignment(client=client, examples=examples, seed=seed))
    return drawn


def trained(
    engine: Engine, factory: ModelFactory, assignments: Sequence[Assignment], settings: LocalTraining
) -> dict[int, TrainedClient]:
    start = initial_parameters(factory, seed_of(5, Stream.MODEL))
    return {client.client: client for client in engine.train(start, assignments, settings)}


def flat(client: TrainedClient) -> npt.NDArray[np.float32]:
    return np.concatenate([client.update[name].ravel() for name in sorted(client.update)])


def in_double(factory: ModelFactory) -> ModelFactory:
    """Return a factory of double-precision models, so that rounding never changes an activation's sign."""
    return lambda: factory().double()


def assert_agree(found: dict[int, TrainedClient], wanted: dict[int, TrainedClient], rtol: float = 1e-5) -> None:
    assert set(found) == set(wanted)
    for client, reference in wanted.items():
        ours, theirs = flat(found[client]), flat(reference)
        assert np.isclose(ours, theirs, rtol=rtol, atol=0.1 * rtol * np.abs(theirs).max()).mean() >= 0.999
        assert found[client].loss == pytest.approx(reference.loss, rel=1e-4)
        assert found[client].examples == reference.examples


def by_hand(factory: ModelFactory, assignment: Assignment, settings: LocalTraining) -> npt.NDArray[np.float32]:
    """Train with torch's own optimizer, and without clipping and the proximal term."""
    model = factory().train()
    model.load_state_dict(initial_parameters(factory, seed_of(5, Stream.MODEL)), strict=False)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.rate, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    for batch in schedule_of(assignment, settings, 0).batches:
        optimizer.zero_grad()
        chosen = torch.as_tensor(batch)
        loss = nn.functional.cross_entropy(
            model(assignment.examples.inputs[chosen]), assignment.examples.targets[chosen]
        )
        torch.autograd.backward(loss)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
    changed = {name: (value.detach() - start[name]).numpy() for name, value in model.named_parameters()}
    return np.concatenate([changed[name].ravel() for name in sorted(changed)])


STRIDE = model_factory("stride", classes=10, shape=(1, 28, 28))
LSTM = model_factory("lstm", classes=2, shape=(6,), vocabulary=50, options={"width": 8, "hidden": 8, "leftover": 4})
SIMPLE = model_factory("simple-conv", classes=2, shape=(3, 32, 32), options={"dropout": 0.3})


SMALL = in_double(Tiny), work((1, 8, 8), 3, dtype=torch.float64)
TASKS: dict[str, tuple[ModelFactory, list[Assignment], LocalTraining, float]] = {
    "small images, all settings": (*SMALL, EVERYTHING, 1e-5),
    "the default run's model": (STRIDE, work((1, 28, 28), 10), LocalTraining(batch=20, rate=0.05), 1e-3),
    "a shared norm and dropout": (in_double(SIMPLE), work((3, 32, 32), 2, dtype=torch.float64)[:2], PLAIN, 1e-5),
    "texts": (in_double(LSTM), work((6,), 2, vocabulary=50), PLAIN, 1e-5),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", [name for name in ENGINES if name != "sequential"])
def test_engines_agree(name: str, task: str) -> None:
    model, assignments, settings, rtol = TASKS[task]
    wanted = trained(make_engine("sequential", model), model, assignments, settings)
    found = trained(make_engine(name, model, chunk=3), model, assignments, settings)
    assert_agree(found, wanted, rtol)
    assert task != "texts" or not found[0].update["leftover.weight"].any(), "unused parameters stay as they are"


def test_an_engine_does_what_torchs_optimizer_does() -> None:
    settings = LocalTraining(epochs=2, batch=8, rate=0.05, momentum=0.9, weight_decay=0.01)
    assignments = work((1, 28, 28), 10)
    found = trained(make_engine("sequential", STRIDE), STRIDE, assignments, settings)
    for assignment in assignments:
        np.testing.assert_allclose(
            flat(found[assignment.client]), by_hand(STRIDE, assignment, settings), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("name", ENGINES)
def test_an_update_is_not_longer_than_the_limit(name: str) -> None:
    found = trained(make_engine(name, Tiny, chunk=3), Tiny, work((1, 8, 8), 3), EVERYTHING)
    norms = [float(np.linalg.norm(flat(client))) for client in found.values()]
    assert max(norms) == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize("name", ["sequential", "vmap"])
def test_an_update_below_the_limit_stays_as_it_is(name: str) -> None:
    free, limited = (
        trained(make_engine(name, Tiny), Tiny, work((1, 8, 8), 3), LocalTraining(batch=8, rate=0.05, clip=clip))
        for clip in (None, 1e6)
    )
    assert all(np.array_equal(flat(free[client]), flat(limited[client])) for client in free)


def test_the_proximal_term_holds_a_client_back() -> None:
    free, held = (
        trained(
            make_engine("sequential", Tiny), Tiny, work((1, 8, 8), 3), LocalTraining(epochs=4, batch=8, proximal=mu)
        )
        for mu in (0.0, 5.0)
    )
    assert all(np.linalg.norm(flat(held[client])) < 0.9 * np.linalg.norm(flat(free[client])) for client in free)


def test_threads_change_no_bit() -> None:
    assignments = work((3, 32, 32), 2)
    wanted = trained(make_engine("sequential", SIMPLE), SIMPLE, assignments, PLAIN)
    for threads in (1, 2, 3):
        found = trained(make_engine("threads", SIMPLE, threads=threads), SIMPLE, assignments, PLAIN)
        assert all(np.array_equal(flat(found[client]), flat(wanted[client])) for client in wanted)


def test_torchs_own_threads_change_no_bit_and_stay_as_they_were() -> None:
    before = torch.get_num_threads()
    assignments = work((1, 28, 28), 10)
    found = list[dict[int, TrainedClient]]()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(trained(make_engine("threads", STRIDE), STRIDE, assignments, PLAIN))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(flat(found[0][client]), flat(found[1][client])) for client in found[0])


def test_a_client_is_finished_in_the_thread_that_trained_it() -> None:
    start, assignments = initial_parameters(Tiny, seed_of(5, Stream.MODEL)), work((1, 8, 8), 3)
    threads = set[str]()

    def finish(trained: TrainedClient) -> int:
        threads.add(current_thread().name)
        return trained.client

    engine = ThreadsEngine(lambda: PlainModel(Tiny), threads=2)
    found = list(engine.train_and_finish(start, assignments, PLAIN, finish))
    assert found == [trained.client for trained in engine.train(start, assignments, PLAIN)]
    assert main_thread().name not in threads


def test_a_client_that_cannot_be_finished_ends_the_round() -> None:
    start, assignments = initial_parameters(Tiny, seed_of(5, Stream.MODEL)), work((1, 8, 8), 3)

    def finish(trained: TrainedClient) -> int:
        if trained.client == assignments[1].client:
            raise CapacityExceeded("not this one")
        return trained.client

    engine = ThreadsEngine(lambda: PlainModel(Tiny), threads=2)
    with pytest.raises(CapacityExceeded, match="not this one"):
        list(engine.train_and_finish(start, assignments, PLAIN, finish))


@pytest.mark.parametrize("name", ["threads", "sequential"])
def test_the_order_and_the_company_of_clients_change_no_bit(name: str) -> None:
    assignments = work((1, 8, 8), 3)
    engine = make_engine(name, Tiny)
    wanted = trained(engine, Tiny, assignments, EVERYTHING)
    for some in (assignments[::-1], assignments[1:3]):
        found = trained(engine, Tiny, some, EVERYTHING)
        assert all(np.array_equal(flat(found[client]), flat(wanted[client])) for client in found)


@pytest.mark.parametrize("name", ENGINES)
def test_clients_come_longest_work_first(name: str) -> None:
    start = initial_parameters(Tiny, seed_of(5, Stream.MODEL))
    found = make_engine(name, Tiny, chunk=2).train(start, work((1, 8, 8), 3), PLAIN)
    steps = [-(-client.examples // PLAIN.batch) for client in found]
    assert all(before >= after for before, after in pairwise(steps))


def test_threads_work_ahead_of_what_is_taken_by_a_few_clients() -> None:
    taken = list[int]()

    class Counting(PlainModel):
        def train(self, *arguments: object, **named: object) -> TrainedClient:
            taken.append(1)
            return super().train(*arguments, **named)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    engine = ThreadsEngine(lambda: Counting(Tiny), threads=2)
    assignments = work((1, 8, 8), 3)[:1] * 40
    found = engine.train(initial_parameters(Tiny, seed_of(5, Stream.MODEL)), assignments, PLAIN)
    next(iter(found))
    before = -1
    while before < len(taken):
        before = len(taken)
        sleep(0.2)
    assert len(taken) <= 5
    assert len(list(found)) == 39


@pytest.mark.parametrize("name", ["threads", "sequential"])
def test_a_client_without_examples_is_named_before_anybody_trains(name: str) -> None:
    nobody = Examples(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))
    assignments = [*work((1, 8, 8), 3), Assignment(client=17, examples=nobody, seed=(0, 0, 0, 0))]
    with pytest.raises(InvalidParameters, match="client 17 has no examples"):
        trained(make_engine(name, Tiny), Tiny, assignments, PLAIN)


class WithNorm(nn.Module):
    """A model with the given layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.odd, self.head = nn.Conv2d(1, 4, 6), layer, nn.Linear(36, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.odd(self.first(images)).flatten(1))
        return scores


def test_batch_normalization_is_refused_by_name_where_batches_are_padded() -> None:
    with pytest.raises(InvalidParameters, match=r"odd \(BatchNorm2d\).*use GroupNorm"):
        make_engine("vmap", lambda: WithNorm(nn.BatchNorm2d(4, track_running_stats=False)))


@pytest.mark.parametrize("name", ENGINES)
def test_running_statistics_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidParameters, match=r"odd \(BatchNorm2d\) keeps running statistics"):
        make_engine(name, lambda: WithNorm(nn.BatchNorm2d(4)))


@pytest.mark.parametrize("layer", [nn.Dropout2d(0.5), nn.AlphaDropout(0.5)])
def test_dropout_that_could_not_be_repeated_is_refused_by_name(layer: nn.Module) -> None:
    with pytest.raises(InvalidParameters, match=r"odd .*use torch.nn.Dropout"):
        make_engine("threads", lambda: WithNorm(layer))


def test_a_batch_norm_without_memory_trains_one_by_one() -> None:
    def factory() -> nn.Module:
        return WithNorm(nn.BatchNorm2d(4, track_running_stats=False))

    found = trained(make_engine("threads", factory), factory, work((1, 8, 8), 3), PLAIN)
    assert found[0].update["odd.weight"].any()


class Asking(nn.Module):
    """A model whose control flow depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(25, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(images.flatten(1))
        return scores if float(scores.detach().sum()) > 0 else -scores


def test_a_model_that_cannot_be_mapped_is_refused() -> None:
    start, assignments = initial_parameters(Asking, seed_of(5, Stream.MODEL)), work((1, 5, 5), 3)
    with pytest.raises(InvalidParameters, match=r"torch.vmap cannot map this model"):
        list(make_engine("vmap", Asking).train(start, assignments, PLAIN))


class Failing(nn.Module):
    """A model on a device that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(25, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"CUDA error: an illegal memory access was encountered by {len(images)} examples")


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelFactory], Engine]:
    """Choose an engine as on a GPU, and make it here."""

    def made(name: str, factory: ModelFactory, **_: object) -> Engine:
        return make_engine(name, factory)

    def client(_: object) -> Examples:
        return work((1, 5, 5), 3)[0].examples

    monkeypatch.setattr(driver, "make_engine", made)
    data: Any = SimpleNamespace(client=client)
    engine = driver._engine  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return lambda model: engine(Configuration(device="cuda"), model, data, None)


def test_a_device_that_fails_is_not_taken_for_a_model_that_cannot_be_mapped(chosen: Callable[..., Engine]) -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        chosen(Failing)


def test_another_engine_than_the_fast_one_is_taken_with_a_word(chosen: Callable[..., Engine]) -> None:
    with pytest.warns(UserWarning, match="torch.vmap cannot map this model"):
        assert chosen(Asking).name == "sequential"


def test_a_start_of_another_model_is_refused() -> None:
    start = initial_parameters(STRIDE, seed_of(5, Stream.MODEL))
    with pytest.raises(InvalidParameters, match="does not fit this engine's model"):
        list(make_engine("sequential", Tiny).train(start, work((1, 8, 8), 3), PLAIN))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_engine("quick", Tiny), "the engines are threads"),
        (lambda: make_engine("threads", Tiny, threads=0), "at least 1 thread"),
        (lambda: make_engine("vmap", Tiny, chunk=0), "at least 1 client"),
        (lambda: make_engine("threads", Tiny, device="abacus"), "is not a device"),
        (lambda: make_engine("threads", Tiny, device="meta"), "on the CPU and on CUDA"),
        (lambda: make_engine("threads", Tiny, device="cuda:99"), "finds . CUDA devices"),
    ],
)
def test_an_engine_that_cannot_be_made_is_refused(make: Callable[[], Engine], message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        make()


def test_dropout_of_torch_is_replaced_by_one_with_keys() -> None:
    engine = make_engine("sequential", Tiny)
    first, again = (trained(engine, Tiny, work((1, 8, 8), 3), PLAIN) for _ in range(2))
    assert all(np.array_equal(flat(first[client]), flat(again[client])) for client in first)
    assert not any(isinstance(layer, KeyedDropout) for layer in Tiny().modules())


def test_a_layer_that_stands_in_two_places_is_replaced_by_one() -> None:
    layer = nn.Dropout(0.5)
    model = swapped(
        nn.Sequential(layer, nn.Linear(2, 2), layer),
        lambda each: KeyedDropout(each.p) if isinstance(each, nn.Dropout) else None,
    )
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[0], KeyedDropout)
    assert model[0] is model[2]


def test_the_schedule_shuffles_each_epoch_anew_and_takes_every_example_once() -> None:
    assignment = work((1, 8, 8), 3)[2]
    schedule = schedule_of(assignment, LocalTraining(epochs=3, batch=8), dropouts=2)
    epochs = [np.concatenate(schedule.batches[begin : begin + 5]) for begin in (0, 5, 10)]
    assert all(sorted(epoch.tolist()) == list(range(33)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    assert (schedule.first_epoch, schedule.keys.shape) == (5, (15, 2))
    assert len(np.unique(schedule.keys)) == 30
