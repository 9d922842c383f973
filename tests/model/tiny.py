"""How the tiny models are run: such that their arithmetic can be held to a fresh computation."""

from agentspec.config import RuntimeOptions

__all__ = ["OPTIONS"]

OPTIONS = RuntimeOptions(
    n_gpu_layers=0,
    n_threads=1,
    n_batch=256,
    flash_attn=False,
    type_k="f32",
    type_v="f32",
    use_extra_bufts=False,
)
