"""A Qwen2 with random weights and PEFT adapters, as NVFlare's Hugging Face example makes it for its server."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import Qwen2Config, Qwen2ForCausalLM


def made(rank: int = 8) -> Any:
    """Return the same model in every process."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    base = Qwen2ForCausalLM(Qwen2Config(vocab_size=256, **sizes, **heads)).to(torch.bfloat16)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=rank, lora_alpha=16, target_modules=targets, task_type=TaskType.CAUSAL_LM)
    return get_peft_model(base, config, autocast_adapter_dtype=False)


class LoRAModel(torch.nn.Module):
    """The server's model."""

    def __init__(self) -> None:
        """Make it."""
        super().__init__()
        self.model = made()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return only the adapter."""
        del args, kwargs
        return get_peft_model_state_dict(self.model)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:  # noqa: FBT001, FBT002 -- of PyTorch
        """Load an adapter."""
        del strict, assign
        return set_peft_model_state_dict(self.model, state_dict)
