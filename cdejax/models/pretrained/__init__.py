"""Models from Hugging Face folders, and their configurations and weights back."""
