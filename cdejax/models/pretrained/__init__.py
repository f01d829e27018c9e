"""Models from Hugging Face folders, and back."""
