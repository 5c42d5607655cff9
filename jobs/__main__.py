"""``python -m penstock.jobs``: the same as the console script ``penstock``."""

from .cli import main

if __name__ == "__main__":
    main()
