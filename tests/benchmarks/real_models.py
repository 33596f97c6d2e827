"""Six small models of scikit-learn and torch that are trained in each evaluation, for search.py.

"kernel": support vector regression, whose kernels have parameters of their own; "pipeline": scaling, features and a
linear model, nearly all choices; "classifier": one of four models with parameters of its own; "boosting": trees, whose
samples are drawn again in each evaluation; "perceptron": three solvers of scikit-learn's network, with new weights each
time; "network": torch's, with new weights, and optimizers that diverge: it fails there. The losses are cross-validated
mean squared errors, or logarithmic losses of data that were not trained with.

What is noisy has as its truth the mean of five other seeds."""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import numpy

import hpo

Params = dict[str, Any]
Loss = Callable[[Params, int], float]
"""Loss of a configuration, by the seed of its randomness; not a number where it fails."""
_TRUTHS = 5

REFERENCES: dict[str, tuple[float, float]] = {
    # name: lowest truth that any run of TPE or hpo.Search has found in 100 evaluations, median of 81 random
    # configurations
    "kernel": (2.85865, 4.71217),
    "pipeline": (2.82681, 3.19587),
    "classifier": (0.37975, 0.92629),
    "perceptron": (0.43959, 1.57059),
    "boosting": (3.11624, 4.455),
    "network": (0.55081, 2.30598),
}


@functools.cache
def _digits() -> tuple[Any, ...]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x[:400] / 16, y[:400], x[400:900] / 16, y[400:900]


@functools.cache
def _diabetes() -> tuple[Any, Any]:
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True)


def _cross_validated(model: Any) -> float:
    """Mean squared error in three folds, in thousands."""
    x, y = _diabetes()
    errors = []
    for fold in range(3):
        test = numpy.arange(len(x)) % 3 == fold
        errors.append(((model.fit(x[~test], y[~test]).predict(x[test]) - y[test]) ** 2).mean())
    return float(statistics.fmean(errors)) / 1000


def _log_loss(y: Any, shares: Any) -> float:
    return float(-numpy.log(numpy.clip(shares[numpy.arange(len(y)), y], 1e-3, 1)).mean())


def kernel(params: Params, seed: int) -> float:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    return _cross_validated(make_pipeline(StandardScaler(), SVR(**params, max_iter=20_000)))


KERNEL = hpo.SearchSpace(
    kernel=hpo.Categorical("linear", "rbf", "poly", "sigmoid"),
    C=hpo.Float(1e-2, 1e4, log=True),
    epsilon=hpo.Float(1e-2, 1e2, log=True),
    gamma=hpo.Float(1e-5, 1.0, log=True, when={"kernel": ("rbf", "poly", "sigmoid")}),
    degree=hpo.Int(2, 4, when={"kernel": "poly"}),
    coef0=hpo.Float(0.0, 2.0, when={"kernel": ("poly", "sigmoid")}),
)


def pipeline(params: Params, seed: int) -> float:
    from sklearn.decomposition import PCA
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import ElasticNet, HuberRegressor, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import (
        FunctionTransformer,
        PolynomialFeatures,
        QuantileTransformer,
        RobustScaler,
        StandardScaler,
    )

    scaling = {
        "none": FunctionTransformer(),
        "standard": StandardScaler(),
        "robust": RobustScaler(),
        "quantile": QuantileTransformer(n_quantiles=50, random_state=0),
    }[params["scaling"]]
    features = {
        "none": FunctionTransformer(),
        "squares": PolynomialFeatures(2, interaction_only=params.get("products") == "only"),
        "components": PCA(params.get("components")),
        "kernel": Nystroem(gamma=params.get("gamma"), n_components=params.get("points", 1), random_state=0),
    }[params["features"]]
    alpha = params["alpha"]
    linear = {
        "ridge": Ridge(alpha),
        "elastic": ElasticNet(alpha, l1_ratio=params.get("ratio", 0.5), max_iter=300),
        "huber": HuberRegressor(alpha=alpha, max_iter=50),
    }[params["model"]]
    return _cross_validated(make_pipeline(scaling, features, StandardScaler(), linear))


PIPELINE = hpo.SearchSpace(
    scaling=hpo.Categorical("none", "standard", "robust", "quantile"),
    features=hpo.Categorical("none", "squares", "components", "kernel"),
    products=hpo.Categorical("only", "too", when={"features": "squares"}),
    components=hpo.Int(1, 10, when={"features": "components"}),
    gamma=hpo.Float(1e-4, 10.0, log=True, when={"features": "kernel"}),
    points=hpo.Ordinal(5, 10, 20, 40, 80, when={"features": "kernel"}),
    model=hpo.Categorical("ridge", "elastic", "huber"),
    ratio=hpo.Float(0.0, 1.0, when={"model": "elastic"}),
    alpha=hpo.Float(1e-4, 1e3, log=True),
)


def classifier(params: Params, seed: int) -> float:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    x, y, tests, truths = _digits()
    settings = {name: value for name, value in params.items() if name != "model"}
    model = {
        "trees": lambda: ExtraTreesClassifier(random_state=0, **settings),
        "neighbours": lambda: KNeighborsClassifier(**settings),
        "logistic": lambda: LogisticRegression(max_iter=30, **settings),
        "discriminant": lambda: LinearDiscriminantAnalysis(solver="lsqr", **settings),
    }[params["model"]]()
    return _log_loss(truths, model.fit(x, y).predict_proba(tests))


CLASSIFIER = hpo.SearchSpace(
    model=hpo.Categorical("trees", "neighbours", "logistic", "discriminant"),
    n_estimators=hpo.Int(5, 60, log=True, when={"model": "trees"}),
    max_features=hpo.Float(0.02, 1.0, log=True, when={"model": "trees"}),
    min_samples_leaf=hpo.Int(1, 20, log=True, when={"model": "trees"}),
    criterion=hpo.Categorical("gini", "entropy", when={"model": "trees"}),
    n_neighbors=hpo.Int(1, 50, log=True, when={"model": "neighbours"}),
    weights=hpo.Categorical("uniform", "distance", when={"model": "neighbours"}),
    p=hpo.Int(1, 3, when={"model": "neighbours"}),
    C=hpo.Float(1e-4, 1e3, log=True, when={"model": "logistic"}),
    fit_intercept=hpo.Categorical(True, False, when={"model": "logistic"}),
    shrinkage=hpo.Float(1e-3, 1.0, log=True, when={"model": "discriminant"}),
)


def boosting(params: Params, seed: int) -> float:
    from sklearn.ensemble import GradientBoostingRegressor

    return _cross_validated(GradientBoostingRegressor(random_state=seed, **params))


BOOSTING = hpo.SearchSpace(
    n_estimators=hpo.Int(5, 60, log=True),
    learning_rate=hpo.Float(1e-3, 1.0, log=True),
    max_depth=hpo.Int(1, 5),
    subsample=hpo.Float(0.2, 1.0),
    max_features=hpo.Int(1, 10),
    min_samples_leaf=hpo.Int(1, 50, log=True),
    loss=hpo.Categorical("squared_error", "absolute_error", "huber"),
    alpha=hpo.Float(0.5, 0.99, when={"loss": "huber"}),
)


def perceptron(params: Params, seed: int) -> float:
    from sklearn.neural_network import MLPClassifier

    x, y, tests, truths = _digits()
    settings = {name: value for name, value in params.items() if name != "width"}
    model = MLPClassifier((params["width"],), max_iter=8, batch_size=50, random_state=seed, **settings)
    try:
        return _log_loss(truths, model.fit(x, y).predict_proba(tests))
    except ValueError:  # infinite weights
        return math.nan


PERCEPTRON = hpo.SearchSpace(
    width=hpo.Ordinal(2, 4, 8, 16, 32, 64),
    activation=hpo.Categorical("relu", "tanh", "logistic", "identity"),
    alpha=hpo.Float(1e-6, 10.0, log=True),
    solver=hpo.Categorical("lbfgs", "adam", "sgd"),
    learning_rate_init=hpo.Float(1e-4, 1.0, log=True, when={"solver": ("adam", "sgd")}),
    momentum=hpo.Float(0.0, 0.99, when={"solver": "sgd"}),
    nesterovs_momentum=hpo.Categorical(True, False, when={"solver": "sgd"}),
    beta_1=hpo.Float(0.5, 0.99, when={"solver": "adam"}),
)


def network(params: Params, seed: int) -> float:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    x, y, tests, truths = (torch.as_tensor(one) for one in _digits())
    x, tests = x.float(), tests.float()
    torch.manual_seed(seed)
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}[params["activation"]]
    sizes = [64] + [params["width"]] * params["depth"]
    layers = [
        layer
        for inputs, outputs in itertools.pairwise(sizes)
        for layer in (nn.Linear(inputs, outputs), activation())
    ]
    model = nn.Sequential(*layers, nn.Dropout(params["dropout"]), nn.Linear(sizes[-1], 10))
    rate, decay = params["rate"], params["decay"]
    optimizer = {
        "sgd": lambda: torch.optim.SGD(
            model.parameters(), rate, params.get("momentum", 0.0), weight_decay=decay
        ),
        "adam": lambda: torch.optim.AdamW(
            model.parameters(), rate, (params.get("beta", 0.9), 0.999), weight_decay=decay
        ),
    }[params["optimizer"]]()
    for _ in range(2):
        for part in torch.randperm(len(x)).split(params["batch"]):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(tests), truths).item()
    return loss if loss < 20 else math.nan


NETWORK = hpo.SearchSpace(
    optimizer=hpo.Categorical("sgd", "adam"),
    rate=hpo.Float(1e-4, 10.0, log=True),
    momentum=hpo.Float(0.0, 0.99, when={"optimizer": "sgd"}),
    beta=hpo.Float(0.5, 0.99, when={"optimizer": "adam"}),
    decay=hpo.Float(1e-6, 1.0, log=True),
    depth=hpo.Int(1, 3),
    width=hpo.Ordinal(8, 16, 32, 64),
    batch=hpo.Ordinal(20, 40, 80),
    activation=hpo.Categorical("relu", "tanh", "gelu"),
    dropout=hpo.Float(0.0, 0.6),
)

MODELS: dict[str, tuple[hpo.SearchSpace, Loss, bool]] = {
    # name: space, loss, whether it is noisy
    "kernel": (KERNEL, kernel, False),
    "pipeline": (PIPELINE, pipeline, False),
    "classifier": (CLASSIFIER, classifier, False),
    "boosting": (BOOSTING, boosting, True),
    "perceptron": (PERCEPTRON, perceptron, True),
    "network": (NETWORK, network, True),
}


def value(name: str, params: Params, rng: random.Random) -> float:
    """Loss of one training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MODELS[name][1](params, rng.randrange(1000, 2**31))


def truth(name: str, params: Params) -> float:
    """Loss without the noise; infinite where all trainings fail."""
    _, loss, noisy = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [one for seed in range(_TRUTHS if noisy else 1) if math.isfinite(one := loss(params, seed))]
    return statistics.fmean(found) if found else math.inf
