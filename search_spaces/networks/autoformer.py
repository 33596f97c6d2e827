"""Autoformer (Wu et al. 2021, arXiv 2106.13008): the model of the package transformers, with another auto-correlation,
which forecasts values in place of a distribution.
"""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


class Autoformer(nn.Module):
    """Forecasts ``horizon`` points from ``context`` points: (batch, horizon, features).

    transformers' ``AutoformerForPrediction`` adds the parameters of a distribution and trains its likelihood. Wu et al.
    train by squared error, so this uses ``AutoformerModel``, with the sum of its seasonal part and trend, as they do.
    The decoder gets ``start_token`` points of the context before the points to forecast. Values must be standardised;
    the model does not scale each window again, and has no lags other than the points themselves. Unlike the model of Wu
    et al., that of transformers embeds values and times by a linear layer, not by a convolution and tables, and
    normalises after each attention.

    The attention of transformers 5.23 applies delays and weights of a window to other windows of the batch, because
    heads are folded into the batch in another order than delays are repeated for them. A forecast so depends on the
    other windows of its batch; ``correlated`` replaces that attention.
    """

    def __init__(
        self,
        *,
        features: int,
        time_features: int,
        context: int,
        start_token: int,
        horizon: int,
        dim: int,
        linear_dim: int,
        encoder_layers: int,
        decoder_layers: int,
        heads: int,
        moving_average: int,
        dropout: float,
    ) -> None:
        super().__init__()
        # Imported here, because it takes seconds and other networks do not need it.
        from transformers import AutoformerConfig, AutoformerModel
        from transformers.models.autoformer.modeling_autoformer import AutoformerAttention

        self.features, self.horizon = features, horizon
        self.model = AutoformerModel(
            AutoformerConfig(
                prediction_length=horizon,
                context_length=context,
                label_length=start_token,
                input_size=features,
                num_time_features=time_features,
                # The only lag is the point itself.
                lags_sequence=[0],
                scaling=False,
                d_model=dim,
                encoder_ffn_dim=linear_dim,
                decoder_ffn_dim=linear_dim,
                encoder_layers=encoder_layers,
                decoder_layers=decoder_layers,
                encoder_attention_heads=heads,
                decoder_attention_heads=heads,
                moving_average=moving_average,
                autocorrelation_factor=1,
                activation_function="gelu",
                dropout=dropout,
                activation_dropout=dropout,
                # Wu et al. leave out no layers.
                encoder_layerdrop=0.0,
                decoder_layerdrop=0.0,
                use_cache=False,
            )
        )
        for module in self.model.modules():
            if isinstance(module, AutoformerAttention):
                # Replaced on the instance, so that layers, names and initial weights stay the same.
                module.forward = MethodType(_attend, module)  # type: ignore[method-assign]

    def forward(
        self, past_values: Tensor, past_time_features: Tensor, future_time_features: Tensor
    ) -> Tensor:
        found: Any = self.model(
            past_values=past_values,
            past_time_features=past_time_features,
            past_observed_mask=torch.ones_like(past_values),
            # The model uses only the shape of the future values without lags.
            future_values=past_values.new_zeros(len(past_values), self.horizon, self.features),
            future_time_features=future_time_features,
            use_cache=False,
        )
        whole: Tensor = found.last_hidden_state + found.trend
        return whole[:, -self.horizon :, : self.features]


def _attend(
    self: Any, hidden_states: Tensor, key_value_states: Tensor | None = None, **_: object
) -> tuple[Tensor, None]:
    """Forward pass of transformers' ``AutoformerAttention`` with ``correlated``."""
    source = hidden_states if key_value_states is None else key_value_states
    found = correlated(
        self.q_proj(hidden_states),
        self.k_proj(source),
        self.v_proj(source),
        factor=self.autocorrelation_factor,
        shared=self.training,
    )
    return self.out_proj(found), None


def correlated(queries: Tensor, keys: Tensor, values: Tensor, *, factor: float, shared: bool) -> Tensor:
    """Auto-correlation (Wu et al., Eqs. 4 to 7) of sequences (batch, points, channels), in the queries' shape.

    The ``factor`` · ln(points) delays with the largest correlation of queries and keys are used: the mean over heads
    and channels for each sample, or with ``shared``, as in training, also over the batch. Values are rolled by these
    delays and summed with the softmax of the correlations as weights. Keys and values with another length than the
    queries are cut, or filled up with zeros.
    """
    # GPUs have no Fourier transform in lower precisions.
    precision = torch.promote_types(queries.dtype, torch.float32)
    queries, keys, values = (part.to(precision) for part in (queries, keys, values))
    points = queries.shape[1]
    missing = max(0, points - keys.shape[1])
    keys, values = (nn.functional.pad(part[:, :points], (0, 0, 0, missing)) for part in (keys, values))
    # The correlation at each delay is a product of spectra, whose mean over channels may be taken first.
    spectrum = (torch.fft.rfft(queries, dim=1) * torch.fft.rfft(keys, dim=1).conj()).mean(dim=2)
    agreement = torch.fft.irfft(spectrum, n=points, dim=1)
    count = max(1, int(factor * math.log(points)))
    ranked = agreement.mean(dim=0, keepdim=True) if shared else agreement
    delays = ranked.topk(count, dim=1).indices.expand(len(agreement), count)
    weights = agreement.gather(1, delays).softmax(dim=1)
    # The weighted sum of rolled values is a correlation too, with a kernel that has the weights at their delays.
    kernel = torch.zeros_like(agreement).scatter(1, delays, weights)
    spectrum = torch.fft.rfft(values, dim=1) * torch.fft.rfft(kernel, dim=1).conj().unsqueeze(2)
    rolled: Tensor = torch.fft.irfft(spectrum, n=points, dim=1)
    return rolled
