"""`translation_dualhead`: fairseq's translation task, and what neither a model nor a criterion can
offer."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import nn

from ..checkpoints.initialise import dictionary_fingerprint, initialise_from
from ..checks.preflight import check_data_folder
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
    init_dictionaries: Optional[str] = field(
        default=None,
        metadata={
            "help": (
                "folder with the dict.LANG.txt that the checkpoint of --init-from or "
                "--init-encoder-from was trained with; the data folder that it names if not given"
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
    """Translation with a choice of head and a start from another checkpoint, for any
    architecture."""

    def __init__(self, cfg: Any, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        if cfg.init_dictionaries and not (cfg.init_from or getattr(cfg, "init_encoder_from", None)):
            raise UsageError(
                f"--init-dictionaries is {cfg.init_dictionaries}, but no checkpoint is named; add "
                "--init-from, or leave it out"
            )
        # They go into checkpoints, so that a later start from one can tell other dictionaries.
        self.state.merge_state_dict(
            {
                "source_dictionary": dictionary_fingerprint(src_dict),
                "target_dictionary": dictionary_fingerprint(tgt_dict),
            }
        )

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "TranslationDualHeadTask":
        """Load the dictionaries; raises UsageError for a folder that fairseq-preprocess did not
        write."""
        check_data_folder(cfg.data)
        return super().setup_task(cfg, **kwargs)

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
            initialise_from(
                model,
                self.cfg.init_from,
                self.source_dictionary,
                self.target_dictionary,
                self.cfg.init_dictionaries,
            )
        return model
