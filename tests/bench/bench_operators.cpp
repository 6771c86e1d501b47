// Speed of the general operators on a GPU, one line a shape: share of the device's copy bandwidth in the same run, and
// of cuBLAS' fp32 products. bench_operators [FILE.jsonl]: the file gets a line of JSON a shape. Exit code 1 where a
// share is below what operators/README.md asks for; such lines say so.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "operators/bias.h"
#include "operators/causal_conv1d.h"
#include "operators/concat.h"
#include "operators/map_zip.h"
#include "operators/matmul.h"
#include "operators/reduce.h"

namespace {

using namespace lfm2;
using namespace lfm2::operators;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(70);
}
void check(Status status) {
  if (ok(status)) return;
  std::fprintf(stderr, "%s\n", status_text(status));
  std::exit(70);
}
void check(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "cuBLAS: %d\n", static_cast<int>(status));
  std::exit(70);
}

class Bench {
 public:
  explicit Bench(const char* json) {
    check(cudaStreamCreate(&stream_));
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&end_));
    if (json != nullptr) json_.open(json, std::ios::app);
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> noise(size_t{1} << 24);
    for (float& x : noise) x = uniform(generator);
    std::vector<Bf16> rounded(noise.size());
    std::transform(noise.begin(), noise.end(), rounded.begin(), from_float<Bf16>);
    check(cudaMalloc(&noise_, noise.size() * 4));
    check(cudaMemcpy(noise_, noise.data(), noise.size() * 4, cudaMemcpyHostToDevice));
    check(cudaMalloc(&bf16_noise_, noise.size() * 2));
    check(cudaMemcpy(bf16_noise_, rounded.data(), noise.size() * 2, cudaMemcpyHostToDevice));
    noise_count_ = static_cast<int64_t>(noise.size());
  }
  ~Bench() {
    forget();
    static_cast<void>(cudaFree(noise_));
    static_cast<void>(cudaFree(bf16_noise_));
    static_cast<void>(cudaEventDestroy(start_));
    static_cast<void>(cudaEventDestroy(end_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  cudaStream_t stream() const { return stream_; }

  // Values in (-1, 1); fp32 and bf16.
  TensorView random(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view = empty(dtype, shape);
    for (int64_t first = 0; first < view.numel(); first += noise_count_) {
      const int64_t count = std::min(noise_count_, view.numel() - first);
      void* target = static_cast<std::byte*>(view.data) + first * static_cast<int64_t>(size_bytes(dtype));
      check(cudaMemcpy(target, dtype == DType::kF32 ? noise_ : bf16_noise_,
                       static_cast<size_t>(count) * size_bytes(dtype), cudaMemcpyDeviceToDevice));
    }
    return view;
  }
  TensorView empty(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view(nullptr, dtype, shape, 0);
    check(cudaMalloc(&view.data, std::max<size_t>(256, static_cast<size_t>(view.numel()) * size_bytes(dtype))));
    memory_.push_back(view.data);
    return view;
  }
  void* workspace(size_t bytes) { return empty(DType::kF32, {static_cast<int64_t>(bytes / 4 + 1)}).data; }
  void forget() {
    check(cudaStreamSynchronize(stream_));
    for (void* memory : memory_) check(cudaFree(memory));
    memory_.clear();
  }

  // The median of several runs, each the mean of some calls.
  double seconds(const std::function<void()>& work) {
    constexpr int kRuns = 9;
    int calls = 3;
    std::vector<double> times;
    for (int run = -2; run < kRuns; ++run) {  // the first ones warm up and say how many calls fill 4 ms
      check(cudaEventRecord(start_, stream_));
      for (int i = 0; i < calls; ++i) work();
      check(cudaEventRecord(end_, stream_));
      check(cudaEventSynchronize(end_));
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, start_, end_));
      const double each = static_cast<double>(milliseconds) * 1e-3 / calls;
      if (run >= 0) times.push_back(each);
      if (run < 0) calls = std::clamp(static_cast<int>(4e-3 / each), 2, 400);
    }
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    return times[kRuns / 2];
  }

  void set_copy(double bytes_per_second) { copy_ = bytes_per_second; }
  // promised: the share below which the bench fails; 0 where nothing is asked for.
  void bandwidth(const std::string& what, double bytes, double promised, const std::function<void()>& work) {
    const double time = seconds(work), share = bytes / time / copy_;
    finish(what, time, share, promised, "of a copy", bytes / time * 1e-9, "GB/s");
  }
  void product(const std::string& what, double flops, double reference, double promised,
               const std::function<void()>& work) {
    const double time = seconds(work);
    finish(what, time, reference / time, promised, "of cuBLAS", flops / time * 1e-12, "TFLOP/s");
  }
  int missed() const { return missed_; }

 private:
  void finish(const std::string& what, double time, double share, double promised, const char* of, double rate,
              const char* unit) {
    const bool below = share < promised;
    std::printf("%-52s %10.1f us %8.1f %-8s %6.1f %% %s%s\n", what.c_str(), time * 1e6, rate, unit, 100 * share, of,
                below ? "  BELOW" : "");
    std::fflush(stdout);
    if (json_.is_open())
      json_ << "{\"bench\": \"" << what << "\", \"seconds\": " << time << ", \"share\": " << share << "}\n";
    missed_ += below ? 1 : 0;
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  void* noise_ = nullptr;
  void* bf16_noise_ = nullptr;
  int64_t noise_count_ = 0;
  std::vector<void*> memory_;
  std::ofstream json_;
  double copy_ = 1;
  int missed_ = 0;
};

constexpr double kStreaming = 0.85, kTurned = 0.6;  // what is asked for, odd sizes and addresses included

double bytes_of(const TensorView& view) {
  return static_cast<double>(view.numel()) * static_cast<double>(size_bytes(view.dtype));
}
std::string text(DType dtype) { return std::string(name(dtype)); }

void copy(Bench& bench) {
  const size_t bytes = size_t{1} << 31;
  void* from = bench.random(DType::kF32, {int64_t{1} << 29}).data;
  void* to = bench.empty(DType::kF32, {int64_t{1} << 29}).data;
  const double time =
      bench.seconds([&] { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, bench.stream())); });
  bench.set_copy(2.0 * static_cast<double>(bytes) / time);
  std::printf("%-52s %10.1f us %8.1f GB/s\n", "device copy, 2 GiB", time * 1e6,
              2.0 * static_cast<double>(bytes) / time * 1e-9);
  bench.forget();
}

void concats(Bench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const int64_t wide = 16 / static_cast<int64_t>(size_bytes(dtype));  // elements in 16 bytes
    const auto run = [&](const std::string& what, const std::vector<TensorView>& parts, const TensorView& whole,
                         int axis, double promised) {
      const auto n = static_cast<int64_t>(parts.size());
      bench.bandwidth("concat " + what + ", " + text(dtype), 2 * bytes_of(whole), promised,
                      [&, n] { check(concat(parts.data(), n, whole, axis, bench.stream())); });
      bench.bandwidth("concat " + what + ", " + text(dtype) + ", gradient +=", 3 * bytes_of(whole), promised, [&, n] {
        check(concat_backward(whole, parts.data(), n, axis, GradientMode::kAdd, bench.stream()));
      });
      bench.forget();
    };
    {
      const int64_t row = 1024 * wide;
      run("axis 0, 4 x 16384 rows",
          std::vector<TensorView>{bench.random(dtype, {16384, row}), bench.random(dtype, {16384, row}),
                                  bench.random(dtype, {16384, row}), bench.random(dtype, {16384, row})},
          bench.empty(dtype, {65536, row}), 0, kStreaming);
    }
    for (const int64_t units : {4, 16, 256}) {
      const int64_t columns = units * wide, rows = (int64_t{1} << 28) / (units * 16);
      run("last axis, 2 x " + std::to_string(units * 16) + " bytes",
          std::vector<TensorView>{bench.random(dtype, {rows, columns}), bench.random(dtype, {rows, columns})},
          bench.empty(dtype, {rows, 2 * columns}), 1, kStreaming);
    }
    // Rows that begin at any element: 68 or 66 bytes, about 260, about 4100.
    for (const int64_t columns : {4 * wide + 1, 16 * wide + 1, 256 * wide + 1}) {
      const int64_t rows = (int64_t{1} << 28) / (columns * static_cast<int64_t>(size_bytes(dtype)));
      run("last axis, 2 x " + std::to_string(columns) + " elements",
          std::vector<TensorView>{bench.random(dtype, {rows, columns}), bench.random(dtype, {rows, columns})},
          bench.empty(dtype, {rows, 2 * columns}), 1, kStreaming);
    }
    {
      const int64_t odd = (int64_t{1} << 26) + 1;  // the second input begins at an odd element
      run("axis 0, 2 odd lengths", std::vector<TensorView>{bench.random(dtype, {odd}), bench.random(dtype, {odd + 2})},
          bench.empty(dtype, {2 * odd + 2}), 0, kStreaming);
    }
  }
}

void biases(Bench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t columns : {int64_t{4096}, int64_t{70}}) {
      const int64_t rows = (int64_t{1} << 28) / columns / 7168 * 7168;
      const TensorView x = bench.random(dtype, {rows, columns}), y = bench.empty(dtype, {rows, columns});
      const TensorView by_column = bench.random(dtype, {columns}), by_row = bench.random(dtype, {7168});
      const std::string shape = std::to_string(rows) + " x " + std::to_string(columns) + ", " + text(dtype);
      bench.bandwidth("bias row-wise, " + shape, 2 * bytes_of(x), kStreaming,
                      [&] { check(bias(x, by_column, y, {0}, Activation::kNone, bench.stream())); });
      bench.bandwidth("bias row-wise, SiLU, " + shape, 2 * bytes_of(x), kStreaming,
                      [&] { check(bias(x, by_column, y, {0}, Activation::kSilu, bench.stream())); });
      bench.bandwidth("bias row-wise, GELU, " + shape, 2 * bytes_of(x), kStreaming,
                      [&] { check(bias(x, by_column, y, {0}, Activation::kGelu, bench.stream())); });
      bench.bandwidth("bias column-wise, " + shape, 2 * bytes_of(x), kStreaming,
                      [&] { check(bias(x, by_row, y, {7168}, Activation::kNone, bench.stream())); });
      size_t bytes = 0;
      for (const int64_t per_sample : {int64_t{0}, int64_t{7168}}) {
        check(bias_backward_workspace(x, {per_sample}, bytes));
        void* workspace = bench.workspace(bytes);
        bench.bandwidth(std::string("bias gradient, ") + (per_sample == 0 ? "row-wise, " : "column-wise, ") + shape,
                        bytes_of(x), kStreaming, [&] {
                          check(bias_backward(x, nullptr, per_sample == 0 ? by_column : by_row, {per_sample}, workspace,
                                              bytes, bench.stream()));
                        });
      }
      bench.forget();
    }
  }
}

TensorView turned(TensorView view, int a, int b) {
  std::swap(view.dims[static_cast<size_t>(a)], view.dims[static_cast<size_t>(b)]);
  std::swap(view.strides[static_cast<size_t>(a)], view.strides[static_cast<size_t>(b)]);
  return view;
}

void maps(Bench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const TensorView x = bench.random(dtype, {16384, 16384}), y = bench.empty(dtype, {16384, 16384});
    const TensorView z = bench.random(dtype, {16384, 16384}), row = bench.random(dtype, {1, 16384}),
                     column = bench.random(dtype, {16384, 1});
    const std::string shape = "16384 x 16384, " + text(dtype);
    for (const auto& [what, function] : {std::pair<std::string, UnaryFunction>{"neg", UnaryFunction::kNeg},
                                         {"exp", UnaryFunction::kExp},
                                         {"silu", UnaryFunction::kSilu},
                                         {"tanh", UnaryFunction::kTanh}})
      bench.bandwidth("map " + what + ", " + shape, 2 * bytes_of(x), kStreaming,
                      [&, f = function] { check(map(f, x, y, bench.stream())); });
    bench.bandwidth("map, transposed, " + shape, 2 * bytes_of(x), kTurned,
                    [&] { check(map(UnaryFunction::kNeg, turned(x, 0, 1), y, bench.stream())); });
    bench.bandwidth("zip add, " + shape, 3 * bytes_of(x), kStreaming,
                    [&] { check(zip(BinaryFunction::kAdd, x, z, y, bench.stream())); });
    bench.bandwidth("zip add, a row, " + shape, 2 * bytes_of(x), kStreaming,
                    [&] { check(zip(BinaryFunction::kAdd, x, row, y, bench.stream())); });
    bench.bandwidth("zip add, a column, " + shape, 2 * bytes_of(x), kStreaming,
                    [&] { check(zip(BinaryFunction::kAdd, x, column, y, bench.stream())); });
    bench.bandwidth("zip add, one transposed, " + shape, 3 * bytes_of(x), 0,
                    [&] { check(zip(BinaryFunction::kAdd, x, turned(z, 0, 1), y, bench.stream())); });
    bench.forget();
    const TensorView odd = bench.random(dtype, {1001, 301, 801}), to = bench.empty(dtype, {801, 301, 1001});
    bench.bandwidth("map, 1001 x 301 x 801 turned round, " + text(dtype), 2 * bytes_of(odd), kTurned,
                    [&] { check(map(UnaryFunction::kNeg, turned(odd, 0, 2), to, bench.stream())); });
    bench.forget();
  }
}

void reductions(Bench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{65536, 4096},
                                        {262144, 1024},
                                        {4194304, 64},
                                        {16777216, 16},
                                        {64, 4194304},
                                        {1, 268435456},
                                        {65536, 4095},
                                        {3827712, 70}}) {
      const TensorView x = bench.random(dtype, {rows, columns});
      const TensorView by_row = bench.empty(dtype, {rows, 1}), by_column = bench.empty(dtype, {1, columns});
      const std::string shape = std::to_string(rows) + " x " + std::to_string(columns) + ", " + text(dtype);
      for (const uint32_t axes : {2u, 1u}) {
        if (axes == 1u && rows == 1) continue;
        size_t bytes = 0;
        check(reduce_workspace(x, axes, bytes));
        void* workspace = bench.workspace(bytes);
        const TensorView& y = axes == 2u ? by_row : by_column;
        bench.bandwidth((axes == 2u ? "sum over the last axis, " : "sum over the first axis, ") + shape,
                        bytes_of(x) + bytes_of(y), kStreaming,
                        [&] { check(reduce(ReduceFunction::kSum, x, y, axes, workspace, bytes, bench.stream())); });
      }
      bench.forget();
    }
  }
}

void products(Bench& bench) {
  cublasHandle_t cublas = nullptr;
  check(cublasCreate(&cublas));
  check(cublasSetStream(cublas, bench.stream()));
  const float one = 1, zero = 0;
  for (const auto& [batch, m, k, n, promised] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t, double>{1, 4096, 4096, 4096, 0.6},
        {4, 4096, 4096, 4096, 0.6},
        {1000, 45, 70, 33, 1.0 / 3},
        {64, 512, 512, 512, 0}}) {
    const TensorView a = bench.random(DType::kF32, {batch, m, k}), b = bench.random(DType::kF32, {batch, k, n}),
                     bt = bench.random(DType::kF32, {batch, n, k}), c = bench.empty(DType::kF32, {batch, m, n});
    const auto pointer = [](const TensorView& view) { return static_cast<float*>(view.data); };
    const auto sgemm = [&](cublasOperation_t operation, const TensorView& right, int64_t stride) {
      return bench.seconds([&, operation, stride] {  // column-major: c' = b' a'
        check(cublasSgemmStridedBatched(cublas, operation, CUBLAS_OP_N, static_cast<int>(n), static_cast<int>(m),
                                        static_cast<int>(k), &one, pointer(right), static_cast<int>(stride), n * k,
                                        pointer(a), static_cast<int>(k), m * k, &zero, pointer(c), static_cast<int>(n),
                                        m * n, static_cast<int>(batch)));
      });
    };
    const double flops = 2.0 * static_cast<double>(batch * m) * static_cast<double>(n * k);
    const double plain = sgemm(CUBLAS_OP_N, b, n), transposed = sgemm(CUBLAS_OP_T, bt, k);
    const std::string shape = std::to_string(m) + " x " + std::to_string(k) + " x " + std::to_string(n) +
                              ", batch of " + std::to_string(batch);
    std::printf("%-52s %10.1f us %8.1f TFLOP/s\n", ("cuBLAS fp32 " + shape).c_str(), plain * 1e6,
                flops / plain * 1e-12);
    bench.product("matmul " + shape, flops, plain, promised, [&] { check(matmul(a, b, c, bench.stream())); });
    bench.product("matmul, b transposed, " + shape, flops, transposed, promised,
                  [&] { check(matmul(a, turned(bt, 1, 2), c, bench.stream())); });
    if (m == k)
      bench.product("matmul, a transposed, " + shape, flops, plain, promised,
                    [&] { check(matmul(turned(a, 1, 2), b, c, bench.stream())); });
    bench.forget();
  }
  check(cublasDestroy(cublas));
}

void convolutions(Bench& bench) {
  for (const auto& [samples, channels, time, filter] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 64, 2048, 4}, {64, 2048, 2048, 3}}) {
    const TensorView x = bench.random(DType::kF32, {samples, channels, time}),
                     y = bench.empty(DType::kF32, {samples, channels, time});
    const TensorView w = bench.random(DType::kF32, {channels, filter}), shift = bench.random(DType::kF32, {channels});
    const std::string shape = std::to_string(samples) + " x " + std::to_string(channels) + " x " +
                              std::to_string(time) + ", filter " + std::to_string(filter);
    bench.bandwidth("causal_conv1d direct, " + shape, 2 * bytes_of(x), 0,
                    [&] { check(causal_conv1d(x, w, &shift, y, Activation::kSilu, bench.stream())); });
    if (samples > 1) {
      bench.forget();
      continue;
    }
    size_t bytes = 0;
    check(causal_conv1d_gemm_workspace(x, w, bytes));
    void* workspace = bench.workspace(bytes);
    bench.bandwidth("causal_conv1d im2col + GEMM, " + shape, 2 * bytes_of(x), 0, [&] {
      check(causal_conv1d_gemm(x, w, &shift, y, Activation::kSilu, workspace, bytes, bench.stream()));
    });
    bench.forget();
  }
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc > 1 ? argv[1] : nullptr);
  copy(bench);
  concats(bench);
  biases(bench);
  maps(bench);
  reductions(bench);
  products(bench);
  convolutions(bench);
  if (bench.missed() > 0) std::printf("%d below what operators/README.md asks for\n", bench.missed());
  return bench.missed() > 0 ? 1 : 0;
}
