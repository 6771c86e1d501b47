// Makes tensor maps with the driver's function. It is looked up at run time, so that nothing links against libcuda.
#include "kernels/cuda/common/tensor_map.h"

#include <cudaTypedefs.h>

#include "base/error.h"
#include "kernels/cuda/common/cuda_check.h"

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

struct Shape {
  cuuint32_t rank;
  cuuint64_t dims[4], strides[3];  // strides in bytes, for all dimensions but the first
  cuuint32_t box[4];
};

CUtensorMap encode(const void* data, DType dtype, const Shape& shape) {
  static const Encode function = find_encode();
  expect(shape.box[0] * size_bytes(dtype) == 128 && shape.box[1] > 0 && shape.box[1] <= 256, "tensor map: box");
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      function(&map, map_type(dtype), shape.rank, const_cast<void*>(data), shape.dims, shape.strides, shape.box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  expect(result == CUDA_SUCCESS, "tensor map: the driver refuses this matrix");
  return map;
}

CUtensorMap encode(cuuint32_t rank, const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns,
                   int box_rows, int box_columns) {
  const auto row_bytes = static_cast<cuuint64_t>(columns) * size_bytes(dtype);
  return encode(data, dtype,
                {rank,
                 {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(matrices)},
                 {row_bytes, row_bytes * static_cast<cuuint64_t>(rows)},
                 {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows), 1}});
}

}  // namespace

CUtensorMap matrix_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows, int box_columns) {
  return encode(2, data, dtype, 1, rows, columns, box_rows, box_columns);
}

CUtensorMap matrices_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                         int box_columns) {
  return encode(3, data, dtype, matrices, rows, columns, box_rows, box_columns);
}

CUtensorMap pieces_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                       int box_columns, int box_pieces) {
  const bool whole = columns % box_columns == 0;
  expect(whole || box_pieces == 1, "tensor map: pieces");
  const int64_t piece = whole ? box_columns : columns;
  const auto row_bytes = static_cast<cuuint64_t>(columns) * size_bytes(dtype);
  return encode(
      data, dtype,
      {4,
       {static_cast<cuuint64_t>(piece), static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / piece),
        static_cast<cuuint64_t>(matrices)},
       {row_bytes, static_cast<cuuint64_t>(piece) * size_bytes(dtype), row_bytes * static_cast<cuuint64_t>(rows)},
       {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_pieces),
        1}});
}

CUtensorMap heads_map(const void* data, DType dtype, int64_t rows, int64_t heads, int64_t row_bytes, int box_rows,
                      int box_heads) {
  const auto columns = static_cast<cuuint64_t>(128 / size_bytes(dtype));
  return encode(
      data, dtype,
      {3,
       {columns, static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(rows)},
       {128, static_cast<cuuint64_t>(row_bytes)},
       {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(box_rows)}});
}

}  // namespace lfm2
