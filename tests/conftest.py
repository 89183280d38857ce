"""`--require-gpu`: the GPU tests must not pass by being skipped."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail where there is no CUDA device")


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--require-gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.exit("no CUDA device here: the GPU tests cannot run", returncode=1)
