"""Text from a trained language model."""

import torch

from lra.config.settings import Generate
from lra.core import streams
from lra.data import PADDING, Task
from lra.data.tokenise import TOKENIZER, load
from lra.model.model import Model


@torch.inference_mode()
def continuation(model: Model, prompt: list[int], *, tokens: int, top_p: float, seed: int) -> list[int]:
    """Draw `tokens` further ids by nucleus sampling (Holtzman et al. 2020) with probability `top_p`.

    The model reads the last `max_len` ids, padded to `max_len` as in training, on which a scale may depend.
    """
    model.eval()
    ids = list(prompt)
    device = next(model.parameters()).device
    for place in range(tokens):
        read = ids[-model.max_len :]
        window = torch.tensor([read + [PADDING] * (model.max_len - len(read))], device=device)
        logits = model(window)[0, len(read) - 1].double().cpu()
        logits[PADDING] = float("-inf")
        likely, order = logits.softmax(dim=0).sort(descending=True)
        before = likely.cumsum(dim=0) - likely
        nucleus = likely[before < top_p].numpy()
        chosen = streams.generator(seed, "sample", place).choice(len(nucleus), p=nucleus / nucleus.sum())
        ids.append(int(order[chosen]))
    return ids[len(prompt) :]


def sample(model: Model, task: Task, wanted: Generate, seed: int) -> str:
    """Return the prompt and its continuation, with a final newline."""
    tokenizer = load(task.folder / TOKENIZER)
    prompt = tokenizer.encode(wanted.prompt, add_special_tokens=False).ids
    ids = continuation(model, prompt, tokens=wanted.tokens, top_p=wanted.top_p, seed=seed)
    return tokenizer.decode(prompt + ids) + "\n"
