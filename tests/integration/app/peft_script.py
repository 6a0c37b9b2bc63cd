"""A greedy reply of an adapter as peft and transformers give it: BASE ADAPTER QUESTION -> token ids as JSON.

A process of its own, because importing ART changes transformers.
"""

import json
import sys
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

MAX_TOKENS = 20


def main(base: str, adapter: str, question: str) -> None:
    """Print the ids."""
    tokenizer: Any = AutoTokenizer.from_pretrained(adapter)
    loaded: Any = AutoModelForCausalLM.from_pretrained(base)
    model: Any = PeftModel.from_pretrained(loaded, adapter)
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        made = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_TOKENS)
    print(json.dumps(made[0, prompt["input_ids"].shape[1] :].tolist()))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
