"""The criterions under torch's DistributedDataParallel, fairseq's default, in two processes."""

import os
import subprocess
import sys

import pytest

from helpers.running import ROOT

WORKER = """
import os, sys
import torch
from fairseq.distributed import ModuleProxyWrapper
from torch import distributed
from fairseq_klang.criterions.fused_cross_entropy import (
    FusedCrossEntropyConfig, FusedCrossEntropyCriterion)
from fairseq_klang.criterions.restricted_softbleu import (
    RestrictedSoftBleuConfig, RestrictedSoftBleuCriterion)
from helpers.criterions import MODELS, loss_and_gradients, make_sample
from helpers.models import build

rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
criterions = [
    (FusedCrossEntropyCriterion, FusedCrossEntropyConfig(sentence_avg=False)),
    (RestrictedSoftBleuCriterion, RestrictedSoftBleuConfig(sentence_avg=False, sb_topk=3)),
]
for name in ("transformer", "lstm", "lstm_dualhead"):
    for kind, config in criterions:
        for search in (False, True):
            if (name, kind) == ("lstm_dualhead", FusedCrossEntropyCriterion) and not search:
                continue  # its second head has no gradient, which DDP must be told to look for
            model, task = build(name, **MODELS[name])
            criterion = kind.build_criterion(config, task)
            samples = [make_sample(task, seed) for seed in (0, 1)]
            # No wrapper: the mean of both processes' gradients is what either must hold.
            single = [loss_and_gradients(model, criterion, sample)[1] for sample in samples]
            wrapped = ModuleProxyWrapper(torch.nn.parallel.DistributedDataParallel(
                model, find_unused_parameters=search))
            for update in range(2):
                model.zero_grad()
                loss, _, log = criterion(wrapped, samples[rank])
                assert kind is not RestrictedSoftBleuCriterion or "gnorm_ce_head" in log, "dense"
                loss.backward()
                for key, parameter in model.named_parameters():
                    parts = [part[key] for part in single if part[key] is not None]
                    found = parameter.grad
                    expected = sum(parts) / 2 if parts else torch.zeros_like(parameter)
                    found = torch.zeros_like(parameter) if found is None else found
                    torch.testing.assert_close(
                        found, expected, rtol=1e-4, atol=1e-5,
                        msg=lambda text: f"{name} {kind.__name__} {search} {key}: {text}")
            assert "output_layer" not in vars(model.decoder)
distributed.barrier()
distributed.destroy_process_group()
print("done", flush=True)
os._exit(0)  # all is compared; gloo's threads now and then abort a Python that ends
"""


@pytest.mark.slow
def test_both_criterions_are_lean_and_exchange_every_gradient(tmp_path):
    """With fairseq's single-head models too; with and without the search for unused parameters."""
    path = os.pathsep.join((ROOT, os.path.join(ROOT, "tests")))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path / "store")],
            env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for output in outputs:
        assert output.rstrip().endswith("done"), output[-3000:]
