"""Sums over tokens, by site: exact whatever the batches and the number of ranks."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


class SiteSums:
    """One vector of sums a site, as long as the site needs, in float64 where the device has it."""

    def __init__(self) -> None:
        self._by_site: dict[int, Tensor] = {}

    def add(self, site: int, sums: Tensor) -> None:
        """Adds `sums` [k] to those of `site`; stays on the device, so that no site waits for it."""
        self._by_site[site] = self._by_site[site] + sums if site in self._by_site else sums

    def reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Adds up the ranks, all sites in one exchange.

        Args:
            sum_over_ranks: maps a float64 tensor on the CPU to its sum over all of them.
        """
        if not self._by_site:
            return
        together = sum_over_ranks(torch.cat([sums for _, sums in self.items()]))
        lengths = [len(sums) for _, sums in self.items()]
        self._by_site = dict(zip(sorted(self._by_site), together.split(lengths), strict=True))

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """(site, sums [k] in float64 on the CPU), in the order of the sites."""
        return ((site, sums.cpu().double()) for site, sums in sorted(self._by_site.items()))


def in_double(values: Tensor) -> Tensor:
    """In float64; mps has none."""
    return values if values.device.type == "mps" else values.double()


def counted(by_token: Tensor, tokens: Tensor | None) -> Tensor:
    """The rows of `by_token` [B * T, ...] that `tokens` (int64 [N]) names; all of them for None."""
    return by_token if tokens is None else by_token.index_select(0, tokens)
