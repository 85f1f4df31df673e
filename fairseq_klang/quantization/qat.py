"""Quantisation-aware training: make a fairseq model compute with fake-quantised weights and
activations (docs/precision.md)."""

import argparse
import logging
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.lstm import LSTMDecoder
from fairseq.modules import LearnedPositionalEmbedding
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from ..compat import call_every_projection, strip_legacy_keys
from ..errors import UsageError
from .fake_quant import fake_quantize

logger = logging.getLogger(__name__)

State = Tuple[torch.Tensor, torch.Tensor]  # (hidden, cell) of an LSTM


@dataclass
class QatConfig(FairseqDataclass):
    """The flags of quantisation-aware training, with their legal ranges in :meth:`check`."""

    qat_bits: Optional[int] = field(
        default=None,
        metadata={
            "help": (
                "train, validate and generate with weights and activations quantised to this "
                "many bits, 2 to 8; 8 is INT8 as CTranslate2 serves it"
            )
        },
    )
    qat_start_update: int = field(
        default=0, metadata={"help": "train this many updates in float before --qat-bits sets in"}
    )
    qat_gradient_bits: Optional[int] = field(
        default=None,
        metadata={
            "help": (
                "with --qat-bits, quantise the gradients of weights and activations too, to 2 "
                "to 8 bits"
            )
        },
    )

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add the flags to a model's parser."""
        gen_parser_from_dataclass(parser, cls(), delete_default=True)

    @classmethod
    def from_args(cls, args: Any) -> "QatConfig":
        """The options in a model's arguments, defaults for what is missing (an older checkpoint);
        raises UsageError."""
        given = {
            f.name: getattr(args, f.name, None) for f in fields(cls) if not f.name.startswith("_")
        }
        config = cls(
            **{name: value for name, value in given.items() if value is not None}
        )  # older hydra's None is a missing option too
        config.check()
        return config

    def check(self) -> None:
        """Raise UsageError (option, value given, legal values) for a value out of range."""
        bits, start, gradient_bits = self.qat_bits, self.qat_start_update, self.qat_gradient_bits
        for option, value in (("--qat-bits", bits), ("--qat-gradient-bits", gradient_bits)):
            if value is not None and not (isinstance(value, int) and 2 <= value <= 8):
                raise UsageError(
                    f"{option} is {value}; it must be a whole number from 2 to 8, or left out"
                )
        if start < 0:
            raise UsageError(f"--qat-start-update is {start}; it must be 0 or more")
        for option, given in (
            ("--qat-start-update", start),
            ("--qat-gradient-bits", gradient_bits),
        ):
            if given and bits is None:
                raise UsageError(
                    f"{option} is {given}, but without --qat-bits nothing is quantised; give "
                    "--qat-bits 8, or leave it out"
                )


class Quantizer(nn.Module):
    """The state that all quantised modules of one model share: bits, number of updates, and weights
    already quantised.

    A child module of the model without parameters of its own, so that fairseq tells it the number
    of updates and train() or eval(), while checkpoints hold nothing of it.
    """

    def __init__(self, config: QatConfig) -> None:
        super().__init__()
        self.bits, self.gradient_bits, self.start_update = (
            config.qat_bits,
            config.qat_gradient_bits,
            config.qat_start_update,
        )
        self.num_updates = 0
        self._weights: Dict[Tuple[int, bool], Tuple[Any, ...]] = {}

    @property
    def active(self) -> bool:
        """Whether it quantises yet."""
        return self.num_updates >= self.start_update

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each training step, and when a checkpoint is loaded."""
        self.num_updates = num_updates
        self._weights.clear()

    def train(self, mode: bool = True) -> "Quantizer":
        """Called by fairseq whenever training turns to validation and back."""
        self._weights.clear()
        return super().train(mode)

    def __getstate__(self) -> Dict[str, Any]:
        # Copies of a model, and worker processes, quantise anew.
        return dict(self.__dict__, _weights={})

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., n] fake-quantised by row: the activation of each token, or the embedding of each
        token."""
        return fake_quantize(x, self.bits, self.gradient_bits) if self.active else x

    def weight(self, parameter: torch.Tensor) -> torch.Tensor:
        """The matrix [out, in] fake-quantised by row.

        Quantised once a step, however often it is used: kept until a gradient has come back through
        it, fairseq begins another step, or the mode changes (fairseq's optimisers write to `.data`,
        which leaves no trace in `_version`). Training without gradient keeps nothing.
        """
        if not self.active:
            return parameter
        differentiable = torch.is_grad_enabled() and parameter.requires_grad
        key = id(parameter), differentiable
        state = parameter._version, parameter.data_ptr(), parameter.dtype
        kept = self._weights.get(key)
        if kept is not None and kept[0] is parameter and kept[1] == state:
            return kept[2]
        quantized = fake_quantize(
            parameter, self.bits, self.gradient_bits, lambda: self._weights.pop(key, None)
        )
        if differentiable or not self.training:
            self._weights[key] = parameter, state, quantized
        return quantized

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]
    ) -> torch.Tensor:
        """x [..., in] times weight [out, in] plus bias, both quantised once the quantizer is
        active."""
        return F.linear(self.rows(x), self.weight(weight), bias)


class QuantLinear(nn.Linear):
    """nn.Linear on quantised input and weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        return self.quantizer.linear(x, self.weight, self.bias)


class QuantEmbedding(nn.Embedding):
    """nn.Embedding of a quantised table: its rows are quantised one by one, so only those looked up
    are."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., d]"""
        return self.quantizer.rows(super().forward(tokens))


def _lstm_step(gates: torch.Tensor, cell: torch.Tensor) -> State:
    """(hidden, cell) [B, H] from the summed gates [B, 4H] in torch's order: input, forget, cell,
    output."""
    enter, forget, new, leave = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


class QuantLSTMCell(nn.LSTMCell):
    """nn.LSTMCell on quantised input, hidden state and weights."""

    def forward(self, x: torch.Tensor, state: State) -> State:
        """[B, in], (hidden, cell) -> (hidden, cell), each [B, H]"""
        hidden, cell = state
        linear = self.quantizer.linear
        return _lstm_step(
            linear(x, self.weight_ih, self.bias_ih) + linear(hidden, self.weight_hh, self.bias_hh),
            cell,
        )


class QuantLSTM(nn.LSTM):
    """nn.LSTM on quantised inputs, hidden states and weights, step by step; torch's fused one takes
    no quantised hidden state."""

    def forward(
        self, x: Union[torch.Tensor, PackedSequence], state: Optional[State] = None
    ) -> Tuple[Union[torch.Tensor, PackedSequence], State]:
        """As nn.LSTM, time first: x [T, B, in] or packed, state (hidden, cell) [layers, B, H] ->
        (output, state)."""
        if not self.quantizer.active:
            return super().forward(x, state)
        packed = isinstance(x, PackedSequence)
        data, sizes, order, undo = (
            (x.data, x.batch_sizes.tolist(), x.sorted_indices, x.unsorted_indices)
            if packed
            else (x.flatten(0, 1), [x.size(1)] * x.size(0), None, None)
        )
        if state is None:
            zeros = data.new_zeros(len(self.all_weights), sizes[0], self.hidden_size)
            state = zeros, zeros
        hidden, cell = self.permute_hidden(state, order)
        directions = 2 if self.bidirectional else 1
        last = []
        for first in range(0, len(self.all_weights), directions):
            if first and self.dropout:
                data = F.dropout(data, self.dropout, self.training)
            outputs = []
            for index in range(first, first + directions):
                output, *ends = self._direction(
                    data, sizes, hidden[index], cell[index], self.all_weights[index], index > first
                )
                outputs.append(output)
                last.append(ends)
            data = torch.cat(outputs, 1)
        state = self.permute_hidden(tuple(torch.stack(ends) for ends in zip(*last)), undo)
        output = (
            PackedSequence(data, x.batch_sizes, order, undo)
            if packed
            else data.view(len(sizes), sizes[0], -1)
        )
        return output, state

    def _direction(self, data, sizes, first_hidden, first_cell, weights, backwards):
        """One layer in one direction over steps of `sizes` rows, the largest first: (outputs [N,
        H], hidden, cell [B, H])."""
        weight_ih, weight_hh, bias_ih, bias_hh = weights if self.bias else (*weights, None, None)
        from_input = self.quantizer.linear(data, weight_ih, bias_ih).split(sizes)
        rows = 0 if backwards else sizes[0]
        hidden, cell = first_hidden[:rows], first_cell[:rows]
        outputs, ended = [None] * len(sizes), []
        for step in range(len(sizes) - 1, -1, -1) if backwards else range(len(sizes)):
            size = sizes[step]
            if size < hidden.size(0):  # sentences that have ended
                ended.append((hidden[size:], cell[size:]))
                hidden, cell = hidden[:size], cell[:size]
            elif size > hidden.size(0):  # sentences whose last word, read first, is here
                begun = slice(hidden.size(0), size)
                hidden, cell = (
                    torch.cat((hidden, first_hidden[begun])),
                    torch.cat((cell, first_cell[begun])),
                )
            hidden, cell = _lstm_step(
                from_input[step] + self.quantizer.linear(hidden, weight_hh, bias_hh), cell
            )
            outputs[step] = hidden
        ends = [(hidden, cell)] + ended[::-1]
        return (torch.cat(outputs), *(torch.cat(parts) for parts in zip(*ends)))


# Exact classes only: a subclass may compute something else with its weight.
_QUANTIZED = {
    nn.Linear: QuantLinear,
    nn.Embedding: QuantEmbedding,
    nn.LSTM: QuantLSTM,
    nn.LSTMCell: QuantLSTMCell,
}


def quantizer_of(decoder: nn.Module) -> Optional[Quantizer]:
    """The model's :class:`Quantizer`, or None where it is not quantised."""
    return decoder.__dict__.get("quantizer")


def quantize_model(model: Any, config: QatConfig) -> Any:
    """Make a fairseq encoder-decoder model train, validate and generate with fake quantisation;
    returns the model, changed in place.

    The scheme: every weight matrix by row, the activations entering it by token (Linear, Embedding,
    LSTM). Parameters, their names and checkpoints stay as they are; so with `config.qat_bits` None
    the model stays wholly as it is. What is left in float (layer norms, biases, positions,
    convolutions) has no row scheme in the serving engine; matrices among it are named in the log.

    Args:
        model: any fairseq model with a decoder, built but not wrapped.
        config: :class:`QatConfig`.
    Raises:
        UsageError: an option out of range, a model that is quantised already, or an output layer
            that computes past its modules.
    """
    config.check()
    decoder = model.decoder
    if quantizer_of(decoder) is not None:
        raise UsageError(
            f"this model is quantised with {quantizer_of(decoder).bits} bits already; build it "
            "anew to quantise it otherwise"
        )
    if config.qat_bits is None:
        return model
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise UsageError(
            "--qat-bits cannot be combined with --adaptive-softmax-cutoff, which scores past its "
            "layers; leave one of them out"
        )
    if type(decoder) is LSTMDecoder and decoder.share_input_output_embed:
        raise UsageError(
            "--qat-bits needs an output layer of its own in fairseq's LSTM; leave the sharing flag "
            "out, or use lstm_dualhead"
        )
    quantizer = Quantizer(config)
    model.quantizer = quantizer
    quantized, kept = set(), set()
    for module in list(model.modules()):
        cls = _QUANTIZED.get(type(module))
        if cls is QuantLSTM and (module.batch_first or getattr(module, "proj_size", 0)):
            continue
        if cls is not None:
            module.__class__ = cls
            module.__dict__["quantizer"] = (
                quantizer  # past nn.Module's registration: the model alone owns it
            )
            quantized.update(map(id, module._parameters.values()))
        elif isinstance(module, LearnedPositionalEmbedding):
            kept.add(id(module.weight))
    decoder.__dict__["quantizer"] = quantizer
    call_every_projection(model)
    matrices = {
        name: p
        for name, p in strip_legacy_keys(dict(model.named_parameters())).items()
        if p.dim() > 1
    }
    left = [name for name, p in matrices.items() if id(p) not in quantized | kept]
    if left:
        logger.warning(
            "--qat-bits leaves these matrices in float, since their layers have no row scheme: "
            f"{', '.join(left)}"
        )
    logger.info(
        f"quantisation-aware training with {config.qat_bits} bits from update "
        f"{config.qat_start_update} on: {len(matrices) - len(left)} matrices"
    )
    return model
