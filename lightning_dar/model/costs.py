"""What a sublayer says of its costs, for `plan`: numbers per token, in bytes where they are of memory."""

from dataclasses import dataclass

import torch

FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The dtypes in which operations save tensors for the backward.

    Attributes:
        compute: of what enters matrix products.
        autocast: whether PyTorch casts at each operation. Norms then run in fp32, and every product keeps a copy of
            its own of what enters it.
        composite_norm: whether a norm is made of several operations, as where PyTorch has no kernel of its own for it
            (on the CPU, and where the gain has another dtype than the input).
    """

    compute: torch.dtype
    autocast: bool
    composite_norm: bool = False

    def norm(self, width: int, groups: int, x: torch.dtype) -> int:
        """Bytes that an RMSNorm of `width` numbers in `groups` saves, its input included."""
        kept = FP32 if self.composite_norm or self.autocast else x.itemsize
        return width * kept + groups * FP32 + (width * FP32 if self.composite_norm else 0)

    def product_inputs(self, width: int, products: int, distinct: int = 1) -> int:
        """Bytes of `width` numbers that enter `products` matrix products, `distinct` of them different."""
        return width * self.compute.itemsize * (products if self.autocast else distinct)
