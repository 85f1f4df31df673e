"""The oracle of the tests: docs/loss.md as slow loops over sentences, positions and n-grams."""

import math

import torch


def reference_soft_bleu(
    logits, target, *, pad, eos, unk, bos, topk, max_order, ngrams, decay, counts
):
    """Score [B] of logits [B, T, V], sentence by sentence; differentiable, in the dtype of the
    logits."""
    scores = []
    for z, y in zip(logits, target.tolist()):
        tokens = [(t, v) for t, v in enumerate(y) if v not in (pad, eos)]
        words = [v for _, v in tokens]
        z = z[[t for t, _ in tokens]]
        reference = {v for v in words if v not in (unk, bos)}
        vocab = z.size(1)
        rows = []
        for row in z:
            kept = (
                set(range(vocab))
                if not topk or topk >= vocab
                else set(row.topk(topk).indices.tolist()) | reference
            )
            kept = sorted(kept)
            normaliser = torch.logsumexp(row[kept], 0)
            rows.append({v: row[v] - normaliser for v in kept})
        logs = []
        for n in range(1, min(max_order, len(words)) + 1):
            if ngrams == "decay" and n > 1:
                if logs:
                    logs.append(logs[0] + (n - 1) * math.log(decay))
                continue
            grams = {}
            for s in range(len(words) - n + 1):
                gram = tuple(words[s : s + n])
                if all(v in reference for v in gram):
                    grams[gram] = grams.get(gram, 0) + 1
            if not grams:
                continue
            matches = []
            for gram, count in grams.items():
                found = sum(
                    torch.exp(sum(rows[t + j][v] for j, v in enumerate(gram)))
                    for t in range(len(words) - n + 1)
                )
                matches.append(torch.clamp(found, max=count) if counts == "clipped" else found)
            logs.append(torch.log(sum(matches) / (len(words) - n + 1)))
        scores.append(torch.exp(sum(logs) / len(logs)) if logs else z.sum() * 0)
    return torch.stack(scores)
