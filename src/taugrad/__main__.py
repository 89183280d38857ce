"""`python -m taugrad`: the same as the `taugrad` command."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, whose modules may hide standard ones; commands check that first

from taugrad.cli import main

sys.exit(main())
