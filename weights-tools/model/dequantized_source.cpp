// Weights are read from front to back, so that their checksums are compared on the way.
#include "weights-tools/model/dequantized_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json/json.h"
#include "stage/shards/fp8_tensors.h"
#include "stage/shards/overflow.h"
#include "weights-tools/model/copy.h"
#include "weights-tools/model/read_scales.h"

namespace lfm2 {

namespace {

constexpr size_t kReadElements = size_t{1} << 16;

std::string without_quantization(const std::string& config_text) {
  OrderedJson json = parse_ordered_json(config_text, "config.json");
  json.erase("quantization_config");
  return json_text(json, 2) + (config_text.ends_with('\n') ? "\n" : "");
}

class DequantizedSource : public ModelSource {
 public:
  DequantizedSource(std::unique_ptr<ModelSource> source, DType dtype)
      : ModelSource(source->config(), without_quantization(source->config_text())),
        source_(std::move(source)),
        dtype_(dtype) {
    config_.quantization = {};
    left_out_ = source_->left_out();
    adapters_ = source_->adapters();
    for (size_t i = 0; i < source_->tensors().size(); ++i) {
      SourceTensor tensor = source_->tensors()[i];
      if (is_scale(tensor.spec)) continue;
      if (tensor.dtype == DType::kF8)
        tensor = {tensor.spec, dtype, checked_multiply(tensor.bytes, size_bytes(dtype), tensor.spec.name), {}};
      tensors_.push_back(std::move(tensor));
      indices_.push_back(i);
    }
  }
  std::string_view form() const override { return source_->form(); }
  std::string file_of(size_t tensor) const override { return source_->file_of(indices_[tensor]); }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override;

 private:
  // The position in the weight that is read.
  struct Reading {
    size_t tensor;
    uint64_t elements = 0;  // that were read
    TensorReader reader;
    Fp8Scales scales;
  };

  void begin(size_t tensor, uint64_t first_element) const;

  std::unique_ptr<ModelSource> source_;
  DType dtype_;
  std::vector<size_t> indices_;  // of tensors_ in the source
  mutable std::optional<Reading> reading_;
};

void DequantizedSource::begin(size_t tensor, uint64_t first_element) const {
  if (reading_ && reading_->tensor == tensor && reading_->elements == first_element) return;
  const size_t index = indices_[tensor];
  reading_.emplace(Reading{tensor, 0, TensorReader(*source_, index, DType::kF8), read_scales(*source_, index)});
  std::vector<std::byte> skipped(kReadElements);
  while (reading_->elements < first_element)
    reading_->elements += reading_->reader.next(
        std::span(skipped).first(std::min<uint64_t>(skipped.size(), first_element - reading_->elements)));
}

void DequantizedSource::read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const {
  if (source_->tensors()[indices_[tensor]].dtype != DType::kF8)
    return source_->read(indices_[tensor], first_byte, into);
  const size_t element_bytes = size_bytes(dtype_);
  expect(first_byte % element_bytes == 0 && into.size() % element_bytes == 0, "DequantizedSource: half an element");
  begin(tensor, first_byte / element_bytes);
  std::vector<std::byte> fp8(std::min(kReadElements, into.size() / element_bytes));
  while (!into.empty()) {
    const size_t count = reading_->reader.next(std::span(fp8).first(std::min(fp8.size(), into.size() / element_bytes)));
    const auto piece = std::span<const std::byte>(fp8).first(count);
    const size_t infinite = with_float_type(dtype_, [&](auto zero) {
      return lfm2::dequantize(reading_->scales, reading_->elements, piece,
                              reinterpret_cast<decltype(zero)*>(into.data()));
    });
    if (infinite < count) {
      const uint64_t element = reading_->elements + infinite;
      throw Error(ExitCode::kData,
                  fmt::format("{}: {}", file_of(tensor),
                              overflow_text(tensors_[tensor].spec, reading_->scales.value(element, piece[infinite]),
                                            element, dtype_)));
    }
    reading_->elements += count;
    into = into.subspan(count * element_bytes);
  }
}

}  // namespace

std::unique_ptr<ModelSource> dequantize(std::unique_ptr<ModelSource> source, DType dtype) {
  return std::make_unique<DequantizedSource>(std::move(source), dtype);
}

}  // namespace lfm2
