// Speed of fp8 products beside bf16's, in the shapes of LFM2-8B-A1B: bench_fp8 [--uneven] [--experts] [ROWS...], rows
// of each expert, or, with --uneven, the mean of rows that fall to experts by chance; --experts leaves dense products
// out. choose_fp8_tile follows from what it prints, a line for each product and tile: the product, rows, tile, us,
// TFLOP/s, GB/s of weights; a star marks the tile that is chosen. A figure is the median of recorded runs of launches
// that depend on one another, each with weights that are not in the cache. Run by hand on a machine with an H200.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm/gemm_wgmma.h"
#include "kernels/cuda/rows/launch.h"
#include "kernels/tensor_memory.h"
#include "recorded_time.h"

namespace {

using namespace lfm2;

constexpr int64_t kExperts = 32, kCopies = 2;

struct Shape {
  const char* name;
  int64_t groups, n, k;
  Epilogue epilogue;
};
constexpr Shape kShapes[] = {{"experts up", kExperts, 3584, 2048, Epilogue::kSwiglu},
                             {"experts down", kExperts, 2048, 1792, Epilogue::kStore},
                             {"dense up", 1, 14336, 2048, Epilogue::kSwiglu},
                             {"dense down", 1, 2048, 7168, Epilogue::kAdd},
                             {"conv in", 1, 6144, 2048, Epilogue::kStore},
                             {"out", 1, 2048, 2048, Epilogue::kAdd}};

class Bench {
 public:
  Bench()
      : backend_(make_cuda_backend(0)),
        stream_(dynamic_cast<CudaStream&>(backend_->compute()).native()),
        memory_(*backend_) {
    CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0));
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, 60.0f);
    noise8_.resize(size_t{1} << 22), noise16_.resize(noise8_.size());
    for (size_t i = 0; i < noise8_.size(); ++i)
      noise8_[i] = from_float<F8>(normal(generator)), noise16_[i] = from_float<Bf16>(to_float(noise8_[i]));
    std::printf("%s\nproduct rows type tile us TFLOP/s GB/s\n", backend_->description().c_str());
  }
  bool uneven = false;

  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // `rows` of each expert, or of the dense product as many as the experts have in all, over four.
  void run(const Shape& shape, int64_t rows) {
    const int64_t m = shape.groups > 1 ? rows * shape.groups : std::max<int64_t>(1, rows * kExperts / 4);
    TensorMemory memory(*backend_);
    const int64_t copies = m > 8192 ? 1 : kCopies * (shape.groups > 1 ? 1 : 16),
                  matrix = shape.groups * shape.n * shape.k;
    const Tensor a = random(memory, DType::kF8, m * shape.k), w = random(memory, DType::kF8, copies * matrix);
    const Tensor a16 = random(memory, DType::kBf16, m * shape.k), w16 = random(memory, DType::kBf16, copies * matrix);
    const Tensor scales = memory.allocate(
        DType::kF32, {std::max(m * ((shape.k + 127) / 128), copies * matrix / 1024 + copies * shape.groups * shape.n)});
    const Tensor out = memory.allocate(DType::kBf16, {m, shape.n}),
                 offsets = memory.allocate(DType::kI32, {kExperts + 1});
    backend_->compute().submit([&] { CUDA_CHECK(cudaMemsetAsync(scales.data, 0x3c, scales.bytes(), stream_)); });
    std::vector<int32_t> bounds;
    for (int64_t e = 0; e <= shape.groups; ++e) bounds.push_back(static_cast<int32_t>(e * m / shape.groups));
    if (uneven) {
      std::mt19937 generator(7);
      for (int32_t& bound : bounds) bound = 0;
      for (int64_t row = 0; row < m; ++row) ++bounds[1 + generator() % static_cast<size_t>(shape.groups)];
      std::partial_sum(bounds.begin(), bounds.end(), bounds.begin());
    }
    backend_->upload(offsets, 0, DType::kI32, bounds.data(), shape.groups + 1);
    GemmArgs args{};
    args.out = out.data, args.m = m, args.n = shape.n, args.k = shape.k, args.groups = shape.groups;
    args.epilogue = shape.epilogue;
    if (shape.groups > 1) args.offsets = offsets.as<const int32_t>();
    args.offsets_visible = Visible::kBeforeWait;
    const auto line = [&](const std::string& what, bool star, size_t element,
                          const std::function<void(int64_t)>& launch) {
      const double each = seconds(copies, matrix * static_cast<int64_t>(element), launch);
      const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(shape.n * shape.k);
      std::printf("%s, %ld, %s, %.2f, %.0f, %.0f%s\n", shape.name, static_cast<long>(m / shape.groups), what.c_str(),
                  each * 1e6, flops / each * 1e-12,
                  static_cast<double>(matrix) * static_cast<double>(element) / each * 1e-9, star ? " *" : "");
      std::fflush(stdout);
    };
    line("bf16", false, 2, [&](int64_t copy) {
      args.a = a16.data, args.w = {w16.data + copy * matrix * 2, DType::kBf16};
      if (prefers_skinny(m, shape.n, args.offsets != nullptr))
        launch_gemm_skinny(stream_, args, DType::kBf16, DType::kBf16);
      else
        launch_gemm_wgmma(stream_, args, DType::kBf16, DType::kBf16);
    });
    args.scales.a = scales.as<float>();
    const WgmmaTile chosen = choose_fp8_tile(args, multiprocessors_);
    for (const bool block : {true, false}) {
      args.scales = {scales.as<float>(), scales.as<float>(), m, block ? 8 : 1, block ? 128 : 0};
      const auto lines = [&](const auto& tiles) {
        for (const WgmmaTile tile : tiles) {
          if (tile.transposed && m / shape.groups > 2 * tile.rows) continue;
          const std::string name =
              fmt::format("fp8 {} {}x{}/{}{}", block ? "block" : "channel", tile.rows, tile.columns, tile.cluster,
                          tile.rounds       ? " rounds"
                          : tile.transposed ? " transposed"
                                            : "");
          line(name, tile == chosen, 1, [&](int64_t copy) {
            args.a = tile.rounds ? a16.data : a.data, args.w = {w.data + copy * matrix, DType::kF8};
            args.scales.a = tile.rounds ? nullptr : scales.as<float>();
            launch_gemm_fp8(stream_, args, tile);
          });
        }
      };
      shape.epilogue == Epilogue::kSwiglu ? lines(kFp8SwigluTiles) : lines(kFp8Tiles);
      if (shape.epilogue != Epilogue::kAdd)
        lines(kFp8TransposedTiles);
      else if (m <= 16)
        lines(std::span(kFp8TransposedTiles).first<1>());
      if (!block && shape.epilogue != Epilogue::kSwiglu && shape.k <= kMaxRoundedK && m / shape.groups <= 16)
        lines(std::span(&kFp8RoundingTile, 1));
      line(fmt::format("quantize {}", block ? "group" : "token"), false, 1, [&](int64_t) {
        launch_quantize(stream_, a16.data, nullptr, m, shape.k, {a.as<uint8_t>(), scales.as<float>(), m, block},
                        DType::kBf16);
      });
    }
  }

 private:
  Tensor random(TensorMemory& memory, DType dtype, int64_t elements) {
    const Tensor tensor = memory.allocate(dtype, {elements});
    const auto piece = static_cast<int64_t>(noise8_.size());
    const void* source = dtype == DType::kF8 ? static_cast<const void*>(noise8_.data()) : noise16_.data();
    backend_->upload(tensor, 0, dtype, source, std::min(piece, elements));
    for (int64_t first = piece; first < elements; first += piece)
      backend_->copy(backend_->compute(), tensor.data + static_cast<size_t>(first) * size_bytes(dtype), tensor.data,
                     static_cast<size_t>(std::min(piece, elements - first)) * size_bytes(dtype));
    return tensor;
  }

  // The median time of work(copy), over the copies of the weights.
  double seconds(int64_t copies, int64_t bytes, const std::function<void(int64_t)>& work) {
    const int64_t calls = std::clamp<int64_t>((int64_t{1} << 30) / bytes, 4, 60);
    return time_.seconds(calls, [&](int64_t i) { work(i % copies); });
  }

  std::unique_ptr<Backend> backend_;
  RecordedTime time_{*backend_};
  cudaStream_t stream_;
  TensorMemory memory_;
  std::vector<F8> noise8_;
  std::vector<Bf16> noise16_;
  int multiprocessors_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (cuda_device_count() == 0) {
    std::puts("no GPU");
    return 77;
  }
  std::vector<int64_t> rows;
  bool uneven = false, experts = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--uneven")
      uneven = true;
    else if (argument == "--experts")
      experts = true;
    else
      rows.push_back(std::clamp<int64_t>(std::stoll(argument), 1, 8192));
  }
  if (rows.empty()) rows = {1, 4, 16, 32, 64, 128, 256, 1024, 4096};
  Bench bench;
  bench.uneven = uneven;
  for (const Shape& shape : kShapes)
    for (const int64_t m : rows)
      if (shape.groups > 1 || !experts) bench.run(shape, m);
  return 0;
}
