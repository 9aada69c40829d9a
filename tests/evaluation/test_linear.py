"""The linear probe against scikit-learn's logistic regression, and against torch's own layers."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from fedssl.errors import ConfigError, DataError, RunError
from fedssl.evaluation import logistic
from fedssl.evaluation.linear import LinearProbe, fit, fit_epochs

pytestmark = pytest.mark.usefixtures("one_thread")


def problem(rows: int = 400, features: int = 12, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Overlapping classes in correlated features with different scales and means."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (rows,), generator=rng)
    y[:classes] = torch.arange(classes)
    x = torch.randn(rows, features, generator=rng) + torch.randn(classes, features, generator=rng)[y] * 0.7
    mixed = x @ torch.randn(features, features, generator=rng)
    return mixed * torch.logspace(-2, 2, features) + torch.linspace(-5, 5, features), y


def peer(x: Tensor, y: Tensor, l2: float) -> tuple[StandardScaler, LogisticRegression]:
    scaler = StandardScaler()
    # For two classes it has one weight vector, the difference of our two: half the penalty.
    strength = l2 / 2 if int(y.max()) == 1 else l2
    model = LogisticRegression(C=1 / (strength * len(x)), tol=1e-9, max_iter=20_000)
    return scaler, model.fit(scaler.fit_transform(x.double().numpy()), y.numpy())


SHAPES = [(400, 12, 4), (300, 5, 2), (60, 100, 3), (500, 16, 10)]


@pytest.mark.parametrize("l2", [1e-3, 1e-2, 1.0])
@pytest.mark.parametrize(("rows", "features", "classes"), SHAPES)
def test_like_scikit_learn(rows: int, features: int, classes: int, l2: float) -> None:
    x, y = problem(rows, features, classes)
    probe = fit(x, y, classes, l2=l2)
    scaler, model = peer(x, y, l2)
    expected = torch.from_numpy(model.predict_proba(scaler.transform(x.double().numpy())))
    torch.testing.assert_close(probe.logits(x).softmax(dim=1), expected, atol=1e-3, rtol=0)
    assert probe.converged


def test_coefficients_like_scikit_learn() -> None:
    x, y = problem()
    probe = fit(x, y, 4)
    scaler, model = peer(x, y, 1e-3)
    standardized = probe.weight * torch.from_numpy(scaler.scale_)
    torch.testing.assert_close(standardized, torch.from_numpy(model.coef_), atol=1e-3, rtol=0)
    intercept = probe.bias + probe.weight @ torch.from_numpy(scaler.mean_)
    torch.testing.assert_close(intercept, torch.from_numpy(model.intercept_), atol=1e-3, rtol=0)


def test_the_gradient_is_zero_at_the_minimum() -> None:
    """Autograd, on the definition in the docstring, in double precision."""
    x, y = problem(200, 8, 3)
    probe = fit(x.double(), y, 3, l2=0.01)
    mean, deviation = x.double().mean(dim=0), x.double().std(dim=0, correction=0)
    weight = (probe.weight * deviation).requires_grad_()
    bias = (probe.bias + probe.weight @ mean).requires_grad_()
    logits = (x.double() - mean) / deviation @ weight.T + bias
    loss = nn.functional.cross_entropy(logits, y) + 0.01 / 2 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert float(gradient.abs().max()) < 1e-8


@pytest.mark.parametrize(("rows", "features", "classes"), [(2000, 128, 10), (80, 300, 3)])
def test_threads_do_not_matter(rows: int, features: int, classes: int) -> None:
    x, y = problem(rows, features, classes)
    one = fit(x, y, classes)
    torch.set_num_threads(2)
    two = fit(x, y, classes)
    torch.testing.assert_close(one.logits(x).softmax(dim=1), two.logits(x).softmax(dim=1), atol=1e-4, rtol=0)
    assert torch.equal(one.predict(x), two.predict(x))


def test_the_same_bits_twice() -> None:
    x, y = problem(300, 40, 5)
    one, two = fit(x, y, 5), fit(x, y, 5)
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(one.bias, two.bias)


def test_scale_and_shift_of_features_do_not_matter() -> None:
    x, y = problem(300, 6, 3)
    moved = x.double() * 1000 - 77
    torch.testing.assert_close(fit(x.double(), y, 3).logits(x.double()), fit(moved, y, 3).logits(moved))


def test_separable_classes_are_separated() -> None:
    y = torch.arange(90) % 3
    noise = 0.1 * torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    x = nn.functional.one_hot(y, 3).float() * 4 + noise
    probe = fit(x, y, 3)
    assert torch.equal(probe.predict(x), y)
    assert probe.converged
    assert float(probe.logits(x).softmax(dim=1).max(dim=1).values.min()) > 0.95


def test_more_features_than_samples_generalize_as_scikit_learn_does() -> None:
    x, y = problem(1060, 100, 3)
    train, test, labels = x[:60], x[60:], y[:60]
    scaler, model = peer(train, labels, 1e-3)
    expected = torch.from_numpy(model.predict(scaler.transform(test.double().numpy())))
    assert float((fit(train, labels, 3).predict(test) == expected).double().mean()) > 0.998


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e7])
def test_constant_features_change_nothing(constant: float) -> None:
    x, y = problem(300, 6, 3)
    wider = torch.cat((x[:, :2], torch.full((300, 1), constant), x[:, 2:]), dim=1)
    probe = fit(wider, y, 3)
    assert torch.equal(probe.weight[:, 2], torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(probe.logits(wider), fit(x, y, 3).logits(x), atol=1e-3, rtol=1e-3)
    unseen = wider.clone()
    unseen[:, 2] = 1.0  # constant in training only
    torch.testing.assert_close(probe.logits(unseen), probe.logits(wider))


def test_collapsed_features_give_the_largest_class() -> None:
    y = torch.tensor([0] * 10 + [1] * 30 + [2] * 20)
    probe = fit(torch.full((60, 4), 0.3), y, 3)
    same = torch.full((5, 4), 0.3)
    assert probe.predict(same).tolist() == [1] * 5
    shares = torch.tensor([1 / 6, 3 / 6, 2 / 6], dtype=torch.float64).expand(5, 3)
    torch.testing.assert_close(probe.logits(same).softmax(dim=1), shares, atol=1e-4, rtol=0)


def test_classes_without_training_images_are_never_predicted() -> None:
    x, y = problem(200, 6, 3)
    spread = torch.tensor([1, 4, 6])[y]
    probe = fit(x, spread, 8)
    assert set(probe.predict(x).tolist()) <= {1, 4, 6}
    torch.testing.assert_close(probe.logits(x)[:, [1, 4, 6]], fit(x, y, 3).logits(x))
    layer = fit_epochs(
        x, spread, 8, epochs=2, batch_size=32, lr=0.01, optimizer="adam", rng=torch.Generator().manual_seed(0)
    )
    assert set(layer.predict(x).tolist()) <= {1, 4, 6}


def test_steps_that_run_out_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem()
    monkeypatch.setattr(logistic, "MAX_STEPS", 3)
    assert not fit(x, y, 4).converged


def test_whole_numbers_and_half_precision_are_features_too() -> None:
    x, y = problem(300, 6, 3)
    rounded = x.round().clamp(-1000, 1000)
    expected = fit(rounded, y, 3).predict(rounded)
    for dtype in (torch.float16, torch.int64):
        assert torch.equal(fit(rounded.to(dtype), y, 3).predict(rounded.to(dtype)), expected)


def test_bad_input() -> None:
    x, y = problem(50, 6, 3)
    schedule = {"epochs": 1, "batch_size": 8, "lr": 0.1, "optimizer": "sgd"}

    def epochs(x: Tensor, y: Tensor, classes: int) -> LinearProbe:
        return fit_epochs(x, y, classes, rng=torch.Generator(), **schedule)  # type: ignore[arg-type]

    diverged = x.clone()
    diverged[3:5, 1:4] = torch.nan
    for make in (fit, epochs):
        with pytest.raises(DataError, match="all 50 training images of the probe are of class 2"):
            make(x, torch.full((50,), 2), 3)
        with pytest.raises(DataError, match="6 of 300 feature values are NaN or infinite, in 2 of 50"):
            make(diverged, y, 3)
        with pytest.raises(DataError, match="there are 2 classes"):
            make(x, y, 2)
        with pytest.raises(DataError, match="labels of shape"):
            make(x, y[:9], 3)
    with pytest.raises(DataError, match="6 of 300"):
        fit(x, y, 3).predict(diverged)
    with pytest.raises(ConfigError, match="l2=0"):
        fit(x, y, 3, l2=0)


@pytest.mark.parametrize(
    ("optimizer", "lr", "milestones"), [("adam", 3e-3, ()), ("sgd", 0.01, (3, 5)), ("sgd", 0.1, ())]
)
def test_epochs_are_those_of_torch_layers(optimizer: str, lr: float, milestones: tuple[int, ...]) -> None:
    """A layer, a loss, autograd and a scheduler, with the same initial weights and the same batches."""
    x, y = problem(150, 6, 3)
    x = (x - x.mean(dim=0)) / x.std(dim=0)
    probe = fit_epochs(
        x,
        y,
        3,
        epochs=6,
        batch_size=32,
        lr=lr,
        optimizer=optimizer,  # type: ignore[arg-type]
        milestones=milestones,
        rng=torch.Generator().manual_seed(7),
    )
    rng = torch.Generator().manual_seed(7)
    layer = nn.Linear(6, 3)
    bound = 6**-0.5
    initial = torch.empty(3, 7).uniform_(-bound, bound, generator=rng)
    with torch.no_grad():
        layer.weight.copy_(initial[:, :6])
        layer.bias.copy_(initial[:, 6])
    method: torch.optim.Optimizer = (
        torch.optim.Adam(layer.parameters(), lr=lr)
        if optimizer == "adam"
        else torch.optim.SGD(layer.parameters(), lr=lr, momentum=0.9)
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(method, list(milestones), gamma=0.1)
    for _ in range(6):
        order = torch.randperm(150, generator=rng)
        for start in range(0, 150, 32):
            index = order[start : start + 32]
            method.zero_grad()
            nn.functional.cross_entropy(layer(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            method.step()
        scheduler.step()
    torch.testing.assert_close(probe.weight, layer.weight.detach().double(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(probe.bias, layer.bias.detach().double(), atol=1e-5, rtol=1e-4)


def test_epochs_depend_on_nothing_but_the_generator() -> None:
    x, y = problem(100, 6, 3)

    def run(seed: int) -> LinearProbe:
        torch.rand(3)  # the global generator has no say
        return fit_epochs(
            x,
            y,
            3,
            epochs=2,
            batch_size=1000,
            lr=0.01,
            optimizer="adam",
            rng=torch.Generator().manual_seed(seed),
        )

    assert torch.equal(run(1).weight, run(1).weight)
    assert not torch.equal(run(1).weight, run(2).weight)


def test_many_epochs_reach_the_minimum_that_is_fitted() -> None:
    x, y = problem(300, 4, 3)
    x = (x - x.mean(dim=0)) / x.std(dim=0, correction=0)
    slow = fit_epochs(
        x,
        y,
        3,
        epochs=400,
        batch_size=300,
        lr=0.5,
        optimizer="sgd",
        rng=torch.Generator().manual_seed(0),
        milestones=(350,),
    )
    fast = fit(x, y, 3, l2=1e-6)
    found, expected = (probe.logits(x).softmax(dim=1) for probe in (slow, fast))
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)


def test_divergence_is_reported() -> None:
    x, y = problem(100, 6, 3)
    with pytest.raises(RunError, match=r"diverged with lr=1e\+38"):
        fit_epochs(
            x,
            y,
            3,
            epochs=5,
            batch_size=10,
            lr=1e38,
            optimizer="sgd",
            rng=torch.Generator().manual_seed(0),
        )


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 30.0, 1e4])
def test_line_search_finds_the_minimum_of_any_line(scale: float) -> None:
    """Also along directions that are far too short or too long: the slope there is small, by autograd."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (50,), generator=rng)
    truth = nn.functional.one_hot(y, 4).T.double().contiguous()
    logits = torch.randn(4, 50, generator=rng, dtype=torch.float64)
    along = scale * (truth - logits.softmax(dim=0) + 0.3 * torch.randn(4, 50, generator=rng))
    bend = 0.01 * scale**2

    def slope(length: float) -> float:
        t = torch.tensor(length, dtype=torch.float64, requires_grad=True)
        loss = nn.functional.cross_entropy((logits + t * along).T, y) + bend * t.square() / 2
        return float(torch.autograd.grad(loss, t)[0])

    rest = -float((truth * along).sum()) / 50
    length, probability = logistic.search(logits, along, slope(0.0), rest, bend)
    assert slope(0.0) < 0
    assert abs(slope(length)) <= logistic.SLOPE_RATIO * abs(slope(0.0))
    torch.testing.assert_close(probability, (logits + length * along).softmax(dim=0))


def test_hardly_penalized_features_of_low_rank_converge() -> None:
    rng = torch.Generator().manual_seed(0)
    factor, y = torch.randn(500, 1, generator=rng), torch.randint(0, 4, (500,), generator=rng)
    x = factor @ torch.randn(1, 64, generator=rng)
    probe = fit(x, y, 4, l2=1e-9)
    assert probe.converged
    alone = fit(factor, y, 4, l2=1e-9)  # the one feature that all of them are
    found, expected = probe.logits(x).softmax(dim=1), alone.logits(factor).softmax(dim=1)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
