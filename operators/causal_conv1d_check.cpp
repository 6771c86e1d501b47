// causal_conv1d_check: the direct causal convolution and its formulation as im2col and a matrix product, compared with
// plain loops on the host and timed. Ends with "valid", or with "INVALID" and exit code 1.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "lfm2_kernels.h"

namespace {

struct Failure {
  int status;
};
void check(int status) {
  if (status != LFM2_OK) throw Failure{status};
}

// Memory on a device.
class Memory {
 public:
  Memory(int device, size_t bytes) : device_(device) { check(lfm2_allocate(device, bytes, &data_)); }
  Memory(int device, const std::vector<float>& values) : Memory(device, values.size() * 4) {
    check(lfm2_copy(device, data_, values.data(), values.size() * 4, nullptr));
  }
  ~Memory() { static_cast<void>(lfm2_release(device_, data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  std::vector<float> values(size_t count) const {
    std::vector<float> host(count);
    check(lfm2_copy(device_, host.data(), data_, count * 4, nullptr));
    return host;
  }

 private:
  int device_;
  void* data_ = nullptr;
};

struct Problem {
  int64_t samples = 1, channels = 64, length = 2048, filter = 4;
  bool with_bias = true, with_silu = true;
  std::vector<float> x, w, bias;

  size_t outputs() const { return static_cast<size_t>(samples * channels * length); }
  void fill(uint32_t seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    x.resize(outputs());
    w.resize(static_cast<size_t>(channels * filter));
    bias.resize(static_cast<size_t>(channels));
    for (std::vector<float>* values : {&x, &w, &bias})
      for (float& value : *values) value = uniform(generator);
  }
};

// Computes the convolution by its definition, in double. `magnitude` gets the sums of the terms' absolute values, with
// which rounding is judged.
void convolve(const Problem& problem, std::vector<double>& y, std::vector<double>& magnitude) {
  for (int64_t row = 0; row < problem.samples * problem.channels; ++row) {
    const int64_t channel = row % problem.channels;
    const float* x = problem.x.data() + row * problem.length;
    const float* w = problem.w.data() + channel * problem.filter;
    for (int64_t t = 0; t < problem.length; ++t) {
      double sum = problem.with_bias ? static_cast<double>(problem.bias[static_cast<size_t>(channel)]) : 0;
      double terms = std::fabs(sum);
      for (int64_t j = 0; j < problem.filter; ++j) {
        const int64_t from = t - (problem.filter - 1) + j;
        if (from < 0) continue;
        const double term = static_cast<double>(w[j]) * static_cast<double>(x[from]);
        sum += term;
        terms += std::fabs(term);
      }
      const auto i = static_cast<size_t>(row * problem.length + t);
      y[i] = problem.with_silu ? sum / (1 + std::exp(-sum)) : sum;
      magnitude[i] = terms;
    }
  }
}

// The number of results that differ by more than the rounding of filter + 8 operations on terms of that magnitude.
size_t errors(const std::vector<float>& actual, const std::vector<double>& expected,
              const std::vector<double>& magnitude, int64_t filter) {
  size_t count = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double allowed = static_cast<double>(filter + 8) * 0x1p-23 * magnitude[i] + 1e-30;
    if (!(std::fabs(static_cast<double>(actual[i]) - expected[i]) <= allowed)) ++count;
  }
  return count;
}

// The mean time of a call, measured after one call that warms up. The number of calls fills about 20 ms. On a GPU the
// calls are queued, and the host waits once.
double microseconds(int device, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const auto timed = [&](int calls) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) work();
    check(lfm2_synchronize(device, nullptr));
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
  };
  timed(1);
  const double once = timed(1);
  return timed(std::clamp(static_cast<int>(20000 / once), 1, 2000));
}

int run(Problem& problem, int device, uint32_t seed, bool host_verification) {
  problem.fill(seed);
  const Memory x(device, problem.x), w(device, problem.w), bias(device, problem.bias);
  const Memory direct(device, problem.outputs() * 4), product(device, problem.outputs() * 4);
  const int64_t shape[3] = {problem.samples, problem.channels, problem.length};
  const int64_t w_shape[2] = {problem.channels, problem.filter};
  lfm2_tensor in, taps, shift, by_direct, by_product;
  check(lfm2_tensor_dense(&in, x.data(), LFM2_FP32, device, 3, shape));
  check(lfm2_tensor_dense(&taps, w.data(), LFM2_FP32, device, 2, w_shape));
  check(lfm2_tensor_dense(&shift, bias.data(), LFM2_FP32, device, 1, w_shape));
  check(lfm2_tensor_dense(&by_direct, direct.data(), LFM2_FP32, device, 3, shape));
  check(lfm2_tensor_dense(&by_product, product.data(), LFM2_FP32, device, 3, shape));
  const lfm2_tensor* add = problem.with_bias ? &shift : nullptr;
  const int activation = problem.with_silu ? LFM2_SILU : LFM2_NONE;
  size_t bytes = 0;
  check(lfm2_causal_conv1d_gemm_workspace(&in, &taps, &bytes));
  const Memory workspace(device, bytes);

  const double direct_time =
      microseconds(device, [&] { check(lfm2_causal_conv1d(&in, &taps, add, &by_direct, activation, nullptr)); });
  const double product_time = microseconds(device, [&] {
    check(lfm2_causal_conv1d_gemm(&in, &taps, add, &by_product, activation, workspace.data(), bytes, nullptr));
  });
  const std::vector<float> direct_values = direct.values(problem.outputs()),
                           product_values = product.values(problem.outputs());

  std::vector<double> expected(problem.outputs()), magnitude(problem.outputs());
  const char* against = "the host";
  double host_time = 0;
  if (host_verification) {
    const auto begin = std::chrono::steady_clock::now();
    convolve(problem, expected, magnitude);
    host_time = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  } else {
    against = "each other";
    expected.assign(direct_values.begin(), direct_values.end());
    std::fill(magnitude.begin(), magnitude.end(), static_cast<double>(problem.filter + 1));  // |x|, |w|, |bias| < 1
  }
  const size_t direct_errors = errors(direct_values, expected, magnitude, problem.filter);
  const size_t product_errors = errors(product_values, expected, magnitude, problem.filter);
  std::printf("compared with %s, %zu results\n", against, problem.outputs());
  std::printf("direct          %10zu errors\n", direct_errors);
  std::printf("im2col + GEMM   %10zu errors\n", product_errors);
  if (host_verification)
    std::printf("host            %10.1f us\n", host_time);
  else
    std::printf("host              not run\n");
  std::printf("direct          %10.1f us\n", direct_time);
  std::printf("im2col + GEMM   %10.1f us, %.1f times the direct one\n", product_time, product_time / direct_time);
  const bool valid = direct_errors + product_errors == 0;
  std::printf("%s\n", valid ? "valid" : "INVALID");
  return valid ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Problem problem;
  std::string device_name = "auto";
  uint32_t seed = 1;
  bool no_host = false, no_bias = false, no_silu = false;
  CLI::App app{"Causal convolution: the direct kernel against im2col and a matrix product, both against the host."};
  app.add_option("--samples", problem.samples, "samples")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--channels", problem.channels, "channels")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--length", problem.length, "time steps")->check(CLI::Range(1, 1 << 30))->capture_default_str();
  app.add_option("--filter", problem.filter, "taps of the filter")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", seed, "seed of the random values")->capture_default_str();
  app.add_option("--device", device_name, "cpu, cuda, or auto: CUDA where there is a GPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--no-host-verification", no_host, "compare the two with each other alone");
  app.add_flag("--no-bias", no_bias, "no bias");
  app.add_flag("--no-silu", no_silu, "no SiLU after it");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 64;
  }
  constexpr double kMaxResults = 1e11;
  if (static_cast<double>(problem.samples) * static_cast<double>(problem.channels) *
          static_cast<double>(problem.length) >
      kMaxResults) {
    std::fprintf(stderr, "causal_conv1d_check: samples x channels x length are more than %g results\n", kMaxResults);
    return 64;
  }
  problem.with_bias = !no_bias;
  problem.with_silu = !no_silu;
  const int gpus = lfm2_device_count();
  if (device_name == "cuda" && gpus == 0) {
    std::fprintf(stderr, "causal_conv1d_check: --device cuda: no GPU found\n");
    return 69;
  }
  const int device = device_name == "cpu" || gpus == 0 ? LFM2_CPU : 0;
  std::printf("causal_conv1d: %lld samples, %lld channels, %lld steps, filter %lld, on %s\n",
              static_cast<long long>(problem.samples), static_cast<long long>(problem.channels),
              static_cast<long long>(problem.length), static_cast<long long>(problem.filter),
              device == LFM2_CPU ? "the CPU" : "GPU 0");
  try {
    return run(problem, device, seed, !no_host);
  } catch (const Failure& failure) {
    std::fprintf(stderr, "causal_conv1d_check: %s\n", lfm2_status_string(failure.status));
    return failure.status == LFM2_NO_MEMORY ? 69 : 70;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "causal_conv1d_check: not enough memory\n");
    return 69;
  }
}
