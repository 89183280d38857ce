"""`python -m taugrad`: the same as the `taugrad` command."""

import sys

from taugrad.cli import main

sys.exit(main())
