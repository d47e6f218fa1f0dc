"""Every operator: the dot test, its matrix, its norm with a bound that holds; combinations and refusals."""

import numpy as np
import pytest
import scipy.sparse
import torch

from smadmm.operators import (
    CodedDiffraction,
    EdgeDifferences,
    FiniteDifferences,
    Identity,
    Matrix,
    Operator,
    Ptychography,
    Radon,
    Slot,
    Stack,
    Sum,
    circle_masks,
)

EDGES = [(0, 1), (1, 2), (0, 4), (3, 3)]


def random(shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class RealToComplex(Operator):
    """A real-linear operator: a real image to the unitary FFT of the masked image."""

    dtype = torch.float64

    def __init__(self, mask):
        self.mask, self.in_shape, self.out_shape = mask, tuple(mask.shape), tuple(mask.shape)

    def forward(self, x):
        return torch.fft.fft2(self.mask * x, norm="ortho")

    def adjoint(self, y):
        return (self.mask.conj() * torch.fft.ifft2(y, norm="ortho")).real


M = random((4, 5), 0)
C = random((4, 5), 1, torch.complex128)
OPERATORS = {
    "identity": Identity((5,)),
    "scaled": -2.5 * Matrix(M),
    "dense": Matrix(M),
    "complex": Matrix(C),
    "sparse": Matrix((M * (M > 0)).to_sparse()),
    "scipy": Matrix(scipy.sparse.random(7, 5, 0.4, random_state=0, format="coo")),
    "numpy": Matrix(np.arange(20.0).reshape(4, 5)),
    "batched": Matrix(M, batch=(3,)),
    "batched sparse": Matrix((M * (M > 0)).to_sparse(), batch=(2, 3)),
    "sum": Matrix(M) + 2 * Matrix(M.flip(0)),
    "difference": Matrix(M) - Matrix(M.flip(0)),
    "composition": Matrix(M.T) @ Matrix(M),
    "stack": Stack([EdgeDifferences(EDGES, 5), Identity(), Matrix(M)]),
    "edges": EdgeDifferences(EDGES, 5),
    "ptychography": Ptychography(random((4, 3), 4, torch.complex128), [(0, 0), (1, 2), (2, 1)], (6, 6)),
    "ptychography between pixels": Ptychography(random((4, 3), 4, torch.complex128), [(0.3, 0), (1, 2.75)]),
    "weighted edges": EdgeDifferences(EDGES, 5, torch.arange(1.0, 5), torch.tensor([1.0, -1, 1, -1])),
    "finite differences": FiniteDifferences((4, 6)),
    "differences of one axis": FiniteDifferences((3, 4, 2), axes=(1,)),
    "slot": Slot(5, 2, 9),
    "radon": Radon((4, 6), [0.1, 1.3, 2.5], detectors=7),
    "diffraction of real images": CodedDiffraction(circle_masks(3, (4, 6)), torch.float64),
    "diffraction of complex images": CodedDiffraction(circle_masks(3, (4, 6)), torch.complex128),
    "diffraction, any masks": CodedDiffraction(random((20, 3, 5), 1, torch.complex128), torch.float64),
    "adjoint": Matrix(M).T,
    "real to complex": RealToComplex(torch.polar(torch.ones(4, 4).double(), random((4, 4), 2))),
}


def inner(u, v):
    return float((u.conj() * v).real.sum())


@pytest.mark.parametrize("name", OPERATORS)
def test_dot_test_and_shapes(name):
    A = OPERATORS[name]
    kind = A.dtype or torch.float64
    x = random(A.in_shape, 3, kind)
    image = A(x)
    assert tuple(image.shape) == A.out_shape
    y = random(A.out_shape, 4, image.dtype)
    back = A.T(y)
    assert tuple(back.shape) == A.in_shape and back.dtype == x.dtype
    assert inner(image, y) == pytest.approx(inner(x, back), rel=1e-12, abs=1e-12)
    assert torch.equal(A.T.T(x), image)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "real to complex"])
def test_norm_and_gram(name):
    A = OPERATORS[name]
    matrix = A.dense()
    true = float(torch.linalg.matrix_norm(matrix, ord=2))
    norm = A.norm()
    assert norm - 1e-9 <= true <= norm.upper + 1e-9
    assert norm == pytest.approx(true, rel=1e-3)
    if A.gram is not None:
        eye = torch.eye(matrix.shape[1], dtype=matrix.dtype)
        torch.testing.assert_close(matrix.mH @ matrix, A.gram * eye)


def test_power_iteration_bound_holds_where_it_is_hard():
    """Many nearly equal singular values: power iteration stays below, the bound stays above."""
    values = torch.linspace(0.9, 1.0, 3000, dtype=torch.float64)
    norm = Matrix(torch.diag(values).to_sparse()).norm(iterations=20)
    assert norm < 1.0 < norm.upper < 1.5


def test_large_sparse_norm_equals_the_dense_one():
    matrix = scipy.sparse.random(900, 700, 0.01, random_state=1)
    true = np.linalg.norm(matrix.toarray(), 2)
    assert Matrix(matrix).norm(iterations=300) == pytest.approx(true, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Matrix(M) @ Matrix(M), r"\(5,\) and \(4,\)"),
        (lambda: Sum((Matrix(M), Identity((3,)))), r"\(5,\) and \(3,\)"),
        (lambda: Stack([Identity()]), "known input shape"),
        (lambda: EdgeDifferences([(0, 9)], 5), "edge end 9 is outside 0..4"),
        (lambda: EdgeDifferences([(0, 5)], 5), "edge end 5 is outside 0..4"),
        (lambda: Radon(np.arange(5) / 9, 64), "size is a number of pixels or .height, width., got 5 numbers"),
        (lambda: EdgeDifferences(EDGES, 5, weights=torch.ones(3)), "4 edges"),
        (lambda: Slot(5, 6, 9), "outside a vector of size 9"),
        (lambda: Matrix(torch.ones(3)), "two axes"),
        (lambda: (2 * Identity() + Identity()).norm(), "needs its input shape"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_finite_differences_of_a_ramp():
    ramp = torch.arange(12.0).reshape(3, 4)
    down, right = FiniteDifferences((3, 4))(ramp)
    assert torch.equal(down[:2], torch.full((2, 4), 4.0)) and torch.equal(down[2], torch.zeros(4))
    assert torch.equal(right[:, :3], torch.ones(3, 3)) and torch.equal(right[:, 3], torch.zeros(3))
