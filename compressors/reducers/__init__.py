"""How a bucket's gradients become the same sum on every worker, with a class for each way.

`AllReduce` sends whole gradients, `CompressedReducer` messages of compressed ones, `CollectiveReducer` those
that have a fixed size; `BroughtExchange` what a method brings.
"""
