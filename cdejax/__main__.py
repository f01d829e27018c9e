"""`python -m cdejax` is `cdejax`."""

from cdejax.cli.main import main

if __name__ == "__main__":
    main()
