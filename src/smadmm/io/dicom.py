"""CT slices from DICOM files: a file or the slices of a series, in Hounsfield units, in the order of the body.

HU = slope * stored value + intercept. The position of a slice is its ImagePositionPatient along the normal of the image
plane (the cross product of the two directions of ImageOrientationPatient). A folder with several series gives its
largest one. Pixels are read slice by slice.

Derived files say nothing about the patient unless asked to: what tells how the image was made is kept, the rest left
out, and numbers of study and series are replaced by others made from them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.io.scan import Fan, Found, Frames, ScanError, likely_cure, readable

FOCAL_ANGLE = (0x7031, 0x1001)  # of the source, in DICOM-CT-PD
PREAMBLE = 128  # bytes before the letters DICM
# what described the stored pixels of the original and would be wrong beside those of a derived image
STALE = ("PixelPaddingValue", "PixelPaddingRangeLimit", "SmallestImagePixelValue", "LargestImagePixelValue",
         "LossyImageCompressionRatio", "LossyImageCompressionMethod", "ModalityLUTSequence")  # fmt: skip


# what a derived file keeps if it is not to tell whose it is
KEPT = ("SOPClassUID", "Modality", "ImageType", "InstanceNumber", "PatientPosition", "ImageOrientationPatient",
        "ImagePositionPatient", "SliceLocation", "SliceThickness", "SpacingBetweenSlices", "PixelSpacing", "KVP",
        "ConvolutionKernel", "ReconstructionDiameter", "GantryDetectorTilt", "WindowCenter", "WindowWidth",
        "SamplesPerPixel", "PhotometricInterpretation", "PixelData")  # fmt: skip
NUMBERED = ("StudyInstanceUID", "FrameOfReferenceUID")
EMPTY = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID",
         "AccessionNumber", "ReferringPhysicianName")  # fmt: skip
IDENTIFYING = ("PatientName", "PatientID", "OtherPatientIDs", "PatientBirthName", "PatientMotherBirthName",
               "PatientBirthDate", "AccessionNumber", "PatientAddress", "PatientTelephoneNumbers")  # fmt: skip
SHORTEST = 3  # letters of a name that is recognised within a text
REMOVED = "(removed)"


def _pydicom() -> Any:
    return needs("pydicom", "imaging", "DICOM files")


def is_dicom(path: Path) -> bool:
    """Whether the file ends in .dcm or begins as DICOM files do."""
    if path.suffix.lower() == ".dcm":
        return True
    try:
        with path.open("rb") as file:
            return file.read(PREAMBLE + 4)[PREAMBLE:] == b"DICM"
    except OSError:
        return False


@dataclass(frozen=True)
class Slice:
    """One slice: its file, its frame there (0 unless the file holds several), its place in the body."""

    path: Path
    frame: int
    place: tuple[float, ...]


@dataclass(frozen=True)
class Series:
    """Slices of one size in the order of the body; spacing: of rows and columns, in mm."""

    slices: tuple[Slice, ...]
    shape: tuple[int, int]
    spacing: tuple[float, float] | None
    patient: str
    kernel: str
    notes: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()  # names and numbers of the patient

    def without_patient(self, text: str) -> str:
        """A text such as the name of a file, without the patient's names and numbers."""
        for word in self.identifiers:
            text = re.sub(re.escape(word), REMOVED, text, flags=re.IGNORECASE)
        return text

    def __len__(self) -> int:
        return len(self.slices)

    def hounsfield(self, number: int) -> NDArray[np.float32]:
        """The slice in Hounsfield units."""
        chosen = self.slices[number]
        dataset = _whole(chosen.path)
        try:
            pixels = np.asarray(dataset.pixel_array)
        except Exception as error:  # decoders raise many kinds
            raise ScanError(
                chosen.path, f"has pixels that cannot be read: {_one_line(error)}", likely_cure(chosen.path)
            ) from None
        with readable(chosen.path):
            pixels = pixels[chosen.frame] if pixels.ndim == 3 else pixels
            slope, intercept = _rescale(dataset, chosen.frame)
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused later
                return (pixels * slope + intercept).astype(np.float32)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _whole(path: Path) -> Any:
    try:
        return _pydicom().dcmread(path)
    except ImportError:
        raise
    except Exception as error:
        raise ScanError(path, f"cannot be read as DICOM: {_one_line(error)}", likely_cure(path)) from None


def _header(path: Path) -> Any:
    """The data of the file without its pixels, refused unless it is a gray image."""
    try:
        dataset = _pydicom().dcmread(path, stop_before_pixels=True)
        rows, columns = dataset.get("Rows"), dataset.get("Columns")
    except ImportError:
        raise
    except Exception as error:
        raise ScanError(path, f"cannot be read as DICOM: {_one_line(error)}", likely_cure(path)) from None
    if not rows or not columns:
        raise ScanError(path, "is a DICOM file without an image", "give one that has pixels")
    if int(dataset.get("SamplesPerPixel", 1)) != 1:
        raise ScanError(path, "is a colour image", "a CT slice has one value per pixel")
    return dataset


def _frame_group(dataset: Any, frame: int, sequence: str) -> Any:
    """The functional group of a frame of an enhanced multi-frame image, or the file's own data."""
    for groups, number in (("PerFrameFunctionalGroupsSequence", frame), ("SharedFunctionalGroupsSequence", 0)):
        found = dataset.get(groups)
        if found and len(found) > number and found[number].get(sequence):
            return found[number].get(sequence)[0]
    return dataset


def _rescale(dataset: Any, frame: int) -> tuple[float, float]:
    group = _frame_group(dataset, frame, "PixelValueTransformationSequence")
    return float(group.get("RescaleSlope", 1)), float(group.get("RescaleIntercept", 0))


def _place(dataset: Any, frame: int, path: Path) -> tuple[float, ...]:
    """What slices are sorted by: the position along the normal, else the location, else the number."""
    orientation = _frame_group(dataset, frame, "PlaneOrientationSequence").get("ImageOrientationPatient")
    position = _frame_group(dataset, frame, "PlanePositionSequence").get("ImagePositionPatient")
    if orientation is not None and position is not None and len(orientation) == 6 and len(position) == 3:
        row, column = np.array(orientation[:3], float), np.array(orientation[3:], float)
        return (float(np.cross(row, column) @ np.array(position, float)), float(frame))
    for name in ("SliceLocation", "InstanceNumber"):
        if dataset.get(name) is not None:
            return (float(dataset.get(name)), float(frame))
    return (0.0, float(frame))


def _spacing(dataset: Any) -> tuple[float, float] | None:
    found = _frame_group(dataset, 0, "PixelMeasuresSequence").get("PixelSpacing")
    return None if found is None or len(found) != 2 else (float(found[0]), float(found[1]))


def _slices(path: Path, dataset: Any) -> Iterator[Slice]:
    for frame in range(int(dataset.get("NumberOfFrames") or 1)):
        yield Slice(path, frame, _place(dataset, frame, path))


def read_series(path: Path) -> Series:
    """The series of a file, or the largest series in a folder and its subfolders."""
    with readable(path):
        return _series_of_folder(path) if path.is_dir() else _series([(path, _header(path))], ())


def _series_of_folder(path: Path) -> Series:
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and is_dicom(file)]
    groups: dict[tuple[Any, ...], list[tuple[Path, Any]]] = {}
    without_image = 0
    for file in files:
        if file.name.upper() == "DICOMDIR":
            continue
        try:
            dataset = _header(file)
        except ValueError as error:
            if "without an image" not in str(error):
                raise
            without_image += 1
            continue
        key = (str(dataset.get("SeriesInstanceUID", "")), int(dataset.Rows), int(dataset.Columns))
        groups.setdefault(key, []).append((file, dataset))
    if not groups:
        raise ValueError(f"there are no DICOM images in {path}")
    largest = max(groups.values(), key=len)
    notes: list[str] = [f"{without_image} DICOM files without an image were left out"] if without_image else []
    if len(groups) > 1:
        name = largest[0][1].get("SeriesDescription", "") or largest[0][1].get("SeriesInstanceUID", "")
        notes.append(f"{len(groups)} series found; took the largest, {str(name)!r} with {len(largest)} files")
    return _series(largest, tuple(notes))


def _series(files: list[tuple[Path, Any]], notes: tuple[str, ...]) -> Series:
    first = files[0][1]
    found = [piece for path, dataset in files for piece in _slices(path, dataset)]
    modality = str(first.get("Modality", "CT"))
    if modality != "CT":
        notes = (*notes, f"the modality is {modality}, not CT: its values are read as Hounsfield units")
    return Series(
        slices=tuple(sorted(found, key=lambda piece: (piece.place, str(piece.path)))),
        shape=(int(first.Rows), int(first.Columns)),
        spacing=_spacing(first),
        patient=str(first.get("PatientID", "") or ""),
        kernel=str(first.get("ConvolutionKernel", "") or ""),
        notes=notes,
        identifiers=_identifiers(first),
    )


def _identifiers(dataset: Any) -> tuple[str, ...]:
    """The words and numbers that tell who the patient is, longest first."""
    values = [str(dataset.get(name) or "") for name in IDENTIFYING]
    words = {word for value in values for word in [value, *re.split(r"[\^=\s,;\\\[\]'\"]+", value)]}
    return tuple(sorted((word for word in words if len(word) >= SHORTEST), key=lambda word: (-len(word), word)))


def in_folder(folder: Path) -> bool:
    """Whether a folder holds DICOM files."""
    return any(is_dicom(f) for f in folder.rglob("*") if f.is_file() and f.suffix.lower() not in (".tif", ".tiff"))


def read_projections(path: Path) -> Found:
    """Projections of a rotating source, by their instance number; angles and distances where the files tell."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and is_dicom(file)] if path.is_dir() else [path]
    headers = [(file, _header(file)) for file in files if file.name.upper() != "DICOMDIR"]
    first = headers[0][1]
    if FOCAL_ANGLE in first:
        raise ScanError(path, "holds fan-beam projections on a helix (DICOM-CT-PD)", "there is no projector for these")
    if str(first.get("Modality", "CT")) == "CT":
        raise ScanError(path, "holds CT slices, not projections", "add {simulate} VIEWS to project them")
    headers.sort(key=lambda item: int(item[1].get("InstanceNumber") or 0))
    views, angles = [], []
    for file, header in headers:
        start, turns = header.get("PositionerPrimaryAngle"), header.get("PositionerPrimaryAngleIncrement") or [0.0]
        for frame in range(int(header.get("NumberOfFrames") or 1)):
            views.append(Slice(file, frame, ()))
            angles += [] if start is None else [float(start) + float(np.atleast_1d(turns)[min(frame, len(turns) - 1)])]
    series = Series(tuple(views), (int(first.Rows), int(first.Columns)), None, "", "")
    lengths = [first.get(name) for name in ("DistanceSourceToPatient", "DistanceSourceToDetector")]
    axis, detector = (None if value is None else float(value) for value in lengths)
    pixel = first.get("ImagerPixelSpacing")
    return Found(
        Frames((len(views), *series.shape), np.float32, series.hounsfield),
        np.array(angles) if len(angles) == len(views) else None, "degrees", ("views", "slices", "detectors"),
        geometry=Fan(axis, detector, float(pixel[1]) if pixel else None, "mm") if axis or detector else None,
        notes=(f"{len(views)} DICOM projections, by their number",),
    )  # fmt: skip


def derived(
    series: Series, number: int, hounsfield: NDArray[np.float32], description: str, keep_patient: bool = False
) -> bytes:
    """A DICOM file with these pixels (whole Hounsfield units) and the geometry of the original.

    It is marked DERIVED and has a series number of its own made from the source's and the text. `keep_patient`: it also
    has what the original says of patient and study, and names its source.
    """
    pydicom = _pydicom()
    source = _whole(series.slices[number].path)
    if int(source.get("NumberOfFrames") or 1) > 1:
        raise ValueError(f"{series.slices[number].path} holds several frames; a derived DICOM file is made of one")
    result = _kept(pydicom, source) if keep_patient else _anonymous(pydicom, source)
    uid = pydicom.uid.generate_uid
    result.SOPInstanceUID = uid(entropy_srcs=[str(source.SOPInstanceUID), description])
    result.SeriesInstanceUID = uid(entropy_srcs=[str(source.get("SeriesInstanceUID", "")), description])
    result.ImageType = ["DERIVED", "SECONDARY", *list(source.get("ImageType") or [])[2:]]
    result.DerivationDescription, result.SeriesDescription = description[:1024], description[:64]
    result.RescaleSlope, result.RescaleIntercept, result.RescaleType = 1, 0, "HU"
    result.Rows, result.Columns = hounsfield.shape
    result.BitsAllocated, result.BitsStored, result.HighBit, result.PixelRepresentation = 16, 16, 15, 1
    result.PixelData = np.clip(np.rint(hounsfield), -32768, 32767).astype("<i2").tobytes()
    result["PixelData"].VR = "OW"
    result.file_meta = pydicom.dataset.FileMetaDataset()
    result.file_meta.MediaStorageSOPClassUID = source.SOPClassUID
    result.file_meta.MediaStorageSOPInstanceUID = result.SOPInstanceUID
    result.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    buffer = io.BytesIO()
    result.save_as(buffer, enforce_file_format=True, implicit_vr=False, little_endian=True)
    return buffer.getvalue()


def _kept(pydicom: Any, source: Any) -> Any:
    """What the original says, but for what described its pixels; it names its source."""
    result = source.copy()
    result.remove_private_tags()
    for name in STALE:
        if name in result:
            delattr(result, name)
    reference = pydicom.Dataset()
    reference.ReferencedSOPClassUID, reference.ReferencedSOPInstanceUID = source.SOPClassUID, source.SOPInstanceUID
    result.SourceImageSequence = pydicom.Sequence([reference])
    return result


def _anonymous(pydicom: Any, source: Any) -> Any:
    """How the image was made, not of whom."""
    result = pydicom.Dataset()
    for name in KEPT:
        if name in source:
            result[name] = source[name]
    for name in EMPTY:
        setattr(result, name, "")
    for name in NUMBERED:
        result_uid = pydicom.uid.generate_uid(entropy_srcs=[name, str(source.get(name, ""))])
        setattr(result, name, result_uid)
    result.PatientIdentityRemoved, result.DeidentificationMethod = "YES", "smadmm: only technical attributes are kept"
    return result
