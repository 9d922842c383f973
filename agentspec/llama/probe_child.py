"""The process that `probe` starts: loads a model, decodes 1, 8 and 32 tokens, and exits with 0.

It may be killed by a signal; that is what it is for. An error of the tree ends it with REPORTED: the same
load in the parent will raise it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import numpy as np

from agentspec.config import RuntimeOptions
from agentspec.errors import AgentSpecError
from agentspec.llama.context import Context
from agentspec.llama.gguf import read_gguf
from agentspec.llama.model import Model
from agentspec.llama.probe import REPORTED
from agentspec.types import Span

__all__ = ["main"]

_BATCHES = (1, 8, 32)  # kernels differ by the number of tokens in a pass


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    path, options_json, mode = arguments
    _no_core_dumps()
    options = RuntimeOptions.model_validate_json(options_json).model_copy(update={"n_batch": max(_BATCHES)})
    try:
        with Model.load_unprobed(read_gguf(path), options, extra_bufts=mode == "repack") as model:
            context = Context(model, 256, options=options, n_outputs=1)
            for count in _BATCHES:
                context.truncate(0, 0)
                tokens = [token % model.vocab.n_tokens for token in range(count)]
                (row,) = context.decode([Span(0, tokens, [count - 1])])
                if not np.isfinite(row).all():
                    os.abort()  # a build that computes nonsense is as bad as one that dies
    except AgentSpecError as error:
        print(error, file=sys.stderr)
        return REPORTED
    return 0


def _no_core_dumps() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
