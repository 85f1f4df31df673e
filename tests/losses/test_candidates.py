"""The search of the k largest values by way of block maxima: against torch's own topk."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_klang.losses import candidates
from fairseq_klang.losses.candidates import largest


def check(values, k):
    found, columns = largest(values, k)
    expected = values.topk(k, 1).values
    assert torch.equal(found.sort(1, descending=True).values, expected)
    assert torch.equal(values.gather(1, columns), found)
    assert all(len(set(row)) == k for row in columns.tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 3000), st.integers(0, 10**6), st.booleans())
def test_it_is_topk(k, size, seed, many_ties):
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(3, max(size, k), generator=rng)
    check(values.round() if many_ties else values, k)


@pytest.mark.parametrize("vocab, k", [(8000, 24), (32000, 96), (56652, 170)])
def test_at_the_sizes_of_the_docs(vocab, k):
    check(torch.randn(4, vocab, generator=torch.Generator().manual_seed(vocab)), k)


def test_the_detour_is_taken_where_it_saves(monkeypatch):
    seen = []
    original = torch.Tensor.topk
    monkeypatch.setattr(
        torch.Tensor, "topk", lambda x, *a, **k: seen.append(x.size(1)) or original(x, *a, **k)
    )
    largest(torch.randn(2, 56652), 170)
    # Two levels of maxima, then the values of 170 blocks of 8 and the few columns that fill no
    # block, on either level.
    assert len(seen) == 3 and sum(seen) < 56652 / 10
    assert candidates._FEW * 170 > seen[0]


def test_infinite_values_and_nan_rank_as_in_topk():
    values = torch.randn(1, 5000)
    values[0, 17], values[0, 4999] = float("inf"), -float("inf")
    check(values, 5)
    values[0, 3000] = float("nan")
    assert 3000 in largest(values, 5)[1][0].tolist()
