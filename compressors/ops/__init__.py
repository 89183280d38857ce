"""What differs by device: passes over numbers, on the CPU (numba) and on the GPU (CUDA sources)."""
