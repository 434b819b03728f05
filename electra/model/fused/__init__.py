"""Layers written out for autograd: what the definitions compute, faster on a CPU.

On a CPU much of a plain layer's time goes into operations between the matrix products: copies,
casts, masks, one pass over memory each. Here forward and backward of attention and feed-forward are
written out with as few passes as torch's operations allow: scales are applied inside the products,
residuals in the accumulators of dropout and of the backward products, dropout multiplies by a slice
of a mask drawn once per pass, and gradients of query, key and value are written where the next
product reads them. docs/PERFORMANCE.md reports the gain. Each body has its own file; products.py
holds what they share.

The classes have the parameters of the definitions under the same names. Losses agree with them to
1e-6 relative in float32 and gradients to 1e-5 of their largest element; in bfloat16 both are as far
from float32 as each other. Sub-modules are not called, only their parameters are read: forward
hooks on them never fire, and a module that replaces one (an adapter) has no effect. If you need
either, use the definition.

Shape suffixes: B rows of the batch, L positions, M = B * L, H hidden size, N heads, D size of a
head, Z = B * N heads, times the blocks where attention is in blocks, Q queries and X keys of one of
them, J = 3H (query, key and value), F feed-forward size, G = 2F; 3 stands for query, key and value.
R rows of a table of distances, of which there are T = 2 L - 1.
In functions of any matrix: I and O input and output size of a linear map, I, J, K rows, inner and
columns of a product. A leading d: the gradient of the loss with respect to the tensor named after
it.
"""
