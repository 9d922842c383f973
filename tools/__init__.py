"""What `make` runs: set-up of a fresh machine. Standard library only, and no part of the package."""
