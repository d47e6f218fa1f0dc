"""Bring your own: operators, proxes, denoisers and networks of other libraries, one line each, none a dependency."""

from smadmm.interop.deepinv import as_physics, from_deepinv
from smadmm.interop.modules import ModuleLoss
from smadmm.interop.operators import from_astra, from_functions, from_scipy
from smadmm.interop.proxes import from_function, from_pyproximal
from smadmm.interop.rtk import cone, from_rtk

__all__ = [
    "ModuleLoss",
    "as_physics",
    "cone",
    "from_astra",
    "from_deepinv",
    "from_function",
    "from_functions",
    "from_pyproximal",
    "from_rtk",
    "from_scipy",
]
