"""Architectures in Hugging Face format: `config.json` and tensor names."""
