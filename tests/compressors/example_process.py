"""One worker of the example: `python example_process.py RANK FOLDER CHAIN`."""

import argparse
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ddp_script.py"

if __name__ == "__main__":
    rank, folder, chain = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    options = argparse.Namespace(workers=2, epochs=10, compressor=chain)
    runpy.run_path(str(EXAMPLE), run_name="example")["train"](rank, options, f"{folder}/rendezvous")
