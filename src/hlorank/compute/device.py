"""The device that a model runs on."""

from __future__ import annotations

import torch

from hlorank.config import ConfigError


def find_device(accelerator: str) -> torch.device:
    """Return the device of an accelerator: auto is CUDA where PyTorch finds it, otherwise the CPU.

    Raises:
        ConfigError: `accelerator` is cuda, and PyTorch finds no CUDA device.
    """
    available = torch.cuda.is_available()
    if accelerator == "cuda" and not available:
        raise ConfigError("trainer.accelerator=cuda: PyTorch finds no CUDA device; set it to auto or cpu")
    return torch.device("cuda" if accelerator != "cpu" and available else "cpu")
