// Makes tensor maps with the driver's function, which is looked up at run time so that nothing links against libcuda.
#include "kernels/cuda/common/tensor_map.h"

#include <cudaTypedefs.h>

#include <array>

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
    case DType::kF8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case DType::kI32:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_INT32;
}

struct Shape {
  cuuint32_t rank;
  std::array<int64_t, 4> dims, strides;  // strides in bytes, for all dimensions but the first
  std::array<int, 4> box;
};

CUtensorMap encode(const void* data, DType dtype, const Shape& shape) {
  static const Encode function = find_encode();
  expect(static_cast<size_t>(shape.box[0]) * size_bytes(dtype) == 128 && shape.box[1] > 0 && shape.box[1] <= 256,
         "tensor map: box");
  const cuuint32_t steps[] = {1, 1, 1, 1};
  cuuint64_t dims[4], strides[4];
  cuuint32_t box[4];
  for (size_t i = 0; i < 4; ++i) {
    dims[i] = static_cast<cuuint64_t>(shape.dims[i]);
    strides[i] = static_cast<cuuint64_t>(shape.strides[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
  }
  CUtensorMap map{};
  const CUresult result = function(&map, map_type(dtype), shape.rank, const_cast<void*>(data), dims, strides, box,
                                   steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  expect(result == CUDA_SUCCESS, "tensor map: the driver refuses this matrix");
  return map;
}

}  // namespace

CUtensorMap matrix_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows, int box_columns) {
  const auto row_bytes = columns * static_cast<int64_t>(size_bytes(dtype));
  return encode(data, dtype, {2, {columns, rows}, {row_bytes}, {box_columns, box_rows}});
}

CUtensorMap matrices_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                         int box_columns) {
  const auto row_bytes = columns * static_cast<int64_t>(size_bytes(dtype));
  return encode(data, dtype, {3, {columns, rows, matrices}, {row_bytes, row_bytes * rows}, {box_columns, box_rows, 1}});
}

CUtensorMap pieces_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                       int box_columns, int box_pieces) {
  const bool whole = columns % box_columns == 0;
  expect(whole || box_pieces == 1, "tensor map: pieces");
  const int64_t piece = whole ? box_columns : columns, element = static_cast<int64_t>(size_bytes(dtype));
  return encode(data, dtype,
                {4,
                 {piece, rows, columns / piece, matrices},
                 {columns * element, piece * element, columns * element * rows},
                 {box_columns, box_rows, box_pieces, 1}});
}

CUtensorMap heads_map(const void* data, DType dtype, int64_t rows, int64_t heads, int64_t head_bytes, int64_t row_bytes,
                      int box_rows, int box_heads) {
  const int columns = 128 / static_cast<int>(size_bytes(dtype));
  return encode(data, dtype, {3, {columns, heads, rows}, {head_bytes, row_bytes}, {columns, box_heads, box_rows}});
}

}  // namespace lfm2
