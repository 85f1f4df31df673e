"""--init-from: what is copied, what is new, what is left."""

import pytest
import torch

from fairseq_klang.checkpoints.initialise import copy_matching, initialise_from
from fairseq_klang.compat import strip_legacy_keys
from fairseq_klang.errors import UsageError
from helpers.models import SMALL, build

OPTIONS = SMALL["transformer_dualhead"]


def test_one_head_becomes_two_and_both_start_from_it():
    single, dual = (
        build("transformer", **OPTIONS)[0],
        build("transformer_dualhead", seed=1, **OPTIONS)[0],
    )
    report = copy_matching(dual, single.state_dict())
    assert torch.equal(
        dual.decoder.output_projection.weight, single.decoder.output_projection.weight
    )
    assert torch.equal(dual.decoder.sb_projection.weight, single.decoder.output_projection.weight)
    assert not report.new and not report.skipped and not report.resized


def test_two_heads_stay_two():
    first, second = (build("transformer_dualhead", seed=seed, **OPTIONS)[0] for seed in (0, 1))
    copy_matching(second, first.state_dict())
    for name, tensor in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name


def test_another_size_keeps_the_common_corner_and_the_rest_of_its_own():
    small, large = (
        build("transformer_dualhead", **OPTIONS)[0],
        build("transformer_dualhead", seed=1, **dict(OPTIONS, encoder_ffn_embed_dim=40))[0],
    )
    before = large.encoder.layers[0].fc1.weight.clone()
    report = copy_matching(large, small.state_dict())
    after = large.encoder.layers[0].fc1.weight
    assert torch.equal(after[:24], small.encoder.layers[0].fc1.weight) and torch.equal(
        after[24:], before[24:]
    )
    assert "encoder.layers.0.fc1.weight (24, 16) -> (40, 16)" in report.resized


def test_every_tensor_is_in_exactly_one_list():
    source = build("transformer", **dict(OPTIONS, decoder_layers=1))[0].state_dict()
    source["surprise"] = torch.zeros(1)
    model = build("transformer_dualhead", seed=1, **OPTIONS)[0]
    report = copy_matching(model, source)
    names = [name.split(" ")[0] for fate in report for name in fate]
    assert len(names) == len(set(names)) and set(names) == set(
        strip_legacy_keys(model.state_dict())
    ) | {"surprise"}
    assert report.skipped == ["surprise"] and all(
        "decoder.layers.1." in name for name in report.new
    )


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    torch.save({"model": {"conv.weight": torch.zeros(2, 2)}}, tmp_path / "c.pt")
    with pytest.raises(UsageError, match="no tensor of that checkpoint fits this model"):
        initialise_from(build("transformer_dualhead", **OPTIONS)[0], tmp_path / "c.pt")
