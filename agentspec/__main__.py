"""`python -m agentspec` is the `agentspec` command."""

from __future__ import annotations

from agentspec.cli.main import main

if __name__ == "__main__":
    main()
