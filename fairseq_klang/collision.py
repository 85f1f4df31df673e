"""The collision constant K_lang: how many of a vocabulary's tokens compete at one position."""

import math

K_LANG = 0.003


def _check(vocab_size: int, k_lang: float) -> None:
    if vocab_size < 1:
        raise ValueError(f"vocab_size is {vocab_size}; it must be at least 1")
    if not 0 < k_lang <= 1:
        raise ValueError(
            f"k_lang is {k_lang}; it must be above 0 and at most 1 (the default is {K_LANG})"
        )


def collision_size(vocab_size: int, k_lang: float = K_LANG) -> int:
    """Number of candidates k = round(K_lang * V), at least 1 (docs/loss.md).

    8,000 -> 24, 32,000 -> 96, 56,652 -> 170. Raises ValueError for an empty vocabulary or a
    constant outside (0, 1].
    """
    _check(vocab_size, k_lang)
    return max(1, round(k_lang * vocab_size))


def min_bits(vocab_size: int, k_lang: float = K_LANG) -> int:
    """Bits that tell K_lang * V tokens apart: ceil(log2(K_lang * V)), at least 1.

    Claim C14 of docs/claims.md: 8,000 -> 5, 32,000 -> 7, 56,652 -> 8. Raises ValueError as
    :func:`collision_size` does.
    """
    _check(vocab_size, k_lang)
    return max(1, math.ceil(math.log2(max(2.0, k_lang * vocab_size))))
