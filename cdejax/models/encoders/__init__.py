"""One module per encoder architecture; `cdejax.models` has them all."""
