"""`translation_dualhead`: fairseq's translation task, and what neither a model nor a criterion can
offer."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import nn

from ..checkpoints.initialise import initialise_from
from ..errors import UsageError
from ..models.heads import DECODE_HEADS, choose_decode_head


@dataclass
class TranslationDualHeadConfig(TranslationConfig):
    """fairseq's translation flags, the choice of head in fairseq-generate, and a start from another
    checkpoint."""

    init_from: Optional[str] = field(
        default=None,
        metadata={
            "help": (
                "start from the weights of this checkpoint, which may have another number of "
                "heads, criterion, architecture or dictionaries; optimiser, schedule and best "
                "metric start afresh"
            )
        },
    )
    decode_head: Optional[ChoiceEnum(DECODE_HEADS)] = field(
        default=None,
        metadata={"help": "output layer used in generation; as the model was trained if not given"},
    )
    decode_mix: Optional[float] = field(
        default=None,
        metadata={
            "help": "with --decode-head mix, weight of the ce head's log-probabilities, 0 to 1"
        },
    )


@register_task("translation_dualhead", dataclass=TranslationDualHeadConfig)
class TranslationDualHeadTask(TranslationTask):
    """Translation with `--decode-head`, `--decode-mix` and `--init-from`, for any architecture."""

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build the model, set its decoding head, and in training start it from `--init-from`."""
        model = super().build_model(cfg, from_checkpoint)
        choose_decode_head(model.decoder, self.cfg)
        head = getattr(model.decoder, "decode_head", "ce")
        if self.cfg.decode_mix is not None and head != "mix":
            raise UsageError(
                f"--decode-mix is {self.cfg.decode_mix}, but it has no effect where the head is "
                f"{head}; add --decode-head mix, or leave it out"
            )
        if self.cfg.init_from and not from_checkpoint:
            initialise_from(model, self.cfg.init_from)
        return model
