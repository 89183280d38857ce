"""A small disk that can be full: a tmpfs over a folder. Needs root."""

import subprocess
from contextlib import suppress
from pathlib import Path


class SmallDisk:
    """One, mounted at a folder; what lay there comes back when it is closed."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        """Mounts it; raises subprocess.CalledProcessError where that is not allowed."""
        self._folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "soak", str(folder)]
        subprocess.run(mount, check=True, capture_output=True, text=True)

    def fill(self) -> None:
        """Leaves no byte."""
        for piece in (2**20, 1):
            with suppress(OSError), (self._folder / "filling").open("ab", buffering=0) as file:
                while file.write(bytes(piece)) == piece:
                    pass

    def empty(self) -> None:
        """Takes away what filled it."""
        (self._folder / "filling").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts it."""
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
