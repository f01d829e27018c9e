"""A whole recipe: its stages in order, its variants, its figures."""
