"""A strategy that draws random numbers in training: only a run that takes its random state up again repeats them."""

import torch
from torch.nn import functional as F

from lightning_dar import Residual, register_residual


@register_residual("noisy")
class Noisy(Residual):
    def __init__(self, shape):
        super().__init__(shape)
        self.mix = torch.nn.Parameter(torch.empty(shape.num_sites))

    def reset_parameters(self):
        torch.nn.init.constant_(self.mix, 0.5)

    def start(self, embeddings):
        return embeddings, embeddings

    def read(self, state, site):
        stream, embeddings = state
        return stream + self.mix[site] * F.dropout(embeddings, 0.2, self.training)

    def write(self, state, y, site):
        stream, embeddings = state
        return stream + y, embeddings

    def finish(self, state):
        return state[0]
