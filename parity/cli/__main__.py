import sys

from lockstep.parity.cli import main

if __name__ == "__main__":
    sys.exit(main())
