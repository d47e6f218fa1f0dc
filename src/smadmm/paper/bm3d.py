"""BM3D as a denoiser, for comparison: not learned, not a gradient step, no Lipschitz guarantee."""

import torch
from torch import Tensor, nn

from smadmm.extras import needs


class BM3D(nn.Module):
    """BM3D for noise of level sigma on images B x C x H x W, channel by channel; needs the package bm3d."""

    def __init__(self, sigma: float = 5 / 255) -> None:
        super().__init__()
        self._bm3d, self.sigma = needs("bm3d", None, "BM3D denoisers").bm3d, sigma

    @torch.no_grad()
    def forward(self, x: Tensor, sigma: float | None = None) -> Tensor:
        """The denoised images."""
        level = self.sigma if sigma is None else float(sigma)
        planes = x.reshape(-1, *x.shape[-2:]).double().cpu().numpy()
        done = [torch.from_numpy(self._bm3d(plane, level)) for plane in planes]
        return torch.stack(done).reshape(x.shape).to(x)
