"""LoRA with peft: only the adapters of a transformer are trained, sent, averaged and remembered by the server.

Needs `pip install peft transformers`. The transformer is small and has random weights, so nothing is downloaded;
in its place use `AutoModelForSequenceClassification.from_pretrained(…)`.
"""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import fedstale as fs

WORDS, LENGTH = 100, 12


def model():
    config = BertConfig(  # type: ignore[call-arg]
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=2,
        max_position_embeddings=LENGTH,
    )
    lora = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), lora)


def client(topic, samples=40):
    """Sentences as a tokenizer gives them, with a mask; the class is which of two words of the topic is there."""
    ids = torch.randint(20, WORDS, (samples, LENGTH))
    y = torch.randint(2, (samples,))
    ids[:, 1:6] = (2 * topic + y)[:, None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, y


if __name__ == "__main__":  # engines may start processes, which read this file again
    torch.manual_seed(0)
    train, test = ([client(topic) for topic in [0] * 4 + [1] * 4] for _ in range(2))  # the rare clients: topic 1
    task = fs.Supervised(model, train, test)
    whole = sum(p.numel() for p in model().parameters())
    print(f"parameters that clients train and send: {task.d:,} of {whole:,}")
    print(f"memory of the server, a row per client: {task.n * task.d * 4:,} bytes, not {task.n * whole * 4:,}")

    local = fs.Local(lr=0.003, batch=20, optimizer="adam")
    settings: dict[str, Any] = {"rounds": 30, "seeds": (1, 2), "local": local, "name": "lora"}
    found = fs.compare(task, ["fedavg", "auto"], fs.TwoGroups(p_min=0.1), **settings)
    found.table()  # then: fedstale report runs
    task.model(found.runs[-1].params()).save_pretrained("adapter")  # as any model of peft
