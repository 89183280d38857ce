"""What people train with: Lightning, Accelerate, Transformers. Each module is imported by those who use it.

All of them do three things: they call `compress_gradients` once the library has wrapped the model, keep each
rank's state in a file of its own beside the library's checkpoint (`rank_files`), and give the library's log
what was sent (`metrics`). For Fabric, Ray Train and torchrun, these three are lines of the user's own loop.
"""
