"""`python -m cdejax` is `cdejax`."""

from cdejax.cli import main

if __name__ == "__main__":
    main()
