// A weight is read from front to back, a piece at a time, and the low-rank products are added to the piece's rows.
#include "weights-tools/model/adapted_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/json/json.h"
#include "base/thread_pool.h"
#include "kernels/cpu/simd/simd.h"
#include "weights-tools/model/copy.h"

namespace lfm2 {

namespace {

constexpr size_t kMaxAdaptingThreads = 16;
constexpr size_t kSkippedElements = size_t{1} << 16;

std::string with_untied_head(const std::string& config_text) {
  OrderedJson json = parse_ordered_json(config_text, "config.json");
  json.erase("tie_embedding");
  json["tie_word_embeddings"] = false;
  return json_text(json, 2) + (config_text.ends_with('\n') ? "\n" : "");
}

class AdaptedSource : public ModelSource {
 public:
  AdaptedSource(std::unique_ptr<ModelSource> source, std::vector<Adapter> adapters, int threads);
  std::string_view form() const override { return source_->form(); }
  std::string file_of(size_t tensor) const override { return source_->file_of(bases_[tensor]); }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override;

 private:
  // An update of a tensor by one of the adapters.
  struct Change {
    size_t adapter;
    const TensorUpdate* update;
  };
  // A term with its factors in memory.
  struct Term {
    std::vector<float> rows;     // [rows of the weight, rank]
    std::vector<float> columns;  // [rank, columns of the weight]
    size_t rank;
    float scale;
  };
  // The position in the weight that is read.
  struct Reading {
    size_t tensor;
    uint64_t elements = 0;                        // that were read
    std::optional<TensorReader> base;             // of the weight; empty if it is replaced
    const Change* replacement = nullptr;          // the last one
    std::map<uint64_t, std::vector<float>> rows;  // that are replaced
    std::vector<Term> terms;
  };

  void untie_head();
  void add_changes(size_t tensor);
  void begin(size_t tensor, uint64_t first_element) const;
  void read_base(std::span<float> into) const;
  Term load(const Change& change, const LowRankTerm& term, const TensorSpec& spec) const;
  const std::vector<float>& factor(size_t adapter, const std::string& tensor) const;
  void replace_rows(std::span<float> piece, uint64_t first, size_t columns) const;
  void add_terms(std::span<float> piece, uint64_t first, size_t columns) const;

  std::unique_ptr<ModelSource> source_;
  std::vector<Adapter> merged_;
  std::vector<size_t> bases_;                      // of tensors_ in the source; of an untied LM head, the embedding
  std::map<size_t, std::vector<Change>> changes_;  // by tensor
  const Simd& simd_;
  mutable std::optional<Reading> reading_;
  // Factors of the layer that is read: those of experts belong to many tensors.
  mutable int64_t factors_layer_ = 0;
  mutable std::map<std::pair<size_t, std::string>, std::vector<float>> factors_;
  mutable ThreadPool threads_;
  mutable std::vector<std::vector<float>> products_;  // [threads], a row each
};

AdaptedSource::AdaptedSource(std::unique_ptr<ModelSource> source, std::vector<Adapter> adapters, int threads)
    : ModelSource(source->config(), source->config_text()),
      source_(std::move(source)),
      merged_(std::move(adapters)),
      simd_(*available_simd().front()),
      threads_(threads > 0
                   ? threads
                   : static_cast<int>(std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxAdaptingThreads))),
      products_(threads_.threads()) {
  tensors_ = source_->tensors();
  left_out_ = source_->left_out();
  adapters_ = source_->adapters();
  for (const Adapter& adapter : merged_) adapters_.push_back(adapter.id());
  for (size_t i = 0; i < tensors_.size(); ++i) bases_.push_back(i);
  if (std::any_of(merged_.begin(), merged_.end(), [](const Adapter& adapter) { return adapter.unties_head(); }))
    untie_head();
  for (size_t i = 0; i < tensors_.size(); ++i) add_changes(i);
}

// The LM head becomes the last tensor, and starts as the embedding.
void AdaptedSource::untie_head() {
  config_text_ = with_untied_head(config_text_);
  config_.tied_embedding = false;
  SourceTensor head = tensors_.front();
  head.spec = model_tensors(config_).back();
  tensors_.push_back(std::move(head));
  bases_.push_back(0);
}

void AdaptedSource::add_changes(size_t i) {
  SourceTensor& tensor = tensors_[i];
  bool is_embedding = bases_[i] != i;  // an LM head is the embedding up to the adapter that unties it
  for (size_t adapter = 0; adapter < merged_.size(); ++adapter) {
    is_embedding = is_embedding && !merged_[adapter].unties_head();
    const auto& updates = merged_[adapter].updates();
    const auto at = updates.find(is_embedding ? std::string(kEmbeddingWeight) : tensor.spec.name);
    if (at != updates.end()) changes_[i].push_back({adapter, &at->second});
  }
  if (!changes_.contains(i)) return;
  tensor.kept_dtype = tensor.kept_dtype.value_or(tensor.dtype);
  tensor.dtype = DType::kF32;
  tensor.bytes = numel(tensor.spec.dims) * sizeof(float);
  tensor.checksum.clear();
}

const std::vector<float>& AdaptedSource::factor(size_t adapter, const std::string& tensor) const {
  const auto [at, added] = factors_.try_emplace({adapter, tensor});
  if (added) at->second = merged_[adapter].read(tensor);
  return at->second;
}

AdaptedSource::Term AdaptedSource::load(const Change& change, const LowRankTerm& term, const TensorSpec& spec) const {
  const std::vector<float>& rows = factor(change.adapter, term.rows.tensor);
  const std::vector<float>& columns = factor(change.adapter, term.columns.tensor);
  const size_t rank = term.rank, height = spec.dims[0], width = spec.dims[1];
  Term loaded{std::vector<float>(height * rank), std::vector<float>(rank * width), rank, term.scale};
  for (size_t x = 0; x < height; ++x)
    for (size_t k = 0; k < rank; ++k)
      loaded.rows[x * rank + k] = rows[term.rows.first + x * term.rows.stride + k * term.rows.rank_stride];
  for (size_t k = 0; k < rank; ++k)
    for (size_t y = 0; y < width; ++y)
      loaded.columns[k * width + y] =
          columns[term.columns.first + y * term.columns.stride + k * term.columns.rank_stride];
  return loaded;
}

void AdaptedSource::begin(size_t tensor, uint64_t first_element) const {
  if (reading_ && reading_->tensor == tensor && reading_->elements == first_element) return;
  const TensorSpec& spec = tensors_[tensor].spec;
  if (spec.layer != factors_layer_) factors_.clear();
  factors_layer_ = spec.layer;
  reading_.emplace(Reading{.tensor = tensor, .base = {}, .rows = {}, .terms = {}});
  for (const Change& change : changes_.at(tensor)) {
    if (change.update->replacement) {
      reading_->replacement = &change;
      reading_->terms.clear();
      reading_->rows.clear();
    }
    for (const auto& [row, place] : change.update->rows) {
      std::vector<float>& values = reading_->rows[row];
      values.resize(spec.dims[1]);
      merged_[change.adapter].read(place.tensor, place.first, values);
    }
    for (const LowRankTerm& term : change.update->terms) reading_->terms.push_back(load(change, term, spec));
  }
  if (reading_->replacement == nullptr) reading_->base.emplace(*source_, bases_[tensor], DType::kF32);
  std::vector<float> skipped(kSkippedElements);
  while (reading_->elements < first_element)
    read_base(std::span(skipped).first(std::min<uint64_t>(skipped.size(), first_element - reading_->elements)));
}

void AdaptedSource::read_base(std::span<float> into) const {
  if (const Change* change = reading_->replacement) {
    const Replacement& whole = *change->update->replacement;
    merged_[change->adapter].read(whole.tensor, whole.first + reading_->elements, into);
  } else {
    for (std::span<std::byte> bytes = std::as_writable_bytes(into); !bytes.empty();)
      bytes = bytes.subspan(reading_->base->next(bytes));
  }
  reading_->elements += into.size();
}

// Replaces what lies in elements [first, first + piece.size()) of the weight.
void AdaptedSource::replace_rows(std::span<float> piece, uint64_t first, size_t columns) const {
  const uint64_t end = first + piece.size();
  for (const auto& [row, values] : reading_->rows) {
    const uint64_t from = std::max(first, row * columns), to = std::min<uint64_t>(end, (row + 1) * columns);
    if (from < to)
      std::copy_n(values.begin() + static_cast<ptrdiff_t>(from - row * columns), to - from,
                  piece.begin() + static_cast<ptrdiff_t>(from - first));
  }
}

// Adds the terms to elements [first, first + piece.size()) of the weight. Threads share its rows.
void AdaptedSource::add_terms(std::span<float> piece, uint64_t first, size_t columns) const {
  const uint64_t first_row = first / columns, end = first + piece.size();
  threads_.parallel_for((end - 1) / columns + 1 - first_row, [&](size_t item, size_t worker) {
    const uint64_t row = first_row + item;
    const uint64_t from = std::max(first, row * columns), to = std::min<uint64_t>(end, (row + 1) * columns);
    const size_t column = from - row * columns, count = to - from;
    float* target = piece.data() + (from - first);
    std::vector<float>& product = products_[worker];
    product.resize(columns);
    for (const Term& term : reading_->terms) {
      simd_.mix({term.rows.data() + row * term.rank, term.columns.data() + column, term.rank, columns, count,
                 product.data()});
      for (size_t i = 0; i < count; ++i) product[i] *= term.scale;
      simd_.add(target, product.data(), target, count);
    }
  });
}

void AdaptedSource::read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const {
  if (!changes_.contains(tensor)) return source_->read(bases_[tensor], first_byte, into);
  expect(first_byte % sizeof(float) == 0 && into.size() % sizeof(float) == 0, "AdaptedSource: half an element");
  if (into.empty()) return;
  const uint64_t first = first_byte / sizeof(float);
  const std::span<float> piece(reinterpret_cast<float*>(into.data()), into.size() / sizeof(float));
  begin(tensor, first);
  read_base(piece);
  if (!reading_->rows.empty()) replace_rows(piece, first, tensors_[tensor].spec.dims[1]);
  if (!reading_->terms.empty()) add_terms(piece, first, tensors_[tensor].spec.dims[1]);
  if (!std::ranges::all_of(piece, [](float x) { return std::isfinite(x); }))
    throw Error(ExitCode::kData,
                fmt::format("{}: {} with its adapters has NaN or infinity, expected finite weights and factors",
                            source_->file_of(bases_[tensor]), tensors_[tensor].spec.name));
}

}  // namespace

std::unique_ptr<ModelSource> adapt(std::unique_ptr<ModelSource> source, const std::vector<std::string>& folders,
                                   int threads) {
  if (folders.empty()) return source;
  if (holds_fp8(*source))
    throw Error(ExitCode::kData,
                fmt::format("{}: is quantised to fp8, expected --dtype fp32, bf16 or fp16 with --adapter: "
                            "the sum with an adapter would need other scales",
                            source->file_of(0)));
  std::vector<Adapter> adapters;
  ModelConfig config = source->config();
  for (const std::string& folder : folders) {
    adapters.emplace_back(folder, config);
    if (adapters.back().unties_head()) config.tied_embedding = false;
  }
  return std::make_unique<AdaptedSource>(std::move(source), std::move(adapters), threads);
}

}  // namespace lfm2
