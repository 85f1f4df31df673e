"""The half-precision types that this torch multiplies on a CPU (an old one lacks fp16)."""

import torch


def _works(dtype):
    ones = torch.ones(2, 2)
    try:
        with torch.autocast("cpu", dtype=dtype):
            ones @ ones
        torch.bmm(ones[None].to(dtype), ones[None].to(dtype))
        ones.to(dtype) @ ones.to(dtype)
    except RuntimeError:
        return False
    return True


HALVES = [dtype for dtype in (torch.bfloat16, torch.float16) if _works(dtype)]
