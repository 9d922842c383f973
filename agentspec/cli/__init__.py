"""The `agentspec` command, one file per subcommand. Only arguments and printing happen here."""
