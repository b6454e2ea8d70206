"""`python -m fedbench` is the `fedbench` command."""

from fedbench.cli import main

if __name__ == "__main__":
    main()
