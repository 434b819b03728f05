"""DeBERTa's layer, written out."""

from torch import Tensor

from electra.model.deberta import DisentangledLayer, RelativePlaces
from electra.model.deberta_config import DebertaConfig
from electra.model.fused.post_norm import apply_post_norm
from electra.model.fused.products import Kept
from electra.model.parts import DropoutMasks


class FusedDisentangledLayer(DisentangledLayer):
    """`DisentangledLayer` for training and evaluation on a CPU."""

    @classmethod
    def mask_sizes(  # type: ignore[override]
        cls, config: DebertaConfig, num_rows: int, length: int
    ) -> tuple[int, ...]:
        """Return the sizes of the dropout masks of a pass; the last is that of the table."""
        widths = config.hidden_size, config.num_attention_heads * length
        of_rows = (num_rows * length * width for width in widths)
        return *of_rows, 2 * config.position_buckets * config.hidden_size

    def forward(  # type: ignore[override]
        self,
        x_BLH: Tensor,
        places: RelativePlaces,
        masks: DropoutMasks | None,
        queries_BLH: Tensor | None = None,
    ) -> Tensor:
        """Return what `DisentangledLayer.forward` returns; without `masks` nothing is dropped."""
        table_RH = places.table_RH
        kept = Kept.draw(self.attention.relative_dropout, tuple(table_RH.shape), masks)
        if kept.mask is not None:
            table_RH = table_RH * kept.mask * kept.scale
        more = queries_BLH, table_RH, places.rows_T
        return apply_post_norm(self, x_BLH, places.mask, masks, *more)
