"""Autoformer (Wu et al. 2021, arXiv 2106.13008): the package transformers' model, which forecasts values here and not
their distribution, with an auto-correlation of its own.
"""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


class Autoformer(nn.Module):
    """Forecasts ``horizon`` points from ``context`` ones: (batch, horizon, features).

    transformers' ``AutoformerForPrediction`` puts a distribution's parameters on top and trains its likelihood. The
    source trains by squared error: so this is ``AutoformerModel``, whose seasonal part and trend are added, as Wu et
    al. do. The decoder has ``start_token`` points of the context before those that it forecasts. Values come
    standardised; the model does not scale each window again, and takes no lags but the points themselves. Unlike Wu
    et al.'s, transformers' model embeds values and times by one linear layer, not by a convolution and tables, and
    normalises after each attention.

    Its attention gives delays and weights of one window to other windows of the batch (5.23; heads are folded into
    the batch in another order than delays are repeated for them), so that a forecast depends on what it is made
    together with. ``correlated`` takes its place.
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
        # Seconds, and of no use to other networks.
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
                # An instance's own forward; layers, names and first weights stay as they are.
                module.forward = MethodType(_attend, module)  # type: ignore[method-assign]

    def forward(
        self, past_values: Tensor, past_time_features: Tensor, future_time_features: Tensor
    ) -> Tensor:
        found: Any = self.model(
            past_values=past_values,
            past_time_features=past_time_features,
            past_observed_mask=torch.ones_like(past_values),
            # Only its shape counts where nothing is lagged.
            future_values=past_values.new_zeros(len(past_values), self.horizon, self.features),
            future_time_features=future_time_features,
            use_cache=False,
        )
        whole: Tensor = found.last_hidden_state + found.trend
        return whole[:, -self.horizon :, : self.features]


def _attend(
    self: Any, hidden_states: Tensor, key_value_states: Tensor | None = None, **_: object
) -> tuple[Tensor, None]:
    """The forward pass of transformers' ``AutoformerAttention``, by ``correlated``."""
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

    Of the delays those ``factor`` · ln(points) are taken at which queries and keys agree most: by the mean over
    heads and channels, for each sample, or as in training, ``shared``, by the mean over the batch. Values, rolled
    by these, are summed with weights, the softmax of that agreement. Keys and values of another length than the
    queries are cut, or filled up with zeros.
    """
    # In a lower precision a GPU has no Fourier transform.
    precision = torch.promote_types(queries.dtype, torch.float32)
    queries, keys, values = (part.to(precision) for part in (queries, keys, values))
    points = queries.shape[1]
    missing = max(0, points - keys.shape[1])
    keys, values = (nn.functional.pad(part[:, :points], (0, 0, 0, missing)) for part in (keys, values))
    # Sums over all pairs of points that far apart, as a product of spectra; its mean may be taken first.
    spectrum = (torch.fft.rfft(queries, dim=1) * torch.fft.rfft(keys, dim=1).conj()).mean(dim=2)
    agreement = torch.fft.irfft(spectrum, n=points, dim=1)
    count = max(1, int(factor * math.log(points)))
    ranked = agreement.mean(dim=0, keepdim=True) if shared else agreement
    delays = ranked.topk(count, dim=1).indices.expand(len(agreement), count)
    weights = agreement.gather(1, delays).softmax(dim=1)
    # The sum over delays of weight times rolled values is a correlation, too: with the weights at their delays.
    kernel = torch.zeros_like(agreement).scatter(1, delays, weights)
    spectrum = torch.fft.rfft(values, dim=1) * torch.fft.rfft(kernel, dim=1).conj().unsqueeze(2)
    rolled: Tensor = torch.fft.irfft(spectrum, n=points, dim=1)
    return rolled
