"""Fan-beam tomography."""

from smadmm.operators.fan.beam import FanBeam, FanGeometry

__all__ = ["FanBeam", "FanGeometry"]
