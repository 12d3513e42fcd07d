"""The `convert` command: between checkpoints, residual strategies and Hugging Face folders."""
