"""A matrix product as cuBLASLt is told of it: column-major matrices, so that D.T = B @ A.T is computed."""

from dataclasses import dataclass

from tilescout.spaces.cublaslt.abi import COMPUTE_32F, DataType, Epilogue
from tilescout.spaces.gemm import GemmProblem

DATA_TYPES = {"bf16": DataType.BF16, "fp16": DataType.FP16, "e4m3": DataType.E4M3, "fp32": DataType.FP32}


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix in memory.

    Attributes
    ----------
    dtype
        Its element type.
    rows, columns
        Its shape in memory.
    transposed
        Whether the product takes its transpose.
    """

    dtype: DataType
    rows: int
    columns: int
    transposed: bool = False

    @property
    def leading(self) -> int:
        """Elements from one column to the next: they lie one after the other."""
        return self.rows

    @property
    def stride(self) -> int:
        """Elements from one matrix of a batch to the next."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Product:
    """The product ``left @ right`` with its epilogue.

    Attributes
    ----------
    left, right, result
        B, A and D of the problem: its rows are the library's columns.
    batch
        How many there are.
    scaled
        Whether the operands have a type that comes with scales in device memory: alpha is then that of A.
    device_alpha
        Whether alpha is a number in device memory.
    epilogue
        The operations that the library fuses to the product, or-ed.
    fast
        Whether sums of 8-bit products may be kept in fewer bits.
    """

    left: Matrix
    right: Matrix
    result: Matrix
    batch: int
    scaled: bool
    device_alpha: bool
    epilogue: int
    fast: bool

    @classmethod
    def of(cls, problem: GemmProblem, fast: bool) -> "Product":
        """The product of a problem."""

        def operand(rows: int, contiguous: str) -> tuple[int, int]:
            return (problem.k, rows) if contiguous == "k" else (rows, problem.k)

        dtype = DATA_TYPES[problem.dtype]
        scaled = dtype is DataType.E4M3
        epilogue = (Epilogue.RELU if problem.activation == "relu" else 0) | (Epilogue.BIAS if problem.bias else 0)
        return cls(
            left=Matrix(dtype, *operand(problem.n, problem.layout[1]), transposed=problem.layout[1] == "k"),
            right=Matrix(dtype, *operand(problem.m, problem.layout[0]), transposed=problem.layout[0] == "m"),
            result=Matrix(DATA_TYPES[problem.out], problem.n, problem.m),
            batch=problem.batch,
            scaled=scaled,
            device_alpha=problem.alpha and not scaled,
            epilogue=epilogue or Epilogue.NONE,
            fast=fast,
        )

    @property
    def types(self) -> tuple[int, ...]:
        """The types that `cublasLtMatmulAlgoGetIds` goes by: of sums, factors, and of A, B, C and D."""
        result = self.result.dtype
        return (COMPUTE_32F, DataType.FP32, self.left.dtype, self.right.dtype, result, result)
