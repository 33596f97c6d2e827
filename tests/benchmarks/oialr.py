"""OIALR: bytes between nodes, time of a low-rank layer; gpu.py has the time of decompositions.

    python tests/benchmarks/oialr.py [--repeats 5] [--quick]

- Bytes, on two nodes of two ranks, by the interface's counters. Expected of each step are those of DDP times the share
  of parameters that is trained, and of each decomposition its U, σ and Vᵀ, once from one node to the other.
  ``bytes_to_expected`` is the whole of it, ``step_to_expected`` that of steps without a decomposition.
- A layer's forward and backward pass, with a gradient for its input: Linear of full rank, of rank k as ``trainers`` has
  it, and of rank k by materialising W = U Σ Vᵀ in each pass, as the published code does. One thread, variants
  interleaved, medians. ``faster_than_materialised`` at k = 192 on 8 192 rows; ``of_full_rank`` is the largest ratio
  over k at 25 216 rows, a batch of 128 images of 197 tokens.

Ends in one line of JSON."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from typing import Any

import torch
from arguments import parser_of
from torch import Tensor, nn
from torch.nn.functional import linear
from training import Watch, course, load_average, perceptron
from two_nodes import entered, settled

import trainers
from trainers.lowrank.layers import factorise, matrix_weights, product

WIDTHS = (256, 512, 512, 512, 512, 10)
LAYERS = {"768 to 768": (768, 768), "768 to 3072": (3072, 768)}
"""Rows and columns of W."""
WIDTH = 768
MANY_ROWS, ROWS, FEW_ROWS = 128 * 197, 8192, 256


# Bytes


class Trained(Watch):
    """Notes before each step how much of ``model`` is trained, and the ranks of its weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self.trained: list[int] = []
        self.ranks: list[list[list[int]]] = []

    def _before(self, step: int) -> None:
        self.trained.append(sum(p.numel() for p in self._model.parameters() if p.requires_grad))
        factored = [weight.factors for weight in matrix_weights(self._model) if weight.factors]
        self.ranks.append([list(factors["sigma"].shape[:1]) for factors in factored])


def transmit(rank: int, *, steps: int, every: int) -> dict[str, Any]:
    """What each step and decomposition sent, of this node, and what was trained and decomposed then."""
    found: dict[str, Any] = {}
    methods: dict[str, trainers.Method] = {
        "ddp": trainers.DDP(),
        "oialr": trainers.OIALR(delay=every, update_every=every, layer_step=0.5, sigma_cutoff=0.5),
    }
    for name, method in methods.items():
        model = perceptron(WIDTHS)
        watch = Trained(model)
        settled()
        course(
            method, widths=WIDTHS, steps=steps, batch_size=8, optimizer=torch.optim.AdamW, lr=1e-3, watch=watch,
            model=model,
        )  # fmt: skip
        found[name] = {
            "step_bytes": [after - before for before, after in zip(watch.sent, watch.sent[1:])],
            "trained": watch.trained,
            "ranks": watch.ranks,
            "all": watch.sent[-1] - watch.sent[0],
        }
    return found


def bytes_of(ranks: list[dict[str, Any]], every: int) -> dict[str, float]:
    """What both nodes sent, against what they should."""
    both = (ranks[0], ranks[2])
    ddp, oialr = ([one[name] for one in both] for name in ("ddp", "oialr"))
    # Steps begin and end at a node's own pace: the middle one of many.
    ddp_step = sum(statistics.median(one["step_bytes"][2:]) for one in ddp)
    full = ddp[0]["trained"][0]
    trained = oialr[0]["trained"]
    steps = len(trained) - 1
    # What is trained in step i is known when step i + 1 begins: decompositions come after the look.
    expected = sum(ddp_step * trained[step + 1] / full for step in range(steps))
    shapes = [(weight.rows, weight.columns) for weight in matrix_weights(perceptron(WIDTHS), last=False)]
    sent_by_decompositions = 0.0
    for step in range(steps):
        before, after = oialr[0]["ranks"][step], oialr[0]["ranks"][step + 1]
        if step == every:
            # U, σ and Vᵀ of each weight.
            sent_by_decompositions += sum(4 * (m * k + k + k * n) for (m, n), (k,) in zip(shapes, after))
        elif step > every and step % every == 0:
            count = max(1, int(len(shapes) * 0.5 * (step // every - 1) + 1e-9))
            # P, S and Qᵀ of those updated.
            sent_by_decompositions += sum(
                4 * (2 * old * new + new) for (old,), (new,) in list(zip(before, after))[-count:]
            )
    quiet: dict[int, list[float]] = defaultdict(list)
    for step in range(2, steps - 1):
        if step % every not in (every - 1, 0, 1):
            quiet[trained[step + 1]].append(sum(one["step_bytes"][step] for one in oialr))
    ratios = [statistics.median(sent) / (ddp_step * share / full) for share, sent in quiet.items()]
    return {
        "bytes_to_expected": sum(one["all"] for one in oialr) / (expected + sent_by_decompositions),
        "step_to_expected": max(ratios, key=lambda ratio: abs(ratio - 1)),
        "trainable_at_the_end": trained[-1] / full,
        "step_of_ddp_at_the_end": statistics.median(quiet[trained[-1]]) / ddp_step,
        "decompositions_of_all_bytes": sent_by_decompositions / (expected + sent_by_decompositions),
    }


# A layer


class Materialised(nn.Module):
    """W = U Σ Vᵀ multiplied in each pass."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.factors = next(iter(matrix_weights(layer))).factors

    def forward(self, x: Tensor) -> Tensor:
        shape = self.layer.out_features, self.layer.in_features
        return linear(x, product(tuple(self.factors.values()), *shape), self.layer.bias)


def low_rank(rows: int, columns: int, k: int) -> nn.Linear:
    """Linear with W = U Σ Vᵀ, as OIALR has it."""
    layer = nn.Linear(columns, rows)
    u, _ = torch.linalg.qr(torch.randn(rows, k))
    v, _ = torch.linalg.qr(torch.randn(columns, k))
    frozen = {
        name: nn.Parameter(value, requires_grad=False) for name, value in (("u", u), ("vt", v.T.contiguous()))
    }
    weight = matrix_weights(layer)[0]
    factorise(weight, {"u": frozen["u"], "sigma": nn.Parameter(torch.randn(k, k)), "vt": frozen["vt"]})
    return layer


def layer_seconds(shape: tuple[int, int], rows: int, ks: list[int], repeats: int) -> dict[str, Any]:
    """Medians of forward and backward, for each k beside full rank, interleaved."""
    x = torch.randn(rows, shape[1], requires_grad=True)
    gradient = torch.randn(rows, shape[0])
    variants: dict[str, nn.Module] = {"full": nn.Linear(shape[1], shape[0])}
    for k in ks:
        layer = low_rank(*shape, k)
        variants[f"low {k}"] = layer
        if rows < MANY_ROWS:
            variants[f"materialised {k}"] = Materialised(layer)
    seconds: dict[str, list[float]] = defaultdict(list)
    for repeat in range(repeats + 1):
        for name, module in variants.items():
            x.grad = None
            module.zero_grad(set_to_none=True)
            begin = time.thread_time()
            module(x).backward(gradient)
            if repeat:
                seconds[name].append(time.thread_time() - begin)
    of_full, faster = {}, {}
    for k in ks:
        low, materialised = seconds[f"low {k}"], seconds[f"materialised {k}"]
        of_full[k] = statistics.median(one / other for one, other in zip(low, seconds["full"], strict=True))
        if materialised:
            faster[k] = statistics.median(one / other for one, other in zip(materialised, low, strict=True))
    return {
        "full_ms": 1e3 * statistics.median(seconds["full"]),
        "of_full_rank": of_full,
        "faster_than_materialised": faster,
    }


def layers(repeats: int, quick: bool) -> dict[str, Any]:
    """All shapes and numbers of rows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, shape in LAYERS.items():
        by_rows = {}
        for rows in (FEW_ROWS,) if quick else (FEW_ROWS, ROWS, MANY_ROWS):
            # The dearest are few: around where a layer begins to work as one matrix, and where that costs the most.
            eighths = (2,) if quick else (2, 4, 5, 8) if rows == MANY_ROWS else (1, 2, 3, 4, 5, 6, 8)
            ks = [WIDTH * part // 8 for part in eighths]
            by_rows[rows] = layer_seconds(shape, rows, ks, 3 if rows == MANY_ROWS else repeats)
            print(
                f"{name}, {rows} rows: full rank {by_rows[rows]['full_ms']:.1f} ms; of it "
                + ", ".join(f"k={k} {ratio:.2f}" for k, ratio in by_rows[rows]["of_full_rank"].items())
                + "; over it materialised "
                + ", ".join(
                    f"k={k} {ratio:.2f}" for k, ratio in by_rows[rows]["faster_than_materialised"].items()
                ),
                flush=True,
            )
        most, some = max(by_rows), sorted(by_rows)[len(by_rows) // 2]
        found[name] = {
            "of_full_rank": max(by_rows[most]["of_full_rank"].values()),
            "faster_than_materialised": by_rows[some]["faster_than_materialised"][WIDTH // 4],
            "by_rows": by_rows,
        }
    return found


def main() -> None:
    parser = parser_of(__doc__, quick="few steps, few rows, k a quarter")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    steps, every = (40, 8) if options.quick else (120, 20)
    options.repeats = 2 if options.quick else options.repeats
    with entered(None) as nodes:
        transmitted = nodes.run(transmit, {"steps": steps, "every": every}, timeout_s=600)
    result: dict[str, Any] = {"benchmark": "oialr", **bytes_of(transmitted, every)}
    print(
        f"bytes: {result['bytes_to_expected']:.3f} of what is expected, at the end "
        f"{result['step_of_ddp_at_the_end']:.3f} of DDP's a step with {result['trainable_at_the_end']:.3f} trained",
        flush=True,
    )
    result["layers"] = layers(options.repeats, options.quick)
    result["of_full_rank"] = max(one["of_full_rank"] for one in result["layers"].values())
    result["faster_than_materialised"] = min(
        one["faster_than_materialised"] for one in result["layers"].values()
    )
    result["load_average"] = load_average()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
