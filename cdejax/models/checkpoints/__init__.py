"""Architectures in Hugging Face format: `config.json` and names of the weights."""
