// norm_project_short_conv for fp8 weights with a scale for each row: every block rounds the normed rows, and an
// instruction multiplies its tiles of B, C and z with all of them.
//
// The bits are those of rms_norm to fp8 rows, gemm_fp8.cu and short_conv.cuh, one after the other.
#include "kernels/cuda/fused/few_fp8_rows.h"
#include "kernels/cuda/fused/front_norm.cuh"
#include "kernels/cuda/fused/project_short_conv.cuh"

namespace lfm2 {

namespace {

using namespace projected_conv;

// As in matmul_few_fp8_rows.cu, the next kernels start late.
constexpr Share kShare{kHalf.bytes, true};

template <class T>
class FrontRounding;
template <class T, int kept>
__device__ void convolve_fp8_units(const ProjectShortConvArgs& args, const Layout& layout, const Block& block,
                                   Exchange<kRowGroup, kept> (&exchanges)[2], const FrontRounding<T>& front);

// - operands: those of norm_project_short_conv_kernel, with w [3 hidden, k] of fp8 and a scale for each row.
// - block: norms and rounds all rows (FrontRounding), then processes 16 channels of all tokens at a time.
// - thread: FrontNorm and round_kept_rows define which elements it norms and rounds; then four warps multiply the parts
//   B, C and z together, though the fourth has none, and the first three convolve (convolve_fp8_units). The next one
//   loads.
// - alignment: that of norm_project_short_conv_kernel; k in steps of kFp8KStep.
template <class T, int kept>
__global__ void __launch_bounds__(kNormThreads, 2)
    norm_project_short_conv_fp8_kernel(const __grid_constant__ CUtensorMap w_map,
                                       const __grid_constant__ ProjectShortConvArgs args,
                                       const __grid_constant__ FrontNormArgs norm_args,
                                       const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ Exchange<kRowGroup, kept> exchanges[2];
  __shared__ float scales[kRowGroup];
  pdl_trigger_early(args.product, layout);
  const Fp8Rows rows(shared, scales);
  const int64_t k = args.product.k;
  const Block block = start_block(shared + fp8_row_bytes(k), &w_map, &w_map, layout, fp8_words(k));
  const FrontRounding<T> front(args.product, norm_args, layout, block, rows);
  const int warp = threadIdx.x / 32;
  if (warp == kFp8Warps) {
    load_buffers(
        args.product, &w_map, &w_map, layout, block,
        [&] { return UnitScheduler(args.product, kRowGroup, layout.unit_columns); }, [&] { front.run(); });
  } else if (warp < kFp8Warps) {
    convolve_fp8_units<T>(args, layout, block, exchanges, front);
  } else {
    pdl_wait();
    front.run();
  }
}

// The norm of the rows that the block keeps, and their rounding. All threads of the block call start and finish, or
// run.
template <class T>
class FrontRounding {
 public:
  __device__ FrontRounding(const GemmArgs& product, const FrontNormArgs& norm, const Layout& layout, const Block& block,
                           const Fp8Rows& fp8_rows)
      : rows(fp8_rows),
        kept_(block.kept),
        kept_rows_(layout.kept_rows),
        k_(static_cast<int>(product.k)),
        norm_(product, norm, layout, of_16_bits(block, k_)) {}
  __device__ void start() const { norm_.start(); }
  __device__ void finish() const {
    norm_.finish();
    round_kept_rows<T>(rows, kept_, kept_rows_, k_);
  }
  __device__ void run() const {
    start();
    wait_copies<0>();
    finish();
  }

  const Fp8Rows rows;

 private:
  __device__ static Block of_16_bits(Block block, int k) {
    block.pieces = k / kDepth;
    return block;
  }
  uint32_t kept_;
  int kept_rows_, k_;
  FrontNorm<T> norm_;
};

template <class T, int kept>
__device__ void convolve_fp8_units(const ProjectShortConvArgs& args, const Layout& layout, const Block& block,
                                   Exchange<kRowGroup, kept> (&exchanges)[2], const FrontRounding<T>& front) {
  const int part = threadIdx.x / 32;
  const bool is_part = part < kParts;
  const WgmmaOperand operand(front.rows.address);
  bool normed = false;
  Turn turn;
  int side = 0;  // two units alternate, so that a warp may continue while others still read
  for (int64_t first = int64_t{blockIdx.x} * kTile; first < args.conv.hidden; first += int64_t{gridDim.x} * kTile) {
    Exchange<kRowGroup, kept>& exchange = exchanges[side];
    side ^= 1;
    const int64_t channel = first + threadIdx.x % kTile;
    // No kernel writes weights and index arrays. The states are copied while the sums are computed.
    const ConvWeights<kept> weights(args.conv, channel);
    const ProductBias product_bias(args.product, is_part ? first : first - args.product.n);
    const PastCopies<kRowGroup, kept> past(args, first);  // of the fourth warp: none
    find_tokens(args, exchange.tokens);
    Fp8Factors factors;
    factors.load(args.product, part, is_part ? static_cast<int>(first) : static_cast<int>(args.product.n));
    pdl_wait();
    if (!normed) front.start();
    past.start(exchange);
    if (!normed) {
      wait_copies<1>();  // copies of the states may still be under way
      front.finish();
      normed = true;
    }
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    float sums[1][4] = {};
    multiply_fp8(layout, block, turn, operand, sums);
    if (!is_part) continue;
    factors.scale(front.rows, sums[0]);
    share_sums<T>(product_bias, sums, exchange);
    wait_copies<0>();
    named_barrier<kConvThreads>();
    convolve<T>(args, channel, weights, exchange);
  }
}

template <int kept>
void launch_normed_fp8_rows(cudaStream_t stream, ProjectShortConvArgs args, const FrontNormArgs& norm) {
  GemmArgs& product = args.product;
  constexpr int kUsed = 2 * static_cast<int>(sizeof(Exchange<kRowGroup, kept>)) + kNormBytes +
                        kRowGroup * static_cast<int>(sizeof(float));
  constexpr Share kOwn = kShare.without(kUsed);
  Layout layout = fp8_layout(kParts, false, product.k, kOwn, kept_row_bytes(product.m, product.k), product.m);
  layout.tile_distance = static_cast<int>(args.conv.hidden);
  const CUtensorMap w_map =
      pieces_map(product.w.data, DType::kF8, 1, product.n, product.k, kTile, kFp8Depth, layout.pieces);
  product.n = args.conv.hidden;  // columns of a part
  const auto blocks = std::min<int64_t>(product.n / kTile, device_attribute(cudaDevAttrMultiProcessorCount));
  constexpr auto kernel = norm_project_short_conv_fp8_kernel<__nv_bfloat16, kept>;
  allow_shared_bytes<kernel, kOwn.bytes>();
  launch_dependent("norm_project_short_conv_fp8_kernel", kernel, {blocks, kNormThreads, kOwn.bytes}, stream, w_map,
                   args, norm, layout);
}

}  // namespace

void launch_norm_project_short_conv_fp8(cudaStream_t stream, const ProjectShortConvArgs& args,
                                        const FrontNormArgs& norm) {
  if (args.conv.tokens == 0 || args.conv.hidden == 0) return;
  with_kept(args.conv, [&](auto kept) { launch_normed_fp8_rows<kept()>(stream, args, norm); });
}

}  // namespace lfm2
