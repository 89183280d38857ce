"""The passes and codecs on CUDA devices: `.cu` sources that can be read alone, and what launches them."""
