"""Fan-beam tomography."""

from smadmm.operators.fan.beam import FanBeam

__all__ = ["FanBeam"]
