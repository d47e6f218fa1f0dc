"""The potential g(x) = 1/2 |x - N(x)|^2 with N a DnCNN, and the same on pixel-unshuffled images.

N(x) = x - R(x), R a chain of 3 x 3 convolutions with biases and Softplus between them (differentiable, as
the theory asks). Then g = 1/2 |R|^2 and grad g(x) = R'(x)^T R(x) is one pass forward and one backward,
written out below so that no graph is built at inference and only one differentiation is needed in training.
With unshuffle = u the image is first rearranged into u^2 channels of 1/u the width and height: the chain
works on 1/u^2 of the pixels. An image whose sides u does not divide is extended by zeros, an isometry:
|Hess g| cannot grow.
"""

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

FAR = 40.0  # exp(-40) is below rounding: Softplus is 0 or linear beyond; denormal numbers would cost a factor 2


class DnCNN(nn.Module):
    """g(x) = 1/2 |R(x)|^2, R = `layers` convolutions, `channels` wide, with Softplus; the paper: 17 x 64.

    At the start R(x) = scale S(x / scale), S blind to constants: Softplus bends at differences about `scale`.

    >>> g = DnCNN(layers=3, channels=8)
    >>> g(torch.rand(2, 1, 16, 16)).shape
    torch.Size([2])
    """

    def __init__(
        self, layers: int = 17, channels: int = 64, unshuffle: int = 1, scale: float = 0.03, seed: int = 0
    ) -> None:
        super().__init__()
        self.layers, self.channels, self.alignment = layers, channels, unshuffle
        self.radius = (2 * layers + 1) * unshuffle - 1
        ends = unshuffle**2
        widths = [ends] + [channels] * (layers - 1) + [ends]
        generator = torch.Generator().manual_seed(seed)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in itertools.pairwise(widths):
            weight = torch.randn(outputs, inputs, 3, 3, generator=generator) * math.sqrt(2 / (9 * inputs))
            self.weights.append(nn.Parameter(weight.contiguous(memory_format=torch.channels_last)))
            self.biases.append(nn.Parameter(torch.zeros(outputs)))
        with torch.no_grad():
            first = self.weights[0]
            first.sub_(first.mean((1, 2, 3), keepdim=True)).div_(scale)
            self.weights[-1].mul_(scale)

    def _unshuffled(self, x: Tensor) -> Tensor:
        u = self.alignment  # channels last from the first convolution on, as the weights are
        return F.pixel_unshuffle(F.pad(x, (0, -x.shape[-1] % u, 0, -x.shape[-2] % u)), u)

    def _residual(self, h: Tensor) -> tuple[Tensor, list[Tensor]]:
        """R on unshuffled images, and the derivative of every Softplus."""
        slopes = []
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            a = F.conv2d(h, weight, bias, padding=1).clamp(min=-FAR)
            slopes.append(torch.sigmoid(a))
            h = F.softplus(a, threshold=FAR)
        return F.conv2d(h, self.weights[-1], self.biases[-1], padding=1), slopes

    def forward(self, x: Tensor) -> Tensor:
        """g of every image of a batch N x 1 x H x W."""
        return self._residual(self._unshuffled(x))[0].square().sum((1, 2, 3)) / 2

    def gradient(self, x: Tensor) -> Tensor:
        """grad g of every image of a batch N x 1 x H x W."""
        u, slopes = self._residual(self._unshuffled(x))
        for weight, slope in zip(reversed(self.weights[1:]), reversed(slopes), strict=True):
            u = F.conv_transpose2d(u, weight, padding=1) * slope
        u = F.conv_transpose2d(u, self.weights[0], padding=1)
        return F.pixel_shuffle(u, self.alignment)[..., : x.shape[-2], : x.shape[-1]]

    @torch.no_grad()
    def scale_(self, gamma: float) -> None:
        """g := gamma g, by the last layer."""
        self.weights[-1].mul_(math.sqrt(gamma))
        self.biases[-1].mul_(math.sqrt(gamma))
