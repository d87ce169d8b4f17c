"""Models of other people's code, with random weights, in the phases in which they are run: what one-line is for.

The models are those of Hugging Face's transformers, which is imported when one is made; ``block`` is our own and needs
torch alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tilescout.experiments.research.llama_block import BlockSizes, make_block
from tilescout.spaces.gemm import GemmProblem

if TYPE_CHECKING:
    import torch

PHASES = ("decode", "prefill", "train")
CACHE_LENGTH = 1024
"""Tokens that a static cache of keys and values holds, unless told."""

SHORTEST_CACHE = 512
"""Fewer tokens a cache can't hold: a CUDA graph is replayed some 200 steps without a restart."""

_PROMPT = 32  # tokens in the cache before the first that is decoded


def _nothing() -> None:
    """Forget nothing."""


@dataclass(frozen=True)
class Step:
    """A step of a model; calling it runs it.

    Attributes
    ----------
    run
        Runs it.
    inputs
        What it is run on: tokens, or activations of a model without an embedding. They may be replaced in place.
    restart
        Has the next step be the first behind the prompt again. Calls do so by themselves, a CUDA graph does not.
    """

    run: "Callable[[], torch.Tensor]"
    inputs: "torch.Tensor"
    restart: Callable[[], None] = _nothing

    def __call__(self) -> "torch.Tensor":
        return self.run()


@dataclass(frozen=True)
class Client:
    """A model that can be called.

    Attributes
    ----------
    module
        The model.
    call
        Makes, of the model or of what ``torch.compile`` made of it, and rows, a step. Of the same rows the inputs are
        the same.
    counts
        Whether it counts its steps in Python, as caches of a sliding window do: Dynamo has to take the number as
        unknown, and does so when it changes first.
    """

    module: "torch.nn.Module"
    call: "Callable[[Any, int], Step]"
    counts: bool = False


_MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
}
_QWEN3_8B = {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8}
SIZES: Mapping[str, tuple[str, Mapping[str, int | None]]] = MappingProxyType(
    {
        "qwen3": ("Qwen3", {**_QWEN3_8B, "head_dim": 128, "vocab_size": 151_936}),
        "llama": (
            "Llama",
            {
                "hidden_size": 3072,
                "intermediate_size": 8192,
                "num_attention_heads": 24,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 128_256,
            },
        ),
        "mixtral": ("Mixtral", {**_MIXTRAL, "num_local_experts": 1, "num_experts_per_tok": 1}),
        "mixtral-experts": ("Mixtral", {**_MIXTRAL, "num_local_experts": 8, "num_experts_per_tok": 2}),
        "qwen2.5": (
            "Qwen2",
            {
                "hidden_size": 3584,
                "intermediate_size": 18_944,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152_064,
            },
        ),
        "phi4": (
            "Phi3",
            {
                "hidden_size": 5120,
                "intermediate_size": 17_920,
                "num_attention_heads": 40,
                "num_key_value_heads": 10,
                "vocab_size": 100_352,
            },
        ),
        "gemma2": (
            "Gemma2",
            {
                "hidden_size": 3584,
                "intermediate_size": 14_336,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "vocab_size": 256_000,
            },
        ),
        "starcoder2": (
            "Starcoder2",
            {
                "hidden_size": 4608,
                "intermediate_size": 18_432,
                "num_attention_heads": 36,
                "num_key_value_heads": 4,
                "vocab_size": 49_152,
            },
        ),
        "olmo2": (
            "Olmo2",  # each head has keys of its own, which is what its configuration says if it is told nothing
            {
                "hidden_size": 5120,
                "intermediate_size": 13_824,
                "num_attention_heads": 40,
                "vocab_size": 100_352,
            },
        ),
        "glm4": (
            "Glm4",
            {
                "hidden_size": 4096,
                "intermediate_size": 13_696,
                "num_attention_heads": 32,
                "num_key_value_heads": 2,
                "head_dim": 128,
                "vocab_size": 151_552,
            },
        ),
        "mistral-nemo": (
            "Mistral",  # of which this one has no window: with one, each length of a cache is compiled anew
            {
                "sliding_window": None,
                "hidden_size": 5120,
                "intermediate_size": 14_336,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 131_072,
            },
        ),
        "phi2": (
            "Phi",  # each head has keys of its own, and each product a bias
            {
                "hidden_size": 2560,
                "intermediate_size": 10_240,
                "num_attention_heads": 32,
                "vocab_size": 51_200,
            },
        ),
        "seed-oss": (
            "SeedOss",
            {
                "hidden_size": 5120,
                "intermediate_size": 27_648,
                "num_attention_heads": 80,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 155_136,
            },
        ),
        "smollm3": (
            "SmolLM3",  # every fourth layer knows no positions
            {
                "hidden_size": 2048,
                "intermediate_size": 11_008,
                "num_attention_heads": 16,
                "num_key_value_heads": 4,
                "vocab_size": 128_256,
            },
        ),
        "yi": (
            "Llama",
            {
                "hidden_size": 7168,
                "intermediate_size": 20_480,
                "num_attention_heads": 56,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 64_000,
            },
        ),
        "qwen2.5-1.5b": (
            "Qwen2",
            {
                "hidden_size": 1536,
                "intermediate_size": 8960,
                "num_attention_heads": 12,
                "num_key_value_heads": 2,
                "vocab_size": 151_936,
            },
        ),
        "stablelm2": (
            "StableLm",  # each head has keys of its own
            {
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "vocab_size": 100_352,
            },
        ),
        "qwen1.5": (
            "Qwen2",  # each head has keys of its own
            {
                "hidden_size": 2560,
                "intermediate_size": 6912,
                "num_attention_heads": 20,
                "num_key_value_heads": 20,
                "vocab_size": 151_936,
            },
        ),
        "gemma": (
            "Gemma",  # each head has keys of its own
            {
                "hidden_size": 3072,
                "intermediate_size": 24_576,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "head_dim": 256,
                "vocab_size": 256_000,
            },
        ),
        "pythia": (
            "GPTNeoX",  # each head has keys of its own, and each product of a layer a bias
            {
                "hidden_size": 4096,
                "intermediate_size": 16_384,
                "num_attention_heads": 32,
                "vocab_size": 50_432,
            },
        ),
        "command-r": (
            "Cohere",  # each head has keys of its own
            {
                "hidden_size": 8192,
                "intermediate_size": 22_528,
                "num_attention_heads": 64,
                "num_key_value_heads": 64,
                "vocab_size": 256_000,
            },
        ),
    }
)
"""The models by their names: Qwen3-8B, Llama-3.2-3B, Mixtral-8x7B, Qwen2.5-7B, Phi-4, Gemma-2-9B, StarCoder2-7B, OLMo 2
13B, GLM-4-9B, Mistral NeMo 12B, Phi-2, Seed-OSS-36B, SmolLM3-3B, Yi-34B, Qwen2.5-1.5B, StableLM 2 1.6B, Qwen1.5-4B,
Gemma 7B, Pythia 6.9B and Command R, as their configurations are published; with how many layers is asked. ``mixtral``
has one expert: which of eight a token goes to may differ with the rounding of the products before, and with it the
time. No suite that anything was tuned on has products of Qwen2.5-7B, Phi-4, Gemma 2, StarCoder2, OLMo 2, Mistral NeMo,
Phi-2, Seed-OSS, Yi, Qwen1.5 and Gemma; of GLM-4's and Pythia's one, 4096×4096, of SmolLM3's and StableLM 2's one,
2048×2048, of Qwen2.5-1.5B's one, 1536×1536, and of Command R's one, 8192×8192."""


def make_client(name: str, phase: str, layers: int, device: str, cache_length: int = CACHE_LENGTH) -> Client:
    """A model in a phase.

    Parameters
    ----------
    name
        ``block``, or one of `SIZES`.
    phase
        One of `PHASES`. In ``decode`` rows are sequences of one token each, over a static cache; in the others they are
        tokens of one sequence.
    layers
        How many.
    device
        Where it lies, as torch names it.
    cache_length
        Tokens that the static cache holds; of ``block``, which has none, nothing.
    """
    if name == "block":
        return _blocks(phase, layers, device)
    return _of_transformers(name, phase, layers, device, cache_length)


def products(module: "torch.nn.Module", rows: int) -> list[GemmProblem]:
    """The products of a model's linear layers, of so many rows; each once, in the order of the layers."""
    import torch

    linear = [each for each in module.modules() if isinstance(each, torch.nn.Linear)]
    found = [
        GemmProblem(m=rows, n=each.out_features, k=each.in_features, bias=each.bias is not None) for each in linear
    ]
    return list(dict.fromkeys(found))


def _blocks(phase: str, layers: int, device: str) -> Client:
    import torch

    sizes = BlockSizes(intermediate=12288)
    stack = torch.nn.Sequential(*(make_block(sizes, torch.bfloat16, device, seed) for seed in range(layers)))

    def call(compiled: Any, rows: int) -> Step:
        shape = (rows, 1, sizes.hidden) if phase == "decode" else (1, rows, sizes.hidden)
        generator = torch.Generator(device).manual_seed(rows)
        x = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator)
        if phase == "train":
            return Step(_trained(stack, lambda: compiled(x).float().square().mean()), x)
        return Step(lambda: compiled(x), x)

    return Client(stack, call)


def _trained(module: "torch.nn.Module", loss: "Callable[[], torch.Tensor]") -> "Callable[[], torch.Tensor]":
    def step() -> "torch.Tensor":
        module.zero_grad(set_to_none=True)
        found = loss()
        found.backward()
        return found.detach()

    return step


def _of_transformers(name: str, phase: str, layers: int, device: str, cache_length: int) -> Client:
    import torch
    import transformers

    family, sizes = SIZES[name]
    config = getattr(transformers, f"{family}Config")(
        **sizes, num_hidden_layers=layers, max_position_embeddings=8192, attn_implementation="sdpa"
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = getattr(transformers, f"{family}ForCausalLM")(config)
    finally:
        torch.set_default_dtype(before)
    model = model.train() if phase == "train" else model.eval()

    def call(compiled: Any, rows: int) -> Step:
        generator = torch.Generator(device).manual_seed(rows)

        def tokens(*shape: int) -> "torch.Tensor":
            return torch.randint(0, config.vocab_size, shape, device=device, generator=generator)

        if phase == "train":
            ids = tokens(1, rows)
            return Step(_trained(model, lambda: compiled(input_ids=ids, labels=ids, use_cache=False).loss), ids)
        if phase == "prefill":
            ids = tokens(1, rows)
            return Step(lambda: compiled(input_ids=ids, use_cache=False, logits_to_keep=1).logits, ids)
        cache = transformers.StaticCache(config=config, max_cache_len=cache_length)
        model(input_ids=tokens(rows, _PROMPT), past_key_values=cache)
        ids, position, steps = tokens(rows, 1), torch.full((1, 1), _PROMPT, device=device), count(1)

        def restart() -> None:
            for layer in cache.layers:
                layer.cumulative_length.fill_(_PROMPT)
                if hasattr(layer, "cumulative_length_int"):
                    layer.cumulative_length_int = _PROMPT

        def run() -> "torch.Tensor":
            if next(steps) % (cache_length // 2) == 0:
                restart()  # a full cache would be written behind its end
            logits: torch.Tensor = compiled(input_ids=ids, past_key_values=cache, position_ids=position).logits
            return logits

        return Step(run, ids, restart)

    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    return Client(model, call, counts=phase == "decode" and slides)
