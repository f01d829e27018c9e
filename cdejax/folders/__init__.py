"""Model folders in Hugging Face format: finding, reading, and checks of their keys."""
