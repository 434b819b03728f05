"""The output layer that tags every token.

Shape suffixes: B rows of the batch, L positions, H hidden size, C labels.
"""

from torch import Tensor, nn

from electra.model.dropout import Dropout
from electra.model.mixed_precision import Linear


class TaggingHead(nn.Module):
    """Dropout and one linear layer on every position: (B, L, H) to float32 logits (B, L, C).

    Dropout as in the classifier; its parameters fit transformers' ElectraForTokenClassification,
    and with `heads.PredictionHead` inside ModernBertForTokenClassification.
    Source: tagging_tasks.py get_prediction_module, which has no dropout.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        dropout_prob: float,
        inner: nn.Module | None = None,
    ):
        super().__init__()
        self.inner = inner or nn.Identity()
        self.dropout = Dropout(dropout_prob)
        self.dense = Linear(hidden_size, num_labels)

    def forward(self, hidden_BLH: Tensor) -> Tensor:
        """Return a logit for each label at each position."""
        return self.dense(self.dropout(self.inner(hidden_BLH.float())))
