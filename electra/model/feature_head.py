"""Output layers on a frozen encoder: its hidden states are features, a small BiLSTM reads them.

Shape suffixes: B rows of the batch, L positions, H hidden size of the encoder, K layers read,
F width of the features, U units of the BiLSTM in each direction, C classes.

Source: BERT's feature-based approach (section 5.3 of its paper: the last four layers side by side
and a two-layer BiLSTM of 768) and ELMo's weighted sum of layers (section 3.2 of its paper).
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from electra.config import FeaturesConfig
from electra.model.dropout import Dropout
from electra.model.mixed_precision import Linear


class LayerSum(nn.Module):
    """The sum of K layers, weighted by a learnt softmax and scaled by a learnt factor.

    It begins as their mean. Source: ELMo, equation 1.
    """

    def __init__(self, num_layers: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states_KBLH: Tensor) -> Tensor:
        """Map the K layers' states to one (B, L, H)."""
        return self.scale * torch.einsum("k,kblh->blh", self.weight.softmax(0), states_KBLH)


class FeatureHead(nn.Module):
    """Layers of an encoder, a BiLSTM over the row's tokens and a linear layer: float32 logits.

    Padding never changes what is said of a token or a row. The encoder is not touched: whether it
    learns is decided where its states come from.
    """

    def __init__(
        self,
        hidden_size: int,
        num_classes: int,
        config: FeaturesConfig,
        *,
        of: Literal["tokens", "row"],
        dropout_prob: float,
    ):
        """Build the layers.

        Args:
            hidden_size: H.
            num_classes: C.
            config: K; whether its layers stand side by side (F = K * H) or become their LayerSum
                (F = H); and the BiLSTMs, each on the one before it.
            of: What is judged: each token by its own state, or the row by both directions' last.
            dropout_prob: Dropout on the features and before the linear layer.
        """
        super().__init__()
        self.num_layers, self.of = config.layers, of
        is_sum = config.combine == "sum"
        self.layer_sum = LayerSum(config.layers) if is_sum else None
        features_size = hidden_size if is_sum else config.layers * hidden_size
        self.dropout = Dropout(dropout_prob)
        lstm_size = config.lstm_size or hidden_size
        self.lstm = nn.LSTM(
            features_size, lstm_size, config.lstm_layers, batch_first=True, bidirectional=True
        )
        self.dense = Linear(2 * lstm_size, num_classes)

    def forward(self, states_KBLH: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return logits (B, L, C) of tokens, or (B, C) of rows.

        Args:
            states_KBLH: Hidden states of the K layers, from `Encoder.layer_states`.
            attention_mask_BL: False where there is padding, at the end of rows only; None: nowhere.
        """
        states_KBLH = states_KBLH.float()
        if self.layer_sum is None:
            features_BLF = self.dropout(states_KBLH.permute(1, 2, 0, 3).flatten(2))
        else:
            features_BLF = self.dropout(self.layer_sum(states_KBLH))
        num_rows, num_positions = features_BLF.shape[:2]
        if attention_mask_BL is None:
            lengths_B = torch.full((num_rows,), num_positions)
        else:
            lengths_B = attention_mask_BL.sum(dim=1).cpu()
        packed = pack_padded_sequence(
            features_BLF, lengths_B, batch_first=True, enforce_sorted=False
        )
        outputs, (last, _) = self.lstm(packed)
        if self.of == "row":
            read = torch.cat([last[-2], last[-1]], dim=-1)  # the top layer's two directions
        else:
            read, _ = pad_packed_sequence(outputs, batch_first=True, total_length=num_positions)
        return self.dense(self.dropout(read))
