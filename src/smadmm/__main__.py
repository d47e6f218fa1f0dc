"""`python -m smadmm`: the command line, where the script `smadmm` is not on the path."""

from smadmm.cli import main

if __name__ == "__main__":
    main()
