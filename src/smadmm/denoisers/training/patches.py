"""Training and validation images, and random patches of them."""

import numpy as np
import torch
from torch import Tensor

from smadmm.io.images import Image


def hold_out(images: list[Image], count: int, seed: int) -> tuple[list[Image], list[Image]]:
    """Training and validation images: about `count` images of whole groups (patients, files) are held out.

    Where every group has more images, `count` of the smallest group are, and its others are left out.
    """
    sizes: dict[str, int] = {}
    for image in images:
        sizes[image.group] = sizes.get(image.group, 0) + 1
    groups = sorted(sizes)
    held: set[str] = set()
    for index in np.random.default_rng(seed).permutation(len(groups)):
        group = groups[index]
        if sum(sizes[g] for g in held) + sizes[group] <= count:
            held.add(group)
    if not held:
        smallest = min(groups, key=lambda group: sizes[group])
        several = [i for i in images if i.group == smallest]
        return [i for i in images if i.group != smallest], several[:: -(-len(several) // count)]
    return [i for i in images if i.group not in held], [i for i in images if i.group in held]


def random_patches(images: list[Image], count: int, size: int, rng: np.random.Generator) -> Tensor:
    """count x 1 x size x size patches at random places, flipped and turned; all groups equally likely."""
    groups: dict[str, list[Tensor]] = {}
    for image in images:
        groups.setdefault(image.group, []).append(image.pixels)
    members = list(groups.values())
    patches = []
    for _ in range(count):
        group = members[rng.integers(len(members))]
        pixels = group[rng.integers(len(group))]
        row, column = (int(rng.integers(n - size + 1)) for n in pixels.shape)
        patch = torch.rot90(pixels[row : row + size, column : column + size], int(rng.integers(4)))
        patches.append(patch.flip(1) if rng.random() < 0.5 else patch)
    return torch.stack(patches)[:, None].contiguous()
