"""`python -m kstep` is the command `kstep`."""

from kstep.cli import main

main()
