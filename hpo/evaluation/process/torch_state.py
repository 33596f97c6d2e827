"""Global state of torch that an evaluation may change. Nothing here imports torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from hpo.evaluation.gpu import in_use
from hpo.evaluation.process.state_kind import Kind, entries

_BACKENDS = {
    "cudnn": ("enabled", "benchmark", "benchmark_limit", "deterministic"),
    "cuda.matmul": (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ),
    "mkldnn": ("enabled", "deterministic"),
}
_SWITCHES = {
    "precision of float32 matrix products": "_float32_matmul_precision",
    "TF32 in cuDNN": "_cudnn_allow_tf32",
    "TF32 in cuBLAS": "_cublas_allow_tf32",
    "filling of uninitialized memory": "_deterministic_fill_uninitialized_memory",
    "preferred library for linear algebra": "_linalg_preferred_backend",
    "preferred BLAS library": "_blas_preferred_backend",
    "NNPACK": "_nnpack_enabled",
}
"""``torch._C`` has a function with ``_get`` and one with ``_set`` before each."""
_ATTENTION = {
    "flash attention": ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    "memory-efficient attention": ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    "attention by plain operations": ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    "attention of cuDNN": ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
}
_PRECISIONS = [
    ("generic", "all"),
    *((backend, part) for backend in ("cuda", "mkldnn") for part in ("all", "matmul", "conv", "rnn")),
]
_AUTOCAST = ("cpu", "cuda", "xpu")
_HOOKS = {
    "torch.nn.modules.module": (
        *(f"_global_{what}_registration_hooks" for what in ("buffer", "module", "parameter")),
        *(f"_global_{when}_hooks" for when in ("backward_pre", "backward", "forward_pre", "forward")),
        "_global_forward_hooks_always_called",
        "_global_forward_hooks_with_kwargs",
    ),
    "torch.optim.optimizer": ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
}
"""Hooks of all models and optimizers of the process, by module: each evaluation would add its own to the last one's."""


@functools.cache
def _module(path: str) -> Any:
    """Module ``torch.backends.cuda``, or what else the path leads to. KeyError or AttributeError where it is not."""
    return functools.reduce(getattr, path.split(".")[1:], sys.modules["torch"])


def _call(get: str, put: str, owner: str = "torch") -> Kind:
    """A pair of functions of ``owner``."""
    return Kind(lambda: getattr(_module(owner), get)(), lambda value: getattr(_module(owner), put)(value))


def _setting(owner: str, name: str) -> Kind:
    return Kind(lambda: getattr(_module(owner), name), lambda value: setattr(_module(owner), name, value))


def _precision(backend: str, part: str) -> Kind:
    return Kind(
        lambda: _module("torch._C")._get_fp32_precision_getter(backend, part),
        lambda value: _module("torch._C")._set_fp32_precision_setter(backend, part, value),
    )


def _nesting() -> int:
    torch = sys.modules["torch"]
    depth: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def _stack(depth: Callable[[], int], pop: Callable[[], object]) -> Kind:
    """A stack, which is restored by popping."""

    def put(value: int) -> None:
        while depth() > value:
            pop()

    return Kind(depth, put)


def _modes(kind: str) -> Kind:
    return _stack(
        lambda: getattr(_module("torch._C"), f"_len_torch_{kind}_stack")(),
        lambda: getattr(_module("torch._C"), f"_pop_torch_{kind}_stack")(),
    )


def _hooked() -> bool:
    return _module("torch._C._autograd")._top_saved_tensors_default_hooks(True) is not None


def _autocast() -> tuple[Any, ...]:
    torch = sys.modules["torch"]
    types = [(torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _AUTOCAST]
    return (*types, torch.is_autocast_cache_enabled())


def _put_autocast(value: tuple[Any, ...]) -> None:
    torch = sys.modules["torch"]
    *types, cache = value
    for device, (enabled, kind) in zip(_AUTOCAST, types, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, kind)
    torch.set_autocast_cache_enabled(cache)
    torch.clear_autocast_cache()


def _default_device() -> Any:
    """Device of ``torch.set_default_device``, None where it was not called."""
    context = getattr(sys.modules["torch"]._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _gpu_index() -> int:
    module = in_use()
    return 0 if module is None else int(module.current_device())


def _put_gpu_index(value: int) -> None:
    (in_use() or _module("torch.cuda")).set_device(value)


def _gpu_stream() -> Any:
    """Stream that work goes to; None for the default stream, and where torch has no such thing, as on Intel's GPUs."""
    module = in_use()
    default = getattr(module, "default_stream", None)
    if module is None or default is None or (stream := module.current_stream()) == default():
        return None
    return stream


def _put_gpu_stream(value: Any) -> None:
    module = in_use() or _module("torch.cuda")
    module.set_stream(module.default_stream() if value is None else value)


def accept_repetition(torch: Any) -> None:
    """Let ``torch.set_num_interop_threads`` accept the number that is in force: torch allows one call a process, and an
    evaluation that makes it may not be the first there."""
    first: Callable[[int], None] | None = getattr(torch, "set_num_interop_threads", None)
    if first is None:  # a build without threads
        return

    @functools.wraps(first)
    def set_num_interop_threads(number: int) -> None:
        if number != torch.get_num_interop_threads():
            first(number)

    torch.set_num_interop_threads = set_num_interop_threads


def _nothing(value: object) -> None:
    """Leave state that cannot be set from outside."""


KINDS: dict[str, Kind] = {
    "gradients": _call("is_grad_enabled", "set_grad_enabled"),
    "torch.inference_mode": Kind(lambda: _module("torch").is_inference_mode_enabled(), _nothing),
    "anomaly detection": Kind(
        lambda: (_module("torch").is_anomaly_enabled(), _module("torch").is_anomaly_check_nan_enabled()),
        lambda value: _module("torch._C").set_anomaly_enabled(*value),
    ),
    "deterministic algorithms": Kind(
        lambda: (
            _module("torch").are_deterministic_algorithms_enabled(),
            _module("torch").is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: _module("torch._C")._set_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "default dtype": _call("get_default_dtype", "set_default_dtype"),
    "default device": Kind(_default_device, lambda value: _module("torch").set_default_device(value)),
    # A default device is a mode of torch functions, too.
    "modes of torch functions": _modes("function"),
    "modes of torch dispatch": _modes("dispatch"),
    "hooks of saved tensors": _stack(
        _hooked, lambda: _module("torch._C._autograd")._pop_saved_tensors_default_hooks()
    ),
    "nested autocast": _stack(_nesting, lambda: _module("torch").autocast_decrement_nesting()),
    "autocast": Kind(_autocast, _put_autocast),
    "threads of torch": _call("get_num_threads", "set_num_threads"),
    "threads between operations of torch": Kind(lambda: _module("torch").get_num_interop_threads(), _nothing),
    **{words: _call(f"_get{name}", f"_set{name}", "torch._C") for words, name in _SWITCHES.items()},
    # The old names of these change them, too, so they come after.
    **{f"precision of {backend}, {part}": _precision(backend, part) for backend, part in _PRECISIONS},
    **{words: _call(get, put, "torch._C") for words, (get, put) in _ATTENTION.items()},
    **{
        f"torch.backends.{owner}.{name}": _setting(f"torch.backends.{owner}", name)
        for owner, names in _BACKENDS.items()
        for name in names
    },
    **{
        f"{name[1:].replace('_', ' ')} of torch": entries(
            lambda module=module, name=name: getattr(sys.modules[module], name)  # type: ignore[misc]
        )
        for module, names in _HOOKS.items()
        for name in names
    },
    "current GPU": Kind(_gpu_index, _put_gpu_index),
    "current stream of the GPU": Kind(_gpu_stream, _put_gpu_stream),
}
"""Kinds by name, in the order in which they are put back."""
