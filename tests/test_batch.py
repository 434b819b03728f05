"""Rows of any lengths: padded, and batched by length."""

import pytest
import torch

from electra.model.batch import pad_rows, split_by_length


def test_padded_rows_are_real_at_their_tokens_only():
    batch = pad_rows([[2, 7, 3], [2, 3]], 9, [[0, 1, 1], [0, 1]])
    assert batch.input_ids_BL.tolist() == [[2, 7, 3], [2, 3, 9]]
    assert batch.attention_mask_BL.tolist() == [[True] * 3, [True, True, False]]
    assert batch.token_type_ids_BL.tolist() == [[0, 1, 1], [0, 1, 0]]
    without_types = pad_rows([[2, 7, 3], [2, 3]], 9).token_type_ids_BL
    assert without_types.equal(torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("max_rows", "max_tokens", "batches"),
    [
        (2, None, [[1, 3], [0, 4], [2]]),
        (9, 12, [[1], [3, 0], [4, 2]]),
        (2, 1, [[1], [3], [0], [4], [2]]),
    ],
)
def test_rows_of_like_length_stand_together_the_longest_first(max_rows, max_tokens, batches):
    assert list(split_by_length([4, 7, 0, 6, 4], max_rows, max_tokens)) == batches
