// Speed of every tile of gemm_wgmma.cu, and of gemm_skinny.cu, in the products of a decoding step of LFM2-8B-A1B:
// bench_tiles [ROWS...]. choose_wgmma_tile and prefers_skinny follow from what it prints, a line for each product and
// tile: m n k epilogue tile us GB/s, where the last one counts weights alone, and a star marks the tile that is chosen.
// A figure is the median of recorded runs of launches that depend on one another, each with weights that are not in the
// cache. Run by hand on a machine with an H200; takes half a minute.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm/gemm_wgmma.h"
#include "kernels/tensor_memory.h"
#include "recorded_time.h"

namespace {

using namespace lfm2;

constexpr DType kAct = DType::kBf16;
constexpr int64_t kExperts = 32, kHidden = 2048, kExpertFfn = 1792;
constexpr int64_t kMaxRows = 1024, kMaxGroupedRows = 8192, kMaxColumns = 65536, kMaxDepth = 7168;
constexpr int64_t kWeights = 400 << 20;  // elements; more than both products of all experts have

struct Dense {
  int64_t n, k;
  Epilogue epilogue;
  DType out;
};
constexpr Dense kDense[] = {{6144, 2048, Epilogue::kStore, kAct}, {2048, 2048, Epilogue::kAdd, kAct},
                            {3072, 2048, Epilogue::kStore, kAct}, {14336, 2048, Epilogue::kSwiglu, kAct},
                            {2048, 7168, Epilogue::kAdd, kAct},   {65536, 2048, Epilogue::kStore, DType::kF32}};

const char* name(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kStore:
      return "store";
    case Epilogue::kAdd:
      return "add";
    case Epilogue::kSwiglu:
      return "swiglu";
  }
  return "";
}
std::string name(WgmmaTile tile) {
  return fmt::format("{}x{}/{}{}", tile.rows, tile.columns, tile.cluster, tile.transposed ? " transposed" : "");
}

class Bench {
 public:
  Bench()
      : backend_(make_cuda_backend(0)),
        stream_(dynamic_cast<CudaStream&>(backend_->compute()).native()),
        memory_(*backend_),
        weights_(memory_.allocate(kAct, {kWeights})),
        a_(memory_.allocate(kAct, {std::max(kMaxRows * kMaxDepth, kMaxGroupedRows * kHidden)})),
        out_(memory_.allocate(DType::kF32, {kMaxRows * kMaxColumns})),
        offsets_(memory_.allocate(DType::kI32, {kExperts + 1})) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> noise(size_t{1} << 22);
    for (float& x : noise) x = normal(generator);
    const auto piece = static_cast<int64_t>(noise.size());
    backend_->upload(weights_, 0, DType::kF32, noise.data(), piece);
    for (const Tensor& tensor : {weights_, a_})
      for (int64_t first = 0; first < tensor.numel(); first += piece)
        if (tensor.data != weights_.data || first > 0)
          backend_->copy(backend_->compute(), tensor.data + first * 2, weights_.data,
                         static_cast<size_t>(std::min(piece, tensor.numel() - first)) * 2);
    CUDA_CHECK(cudaMemsetAsync(out_.data, 0, out_.bytes(), stream_));
    CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0));
    std::printf("%s\nm n k epilogue tile us GB/s\n", backend_->description().c_str());
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void dense(int64_t m, const Dense& shape) {
    GemmArgs args{.a = a_.data,
                  .w = {},
                  .bias = {},
                  .out = out_.data,
                  .offsets = nullptr,
                  .m = m,
                  .n = shape.n,
                  .k = shape.k,
                  .groups = 1,
                  .epilogue = shape.epilogue};
    const int64_t elements = shape.n * shape.k;
    const WgmmaTile chosen = choose_wgmma_tile(args, shape.out, multiprocessors_);
    const auto line = [&](const std::string& tile, bool star, const std::function<void()>& launch) {
      const double each = seconds(elements, [&](int64_t first) {
        args.w = {weights_.data + first * 2, kAct};
        launch();
      });
      print(fmt::format("{} {} {} {} {}", m, shape.n, shape.k, name(shape.epilogue), tile), each, elements, star);
    };
    if (m <= 64)
      line("skinny", prefers_skinny(m, shape.n, false), [&] { launch_gemm_skinny(stream_, args, kAct, shape.out); });
    const auto lines = [&](const auto& tiles) {
      for (const WgmmaTile tile : tiles)
        line(name(tile), tile == chosen, [&] { launch_gemm_wgmma(stream_, args, kAct, shape.out, tile); });
    };
    shape.epilogue == Epilogue::kSwiglu ? lines(kWgmmaSwigluTiles) : lines(kWgmmaTiles);
  }

  // The two products of all experts, one after the other, for m rows that fall to experts by chance.
  void grouped(int64_t m) {
    std::mt19937 generator(7);
    std::vector<int32_t> bounds(kExperts + 1);
    for (int64_t row = 0; row < m; ++row) ++bounds[1 + generator() % static_cast<size_t>(kExperts)];
    std::partial_sum(bounds.begin(), bounds.end(), bounds.begin());
    backend_->upload(offsets_, 0, DType::kI32, bounds.data(), offsets_.numel());
    const int64_t up_elements = kExperts * 2 * kExpertFfn * kHidden, down_elements = kExperts * kHidden * kExpertFfn;
    GemmArgs up{.a = a_.data,
                .w = {},
                .bias = {},
                .out = out_.data,
                .offsets = offsets_.as<const int32_t>(),
                .m = m,
                .n = 2 * kExpertFfn,
                .k = kHidden,
                .groups = kExperts,
                .epilogue = Epilogue::kSwiglu};
    GemmArgs down = up;
    down.a = out_.data;
    down.out = out_.data + out_.bytes() / 2;
    down.n = kHidden;
    down.k = kExpertFfn;
    down.epilogue = Epilogue::kStore;
    down.offsets_visible = Visible::kBeforeWait;
    const WgmmaTile chosen = choose_wgmma_tile(up, kAct, multiprocessors_);
    const auto lines = [&](const auto& tiles) {
      for (const WgmmaTile tile : tiles) {
        const double both = seconds(up_elements + down_elements, [&](int64_t first) {
          up.w = {weights_.data + first * 2, kAct};
          down.w = {weights_.data + (first + up_elements) * 2, kAct};
          launch_gemm_wgmma(stream_, up, kAct, kAct, tile);
          launch_gemm_wgmma(stream_, down, kAct, kAct, tile);
        });
        const std::string sizes = fmt::format("{} {}+{} {}+{}", m, up.n, down.n, up.k, down.k);
        print(fmt::format("{} experts {}", sizes, name(tile)), both, up_elements + down_elements, tile == chosen);
      }
    };
    lines(kWgmmaSwigluTiles);
    lines(kWgmmaTransposedTiles);
  }

 private:
  // The median time of work(first), where `first` is the first of `elements` weights, other ones in each call.
  double seconds(int64_t elements, const std::function<void(int64_t)>& work) {
    constexpr int64_t kRead = 400 << 20;  // elements read by a run
    const int64_t copies = kWeights / elements, calls = std::clamp<int64_t>(kRead / elements, 4, 100);
    return time_.seconds(calls, [&](int64_t i) { work(i % copies * elements); });
  }

  static void print(const std::string& what, double seconds, int64_t elements, bool star) {
    std::printf("%s %.2f %.0f%s\n", what.c_str(), seconds * 1e6, static_cast<double>(elements) * 2 / seconds * 1e-9,
                star ? " *" : "");
    std::fflush(stdout);
  }

  std::unique_ptr<Backend> backend_;
  RecordedTime time_{*backend_};
  cudaStream_t stream_;
  TensorMemory memory_;
  Tensor weights_, a_, out_, offsets_;
  int multiprocessors_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (cuda_device_count() == 0) {
    std::puts("no GPU");
    return 77;
  }
  std::vector<int64_t> rows;
  for (int i = 1; i < argc; ++i) rows.push_back(std::clamp<int64_t>(std::stoll(argv[i]), 1, kMaxRows));
  if (rows.empty()) rows = {16, 24, 32, 48, 64, 96, 128, 256, 512, 1024};
  Bench bench;
  for (const Dense& shape : kDense)
    for (const int64_t m : rows) bench.dense(m, shape);
  for (const int64_t m : {64, 128, 256, 1024, 2048, 3072, 4096, 6144, 8192}) bench.grouped(m);
  return 0;
}
