"""A language model with LoRA adapters of PEFT: random weights, bytes as tokens, and no download."""

from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from secagg.adapters import AdapterPlan

STEPS, RATE = 4, 1e-3


def make_model() -> PeftModel:
    """Make the same model everywhere; yours is `AutoModelForCausalLM.from_pretrained(...)`."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes)).to(torch.bfloat16)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(base, config)


def make_plan() -> AdapterPlan:
    """Plan for the server and for every site."""
    return AdapterPlan.of(make_model(), "ffa")


class Adapter(nn.Module):
    """The server's part: the adapter's tensors, without the model."""

    def __init__(self) -> None:
        """Set the tensors that every site starts with."""
        super().__init__()
        arrays = make_plan().arrays(make_model())
        self.tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}

    def state_dict(self, *_: object, **__: object) -> dict[str, Any]:
        """Return the tensors by PEFT's names."""
        return dict(self.tensors)

    def load_state_dict(self, state_dict: dict[str, Any], *_: object, **__: object) -> None:
        """Replace the tensors."""
        self.tensors = dict(state_dict)
