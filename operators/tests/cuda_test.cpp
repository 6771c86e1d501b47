// Tests what only a GPU has: graph capture, errors of launches, sizes beyond 2^31 elements, the same bits on every run.
#include <cuda_runtime_api.h>

#include <cstring>

#include "operators/bias.h"
#include "operators/causal_conv1d.h"
#include "operators/concat.h"
#include "operators/map_zip.h"
#include "operators/matmul.h"
#include "operators/reduce.h"
#include "operators/tests/memory.h"

namespace lfm2::operators::test {

namespace {

#define CUDA_CHECK(call) ASSERT_EQ((call), cudaSuccess)

Made on_gpu(const std::vector<int64_t>& dims, std::mt19937& generator, DType dtype = DType::kF32) {
  Made made = make(0, dtype, dims);
  made.memory->fill_random(generator);
  return made;
}

// Memory on the GPU without a copy on the host.
class Large {
 public:
  explicit Large(int64_t elements) : elements_(elements) {
    const auto bytes = static_cast<size_t>(elements) * 2;
    if (cudaMalloc(&data_, bytes) != cudaSuccess || cudaMemset(data_, 0, bytes) != cudaSuccess) data_ = nullptr;
  }
  ~Large() { static_cast<void>(cudaFree(data_)); }
  Large(const Large&) = delete;
  Large& operator=(const Large&) = delete;

  bool ok() const { return data_ != nullptr; }
  TensorView view(std::initializer_list<int64_t> shape) const { return TensorView(data_, DType::kBf16, shape, 0); }
  void put(int64_t index, float value) const {
    const Bf16 bits = from_float<Bf16>(value);
    EXPECT_EQ(cudaMemcpy(static_cast<Bf16*>(data_) + index, &bits, 2, cudaMemcpyHostToDevice), cudaSuccess);
  }
  float get(int64_t index) const {
    Bf16 bits{};
    EXPECT_EQ(cudaMemcpy(&bits, static_cast<Bf16*>(data_) + index, 2, cudaMemcpyDeviceToHost), cudaSuccess);
    return to_float(bits);
  }
  int64_t size() const { return elements_; }

 private:
  int64_t elements_;
  void* data_ = nullptr;
};

constexpr int64_t kFar = (int64_t{1} << 31) + 12344;  // a multiple of 8
constexpr int64_t kPlaces[] = {0, 7, (int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{1} << 31) + 1, kFar - 1};

}  // namespace

TEST(CudaGraphTest, EveryOperatorInOneGraph) {
  std::mt19937 generator(3);
  Made a = on_gpu({40, 70}, generator), b = on_gpu({40, 30}, generator), joined = on_gpu({40, 100}, generator);
  Made w = on_gpu({100, 24}, generator), product = on_gpu({40, 24}, generator), shift = on_gpu({24}, generator);
  Made mapped = on_gpu({24, 40}, generator), sums = on_gpu({24}, generator), total = on_gpu({24}, generator);
  Made x = on_gpu({2, 24, 50}, generator), taps = on_gpu({24, 4}, generator), y = on_gpu({2, 24, 50}, generator);
  Made again = on_gpu({2, 24, 50}, generator), ga = on_gpu({40, 70}, generator), gb = on_gpu({40, 30}, generator);
  Made wide = on_gpu({3, 300000}, generator), few = on_gpu({3}, generator);
  size_t bytes = 0, conv_bytes = 0, bias_bytes = 0;
  ASSERT_EQ(reduce_workspace(wide.view, 2u, bytes), Status::kOk);
  EXPECT_GT(bytes, 0u);
  ASSERT_EQ(causal_conv1d_gemm_workspace(x.view, taps.view, conv_bytes), Status::kOk);
  ASSERT_EQ(bias_backward_workspace(product.view, {0}, bias_bytes), Status::kOk);
  Memory workspace(0, DType::kF32, static_cast<int64_t>(bytes / 4)),
      conv_workspace(0, DType::kF32, static_cast<int64_t>(conv_bytes / 4)),
      bias_workspace(0, DType::kF32, static_cast<int64_t>(bias_bytes / 4));
  const std::vector<double> ga_before = in_order(ga);
  TensorView turned = product.view;
  std::swap(turned.dims[0], turned.dims[1]);
  std::swap(turned.strides[0], turned.strides[1]);
  const auto everything = [&](cudaStream_t stream) {
    const TensorView inputs[2] = {a.view, b.view}, gradients[2] = {ga.view, gb.view};
    EXPECT_EQ(concat(inputs, 2, joined.view, 1, stream), Status::kOk);
    EXPECT_EQ(concat_backward(joined.view, gradients, 2, 1, GradientMode::kAdd, stream), Status::kOk);
    EXPECT_EQ(matmul(joined.view, w.view, product.view, stream), Status::kOk);
    EXPECT_EQ(bias(product.view, shift.view, product.view, {0}, Activation::kSilu, stream), Status::kOk);
    EXPECT_EQ(bias_backward(product.view, nullptr, total.view, {0}, bias_workspace.data(), bias_bytes, stream),
              Status::kOk);
    EXPECT_EQ(map(UnaryFunction::kTanh, turned, mapped.view, stream), Status::kOk);
    EXPECT_EQ(zip(BinaryFunction::kMul, mapped.view, mapped.view, mapped.view, stream), Status::kOk);
    EXPECT_EQ(reduce(ReduceFunction::kSum, mapped.view, sums.view, 2u, nullptr, 0, stream), Status::kOk);
    EXPECT_EQ(reduce(ReduceFunction::kSum, wide.view, few.view, 2u, workspace.data(), bytes, stream), Status::kOk);
    EXPECT_EQ(causal_conv1d(x.view, taps.view, &sums.view, y.view, Activation::kSilu, stream), Status::kOk);
    EXPECT_EQ(causal_conv1d_gemm(x.view, taps.view, &sums.view, again.view, Activation::kSilu, conv_workspace.data(),
                                 conv_bytes, stream),
              Status::kOk);
  };
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreate(&stream));
  everything(stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  const std::vector<double> first_y = in_order(y), first_again = in_order(again), first_few = in_order(few),
                            first_total = in_order(total);
  ga.memory->fill(ga_before);
  for (Made* made : {&joined, &product, &mapped, &sums, &y, &again, &few, &total})
    made->memory->fill(std::vector<double>(static_cast<size_t>(made->memory->size()), 99.0));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  everything(stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int run = 0; run < 2; ++run) CUDA_CHECK(cudaGraphLaunch(executable, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_EQ(in_order(y), first_y);
  EXPECT_EQ(in_order(again), first_again);
  EXPECT_EQ(in_order(few), first_few);
  EXPECT_EQ(in_order(total), first_total);
  std::vector<double> twice = ga_before;  // the gradient was added in both runs
  const std::vector<double> slice = in_order(a);
  for (size_t i = 0; i < twice.size(); ++i)
    twice[i] = static_cast<double>(
        static_cast<float>(static_cast<double>(static_cast<float>(twice[i] + slice[i])) + slice[i]));
  EXPECT_EQ(in_order(ga), twice);
  CUDA_CHECK(cudaGraphExecDestroy(executable));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaStreamDestroy(stream));
}

TEST(CudaErrorTest, ReportsItsOwnAndOnlyItsOwn) {
  std::mt19937 generator(4);
  Made x = on_gpu({8, 8}, generator);
  TensorView nowhere = x.view;
  nowhere.device = 99;
  const Status status = map(UnaryFunction::kNeg, nowhere, nowhere, nullptr);
  EXPECT_EQ(static_cast<int>(status), static_cast<int>(Status::kCudaError) + static_cast<int>(cudaErrorInvalidDevice));
  EXPECT_STREQ(status_text(status), cudaGetErrorString(cudaErrorInvalidDevice));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error remained";
  // An earlier failure of other code is not the launch's.
  void* memory = nullptr;
  EXPECT_NE(cudaMalloc(&memory, size_t{1} << 60), cudaSuccess);
  EXPECT_EQ(map(UnaryFunction::kNeg, x.view, x.view, nullptr), Status::kOk);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation) << "somebody else's error was cleared";
  // Host and device tensors in one call are refused.
  TensorView host = x.view;
  host.device = kCpu;
  EXPECT_EQ(zip(BinaryFunction::kAdd, x.view, host, x.view, nullptr), Status::kInvalid);
  Made wide = on_gpu({2, 1000000}, generator), few = on_gpu({2}, generator);
  EXPECT_EQ(reduce(ReduceFunction::kSum, wide.view, few.view, 2u, nullptr, 0, nullptr), Status::kInvalid);
}

TEST(CudaBitsTest, SameBitsAtEveryAddress) {
  std::mt19937 generator(5);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16})
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{5, 100003},
                                             {1000, 257},
                                             {3, 4000, 40},
                                             {3001, 70},
                                             {4099, 3},
                                             {64, 17},
                                             {7, 30, 70},
                                             {5, 600, 70},
                                             {100, 1024},
                                             {20, 4611}})
      for (uint32_t axes = 1; axes < 1u << dims.size(); ++axes) {
        std::vector<int64_t> kept = dims;
        for (size_t axis = 0; axis < dims.size(); ++axis)
          if ((axes >> axis & 1u) != 0) kept[axis] = 1;
        std::vector<double> bits, values;
        for (int64_t shift = 0; shift < 16 / static_cast<int64_t>(size_bytes(dtype)); ++shift) {
          Made x = make(0, dtype, dims, Layout::kDense, nullptr, shift), y = make(0, dtype, kept);
          if (values.empty())
            values = x.memory->fill_random(generator);
          else
            x.memory->fill(values);
          size_t bytes = 0;
          ASSERT_EQ(reduce_workspace(x.view, axes, bytes), Status::kOk);
          Memory workspace(0, DType::kF32, static_cast<int64_t>(bytes / 4));
          for (int run = 0; run < 2; ++run) {
            ASSERT_EQ(reduce(ReduceFunction::kSum, x.view, y.view, axes, workspace.data(), bytes, nullptr),
                      Status::kOk);
            if (bits.empty()) bits = in_order(y);
            EXPECT_EQ(in_order(y), bits) << name(dtype) << " axes " << axes << " shift " << shift;
          }
        }
      }
}

// Tensors of more than 2^31 elements: x has threes at kPlaces and zeros elsewhere.
class CudaLargeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!x.ok() || !y.ok()) GTEST_SKIP() << "needs 9 GB of GPU memory";
    for (const int64_t place : kPlaces) x.put(place, 3);
  }

  static void expect_places(const Large& in, float there, float elsewhere, const char* what) {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const int64_t place : kPlaces) EXPECT_EQ(in.get(place), there) << what << " at " << place;
    for (const int64_t place : {int64_t{1}, (int64_t{1} << 31) - 2, (int64_t{1} << 31) + 2, kFar - 2})
      EXPECT_EQ(in.get(place), elsewhere) << what << " at " << place;
    EXPECT_EQ(in.get(kFar), 0) << what << " past the end";
  }
  // The view, beginning `elements` later.
  static TensorView behind(TensorView view, int64_t elements) {
    view.data = static_cast<Bf16*>(view.data) + elements;
    return view;
  }

  const Large x{kFar + 8}, y{kFar + 8};
};

TEST_F(CudaLargeTest, MapAndZip) {
  ASSERT_EQ(map(UnaryFunction::kNeg, x.view({kFar}), y.view({kFar}), nullptr), Status::kOk);
  expect_places(y, -3, 0, "map");
  ASSERT_EQ(map(UnaryFunction::kSquare, behind(x.view({kFar - 1}), 1), behind(y.view({kFar - 1}), 1), nullptr),
            Status::kOk);  // the address is odd, so single elements are taken
  y.put(0, 9);
  expect_places(y, 9, 0, "map of single elements");
  ASSERT_EQ(zip(BinaryFunction::kAdd, x.view({kFar / 8, 8}), x.view({kFar / 8, 8}), y.view({kFar / 8, 8}), nullptr),
            Status::kOk);
  expect_places(y, 6, 0, "zip");
}

TEST_F(CudaLargeTest, SingleElementsInSeveralLoops) {  // no loop has 2^31 steps
  constexpr int64_t kRows = 5, kColumns = kFar / kRows;
  const auto view = [](const Large& in) { return behind(in.view({kRows, kColumns - 1}), 1); };
  TensorView from = view(x), to = view(y);
  from.strides[0] = to.strides[0] = kColumns;
  ASSERT_EQ(map(UnaryFunction::kNeg, from, to, nullptr), Status::kOk);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (const int64_t place : kPlaces) {
    const bool inside = place % kColumns != 0 && place < kRows * kColumns;
    EXPECT_EQ(y.get(place), inside ? -3 : 0) << place;
  }
}

TEST_F(CudaLargeTest, ConcatAndItsGradient) {
  const Large z(kFar + 8);
  if (!z.ok()) GTEST_SKIP() << "needs 13 GB of GPU memory";
  const TensorView parts[2] = {x.view({5}), behind(x.view({kFar - 5}), 5)};
  ASSERT_EQ(concat(parts, 2, y.view({kFar}), 0, nullptr), Status::kOk);
  expect_places(y, 3, 0, "concat");
  const TensorView gradients[2] = {z.view({5}), behind(z.view({kFar - 5}), 5)};
  for (int run = 0; run < 2; ++run)
    ASSERT_EQ(concat_backward(y.view({kFar}), gradients, 2, 0, GradientMode::kAdd, nullptr), Status::kOk);
  expect_places(z, 6, 0, "gradient of concat");
}

TEST_F(CudaLargeTest, Bias) {
  const Large eight(8);
  for (int64_t i = 0; i < 8; ++i) eight.put(i, 1);
  ASSERT_EQ(bias(x.view({kFar / 8, 8}), eight.view({8}), y.view({kFar / 8, 8}), {0}, Activation::kRelu, nullptr),
            Status::kOk);
  expect_places(y, 4, 1, "bias");
}

// Tests sums of a few threes, and a maximum at the end.
TEST_F(CudaLargeTest, Reduce) {
  const TensorView all = x.view({kFar}), columns = x.view({kFar / 8, 8});
  const Large result(8);
  size_t bytes = 0, column_bytes = 0;
  ASSERT_EQ(reduce_workspace(all, 1u, bytes), Status::kOk);
  ASSERT_EQ(reduce_workspace(columns, 1u, column_bytes), Status::kOk);
  Memory workspace(0, DType::kF32, static_cast<int64_t>(std::max(bytes, column_bytes) / 4 + 4));
  ASSERT_EQ(reduce(ReduceFunction::kSum, all, result.view({1}), 1u, workspace.data(), bytes, nullptr), Status::kOk);
  EXPECT_EQ(result.get(0), 18);
  x.put(kFar - 1, 5);
  ASSERT_EQ(reduce(ReduceFunction::kMax, all, result.view({}), 1u, workspace.data(), bytes, nullptr), Status::kOk);
  EXPECT_EQ(result.get(0), 5);
  ASSERT_EQ(reduce(ReduceFunction::kSum, columns, result.view({8}), 1u, workspace.data(), column_bytes, nullptr),
            Status::kOk);
  EXPECT_EQ(result.get(7), 3 + 3 + 5);  // places 7, 2^31 - 1 and the last
}

TEST_F(CudaLargeTest, TransposedMap) {
  constexpr int64_t kRows = 40000, kColumns = kFar / kRows;
  TensorView turned = x.view({kRows, kColumns});
  std::swap(turned.dims[0], turned.dims[1]);
  std::swap(turned.strides[0], turned.strides[1]);
  ASSERT_EQ(map(UnaryFunction::kNeg, turned, y.view({kColumns, kRows}), nullptr), Status::kOk);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (const int64_t place : kPlaces) {
    if (place >= kRows * kColumns) continue;
    EXPECT_EQ(y.get(place % kColumns * kRows + place / kColumns), -3) << "from " << place;
  }
}

TEST_F(CudaLargeTest, Matmul) {
  constexpr int64_t kRows = 40000, kColumns = kFar / kRows;
  const Large left(kRows), right(kColumns);
  left.put(kRows - 1, 2);
  right.put(kColumns - 1, 4);
  ASSERT_EQ(matmul(left.view({kRows, 1}), right.view({1, kColumns}), y.view({kRows, kColumns}), nullptr), Status::kOk);
  EXPECT_EQ(y.get(kRows * kColumns - 1), 8);
  EXPECT_EQ(y.get(kRows * kColumns - 2), 0);
}

TEST_F(CudaLargeTest, MoreProductsThanALaunchHasBlocks) {
  const TensorView each = x.view({kFar, 1, 1});
  EXPECT_EQ(matmul(each, each, y.view({kFar, 1, 1}), nullptr), Status::kTooLarge);
  EXPECT_EQ(y.get(7), 0);
}

TEST_F(CudaLargeTest, CausalConv1d) {
  const Large taps(8);
  taps.put(0, 1), taps.put(1, 2);
  ASSERT_EQ(
      causal_conv1d(x.view({1, 1, kFar}), taps.view({1, 2}), nullptr, y.view({1, 1, kFar}), Activation::kNone, nullptr),
      Status::kOk);
  EXPECT_EQ(y.get(0), 6);
  EXPECT_EQ(y.get(1), 3);
  EXPECT_EQ(y.get((int64_t{1} << 31) + 1), 9);
  EXPECT_EQ(y.get(kFar - 1), 6);
}

}  // namespace lfm2::operators::test
