"""Images from measurements: whole jobs, from a file to a folder with the image, figures and a report."""

from smadmm.imaging.findings import Finding
from smadmm.imaging.inspection import Inspection, inspect
from smadmm.imaging.trial import Trust

__all__ = ["Finding", "Inspection", "Trust", "inspect"]
