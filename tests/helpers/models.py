"""Small models of every architecture, and batches for them."""

from argparse import Namespace

import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_klang

fairseq_klang.register()

SMALL = {
    "transformer_dualhead": dict(
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=24,
        encoder_layers=2,
        encoder_attention_heads=2,
        decoder_layers=2,
        decoder_attention_heads=2,
    ),
    "lstm_dualhead": dict(
        encoder_embed_dim=16,
        encoder_hidden_size=16,
        decoder_embed_dim=16,
        decoder_hidden_size=16,
        decoder_out_embed_dim=16,
    ),
    "lstm_dualhead without attention": dict(
        encoder_embed_dim=16,
        encoder_hidden_size=16,
        decoder_embed_dim=16,
        decoder_hidden_size=16,
        decoder_out_embed_dim=16,
        decoder_attention="0",
    ),
}


def dictionary(words, prefix="w"):
    result = Dictionary()
    for i in range(words):
        result.add_symbol(f"{prefix}{i}")
    return result


def build(architecture, source=None, target=None, seed=0, **options):
    """A model in evaluation mode, and its task; a joined dictionary of 20 words unless given."""
    source = source or dictionary(20)
    config = tasks.translation.TranslationConfig()
    config.source_lang, config.target_lang = "de", "en"
    task = tasks.translation.TranslationTask(config, source, target or source)
    args = Namespace(criterion="cross_entropy", **options)
    ARCH_CONFIG_REGISTRY[architecture](args)
    torch.manual_seed(seed)
    return ARCH_MODEL_REGISTRY[architecture].build_model(args, task).eval(), task


def small(name, **options):
    return build(name.split()[0], **dict(SMALL[name], **options))


def batch(model_dictionary, seed=0, size=3, source=6, target=5):
    rng = torch.Generator().manual_seed(seed)
    words = (4, len(model_dictionary))
    src = torch.randint(*words, (size, source), generator=rng)
    src[:, -1] = model_dictionary.eos()
    previous = torch.randint(*words, (size, target), generator=rng)
    previous[:, 0] = model_dictionary.eos()
    return dict(
        src_tokens=src, src_lengths=torch.full((size,), source), prev_output_tokens=previous
    )
