"""One module per encoder architecture; `cdejax.models` exports all of them."""
