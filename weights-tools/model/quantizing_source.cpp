// In files scales precede weights, so the scales of a weight are computed and kept before its elements are read again.
#include "weights-tools/model/quantizing_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "base/thread_pool.h"
#include "stage/shards/fp8_tensors.h"
#include "stage/shards/overflow.h"
#include "weights-tools/model/copy.h"
#include "weights-tools/model/read_scales.h"

namespace lfm2 {

namespace {

using Scheme = Quantization::Scheme;

constexpr size_t kPartElements = size_t{1} << 16;  // elements that a thread computes at a time
constexpr size_t kParts = 16;                      // that are read at a time
constexpr std::string_view kWeight = ".weight";

bool is_chosen(const TensorSpec& spec, Fp8Modules modules) {
  return may_be_fp8(spec) && (modules == Fp8Modules::kAll || in_feed_forward(spec));
}

// The names of the linear modules that are not quantised, which compressed-tensors must not treat as fp8.
std::vector<std::string> ignored_modules(const ModelConfig& config, Fp8Modules modules) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : model_tensors(config)) {
    const bool linear = may_be_fp8(spec) || spec.name.ends_with("feed_forward.gate.weight");
    if (linear && !is_chosen(spec, modules)) names.push_back(spec.name.substr(0, spec.name.size() - kWeight.size()));
  }
  names.emplace_back("lm_head");
  return names;
}

std::string with_quantization(const ModelSource& source, Scheme scheme, Fp8Modules modules) {
  const bool block = scheme == Scheme::kBlock;
  OrderedJson activations = {{"dynamic", true}, {"group_size", nullptr}, {"num_bits", 8}};
  activations.update({{"strategy", block ? "group" : "token"}, {"symmetric", true}, {"type", "float"}});
  OrderedJson weights = {{"dynamic", false}, {"group_size", nullptr}, {"num_bits", 8}};
  weights.update({{"observer", "memoryless_minmax"}, {"strategy", name(scheme)}, {"symmetric", true}});
  weights["type"] = "float";
  if (block) {
    activations["group_size"] = kScaleBlock;
    weights["block_structure"] = {kScaleBlock, kScaleBlock};
  }
  const OrderedJson group = {{"format", "float-quantized"},
                             {"input_activations", activations},
                             {"output_activations", nullptr},
                             {"targets", {"Linear"}},
                             {"weights", weights}};
  OrderedJson json = parse_ordered_json(source.config_text(), "config.json");
  json["quantization_config"] = {{"config_groups", {{"group_0", group}}},
                                 {"format", "float-quantized"},
                                 {"global_compression_ratio", nullptr},
                                 {"ignore", ignored_modules(source.config(), modules)},
                                 {"kv_cache_scheme", nullptr},
                                 {"quant_method", "compressed-tensors"},
                                 {"quantization_status", "compressed"},
                                 {"sparsity_config", OrderedJson::object()},
                                 {"transform_config", OrderedJson::object()},
                                 {"version", "0.20.1"}};
  return json_text(json, 2) + (source.config_text().ends_with('\n') ? "\n" : "");
}

// The largest magnitude over 448, but no subnormal, which would lose digits of the quotients.
float scale_of(float largest) {
  return largest == 0 ? 1.0f : std::max(largest / kMaxF8, std::numeric_limits<float>::min());
}

class QuantizingSource : public ModelSource {
 public:
  QuantizingSource(std::unique_ptr<ModelSource> source, Scheme scheme, Fp8Modules modules, Fp8Listener listener,
                   int threads);
  std::string_view form() const override { return source_->form(); }
  std::string file_of(size_t tensor) const override { return source_->file_of(indices_[tensor]); }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override;

 private:
  // The position in the weight that is read.
  struct Reading {
    size_t tensor;
    uint64_t elements = 0;  // that were read
    TensorReader reader;
    Fp8Error error;
  };

  // Elements in the type of the source.
  struct Piece {
    std::span<const std::byte> bytes;
    DType dtype;
    size_t elements() const { return bytes.size() / size_bytes(dtype); }
  };
  // The largest magnitudes of the scales in a part of a piece, and the first element that is not finite.
  struct Largest {
    std::vector<std::pair<size_t, float>> of_scales;
    std::optional<std::pair<size_t, float>> not_finite;
  };

  void read_weight(size_t tensor, uint64_t first_element, std::span<std::byte> into) const;
  void quantize_piece(const Fp8Scales& scales, const Piece& piece, std::byte* out) const;
  const Fp8Scales& scales_of(size_t index) const;
  void add_largest(Fp8Scales& scales, size_t index, uint64_t begin, const Piece& piece) const;
  // Up to `elements` of the tensor that is read.
  Piece next_piece(TensorReader& reader, size_t index, size_t elements) const {
    const DType dtype = source_->tensors()[index].dtype;
    const auto wanted = std::span(piece_).first(std::min(elements, kParts * kPartElements) * size_bytes(dtype));
    return {wanted.first(reader.next(wanted)), dtype};
  }
  // Calls f(part, first) on the threads for each part of a piece, and returns the results in the order of the parts.
  template <class F>
  auto for_each_part(const Piece& piece, F&& f) const {
    const size_t all = piece.elements();
    std::vector<decltype(f(std::span<const float>(), size_t{0}))> results((all + kPartElements - 1) / kPartElements);
    threads_.parallel_for(results.size(), [&](size_t part, size_t worker) {
      const size_t first = part * kPartElements, count = std::min(kPartElements, all - first);
      std::vector<float>& floats = parts_[worker];
      convert(piece.dtype, piece.bytes.data() + first * size_bytes(piece.dtype), DType::kF32, floats.data(), count);
      results[part] = f(std::span<const float>(floats).first(count), first);
    });
    return results;
  }

  std::unique_ptr<ModelSource> source_;
  Fp8Listener listener_;
  std::vector<size_t> indices_;  // of tensors_ in the source; scales have that of their weight
  mutable std::map<size_t, Fp8Scales> scales_;
  mutable std::optional<Reading> reading_;
  mutable std::vector<std::byte> piece_;
  mutable ThreadPool threads_;
  mutable std::vector<std::vector<float>> parts_;  // by thread
};

QuantizingSource::QuantizingSource(std::unique_ptr<ModelSource> source, Scheme scheme, Fp8Modules modules,
                                   Fp8Listener listener, int threads)
    : ModelSource(source->config(), with_quantization(*source, scheme, modules)),
      source_(std::move(source)),
      listener_(std::move(listener)),
      piece_(kPartElements * kParts * sizeof(float)),
      threads_(threads > 0 ? threads
                           : static_cast<int>(std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kParts))),
      parts_(threads_.threads(), std::vector<float>(kPartElements)) {
  config_ = parse_model_config(config_text_, "quantize");
  adapters_ = source_->adapters();
  for (size_t i = 0; i < source_->tensors().size(); ++i) {
    const SourceTensor& tensor = source_->tensors()[i];
    indices_.push_back(i);
    if (!is_chosen(tensor.spec, modules)) {
      tensors_.push_back(tensor);
      continue;
    }
    const TensorSpec scale = scale_spec(tensor.spec, scheme);
    tensors_.push_back({tensor.spec, DType::kF8, numel(tensor.spec.dims), {}});
    tensors_.push_back({scale, DType::kF32, numel(scale.dims) * sizeof(float), {}});
    indices_.push_back(i);
  }
}

void QuantizingSource::read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const {
  if (tensors_[tensor].dtype == DType::kF8) return read_weight(tensor, first_byte, into);
  if (!is_scale(tensors_[tensor].spec)) return source_->read(indices_[tensor], first_byte, into);
  const auto bytes = std::as_bytes(std::span(scales_of(indices_[tensor]).values)).subspan(first_byte, into.size());
  std::copy(bytes.begin(), bytes.end(), into.begin());
}

const Fp8Scales& QuantizingSource::scales_of(size_t index) const {
  const auto at = scales_.find(index);
  if (at != scales_.end()) return at->second;
  Fp8Scales scales(source_->tensors()[index].spec.dims, config_.quantization.scheme);
  TensorReader reader(*source_, index, source_->tensors()[index].dtype);
  for (uint64_t done = 0; reader.left_bytes() > 0;) {
    const Piece piece = next_piece(reader, index, kParts * kPartElements);
    add_largest(scales, index, done, piece);
    done += piece.elements();
  }
  for (float& value : scales.values) value = scale_of(value);
  return scales_.emplace(index, std::move(scales)).first->second;
}

void QuantizingSource::add_largest(Fp8Scales& scales, size_t index, uint64_t begin, const Piece& piece) const {
  const auto find_largest = [&](std::span<const float> part, size_t offset) {
    Largest found;
    scales.for_each_run(begin + offset, part.size(), [&](size_t scale, size_t first, size_t count) {
      int32_t largest = 0;  // magnitudes are in the order of their bits, with infinity and NaN above all others
      for (const float x : part.subspan(first, count))
        largest = std::max(largest, std::bit_cast<int32_t>(x) & 0x7fffffff);
      found.of_scales.emplace_back(scale, std::bit_cast<float>(largest));
      if (std::isfinite(found.of_scales.back().second) || found.not_finite) return;
      while (std::isfinite(part[first])) ++first;
      found.not_finite.emplace(offset + first, part[first]);
    });
    return found;
  };
  for (const Largest& found : for_each_part(piece, find_largest)) {
    if (found.not_finite) {
      const TensorSpec& spec = source_->tensors()[index].spec;
      const auto& [place, value] = *found.not_finite;
      throw Error(ExitCode::kData,
                  fmt::format("{}: tensor {} is {} at {}, expected finite weights", source_->file_of(index), spec.name,
                              value, index_text(begin + place, spec.dims)));
    }
    for (const auto& [scale, largest] : found.of_scales) scales.values[scale] = std::max(scales.values[scale], largest);
  }
}

void QuantizingSource::read_weight(size_t tensor, uint64_t first_element, std::span<std::byte> into) const {
  const size_t index = indices_[tensor];
  const Fp8Scales& scales = scales_of(index);
  if (!reading_ || reading_->tensor != tensor || reading_->elements != first_element) {
    expect(first_element == 0, "QuantizingSource: a weight is read from its front");
    reading_.emplace(Reading{tensor, 0, TensorReader(*source_, index, source_->tensors()[index].dtype), {}});
  }
  while (!into.empty()) {
    const Piece piece = next_piece(reading_->reader, index, into.size());
    quantize_piece(scales, piece, into.data());
    into = into.subspan(piece.elements());
  }
  if (reading_->reader.left_bytes() == 0 && listener_) listener_(tensors_[tensor].spec, reading_->error);
}

void QuantizingSource::quantize_piece(const Fp8Scales& scales, const Piece& piece, std::byte* out) const {
  const auto quantize_part = [&](std::span<const float> part, size_t offset) {
    Fp8Error error{.elements = part.size()};
    scales.for_each_run(reading_->elements + offset, part.size(), [&](size_t scale_index, size_t first, size_t count) {
      const float scale = scales.values[scale_index];
      double squares = 0, error_squares = 0;
      for (size_t i = first; i < first + count; ++i) {
        const F8 fp8 = from_float<F8>(part[i] / scale);
        out[offset + i] = std::byte{fp8.bits};
        const float difference = to_float(fp8) * scale - part[i];
        squares += static_cast<double>(part[i]) * static_cast<double>(part[i]);
        error_squares += static_cast<double>(difference) * static_cast<double>(difference);
        error.largest_error = std::max(error.largest_error, std::fabs(difference));
      }
      error.squares += squares;
      error.error_squares += error_squares;
    });
    return error;
  };
  for (const Fp8Error& error : for_each_part(piece, quantize_part)) reading_->error.add(error);
  reading_->elements += piece.elements();
}

}  // namespace

double Fp8Error::relative_rms() const { return squares > 0 ? std::sqrt(error_squares / squares) : 0; }

void Fp8Error::add(const Fp8Error& other) {
  squares += other.squares;
  error_squares += other.error_squares;
  largest_error = std::max(largest_error, other.largest_error);
  elements += other.elements;
}

std::unique_ptr<ModelSource> quantize(std::unique_ptr<ModelSource> source, Scheme scheme, Fp8Modules modules,
                                      Fp8Listener listener, int threads) {
  if (source->config().quantization.scheme != Scheme::kNone)
    throw Error(ExitCode::kData, fmt::format("{}: is quantised to fp8 already ({}), expected fp32, bf16 or fp16",
                                             source->file_of(0), name(source->config().quantization.method)));
  return std::make_unique<QuantizingSource>(std::move(source), scheme, modules, std::move(listener), threads);
}

}  // namespace lfm2
