"""Kernels in Triton's language, each a torch operation; triton.py makes a layer of them.

tests/test_triton_layer.py runs them in Triton's interpreter against float64, and compiles them for
compute capability 9.0.
"""
