// Tensor maps, through the driver's function: found at run time, so that nothing links against libcuda.
#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/error.h"

namespace lfm2 {

namespace {

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
  expect(result == cudaDriverEntryPointSuccess && function != nullptr, "the GPU's driver makes no tensor maps");
  return reinterpret_cast<Encode>(function);
}

CUtensorMapDataType map_type(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kI32:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_INT32;
}

CUtensorMap encode(cuuint32_t rank, const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns,
                   int box_rows, int box_columns) {
  static const Encode function = find_encode();
  expect(static_cast<size_t>(box_columns) * size_bytes(dtype) == 128 && box_rows > 0 && box_rows <= 256,
         "tensor map: box");
  const auto row_bytes = static_cast<cuuint64_t>(columns) * size_bytes(dtype);
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                             static_cast<cuuint64_t>(matrices)};
  const cuuint64_t strides[] = {row_bytes, row_bytes * static_cast<cuuint64_t>(rows)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map{};
  const CUresult result = function(&map, map_type(dtype), rank, const_cast<void*>(data), dims, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  expect(result == CUDA_SUCCESS, "tensor map: the driver refuses this matrix");
  return map;
}

}  // namespace

CUtensorMap matrix_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows, int box_columns) {
  return encode(2, data, dtype, 1, rows, columns, box_rows, box_columns);
}

CUtensorMap matrices_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                         int box_columns) {
  return encode(3, data, dtype, matrices, rows, columns, box_rows, box_columns);
}

}  // namespace lfm2
