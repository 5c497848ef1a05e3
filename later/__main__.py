"""The program of `python -m later`."""

from later.cli import main

if __name__ == "__main__":
    main()
