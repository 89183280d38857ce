"""Adapters for Lightning, Accelerate and Transformers; a module is imported only by its users.

All of them do three things: call `compress_gradients` once the library has wrapped the model, save one file a
rank beside the library's checkpoint (`rank_files`), and log what was sent (`metrics`). For Fabric, Ray Train
and torchrun, these are three lines of the training loop.
"""
