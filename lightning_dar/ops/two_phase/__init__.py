"""The `two_phase` backend: one source is read about n/C + C/2 times where stacking reads it n times.

    forward.py     plain tensor functions: logits, phase one of a chunk of rows, what a row adds to it
    backward.py    plain tensor functions: the gradients of a row, of a source and of the queries
    workspace.py   what one forward pass holds
    gradients.py   what one backward pass holds, and in which order it calls `backward.py`
    backend.py     the autograd functions and the `Backend`

M = B*T tokens, C consecutive rows of the queries make a chunk; docs/depth_read.md has the counting.
"""
