"""A greedy reply of an adapter as peft and transformers give it.

For a process of its own, because importing ART changes transformers; one that has imported them takes no time for it.
"""

import json
from pathlib import Path
from typing import Any

MAX_TOKENS = 20


def save_reply(base: Path, adapter: Path, question: str, file: Path) -> None:
    """The reply's token ids go to the file, as JSON."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(adapter)
    loaded: Any = AutoModelForCausalLM.from_pretrained(base)
    model: Any = PeftModel.from_pretrained(loaded, adapter)
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        made = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_TOKENS)
    file.write_text(json.dumps(made[0, prompt["input_ids"].shape[1] :].tolist()))
