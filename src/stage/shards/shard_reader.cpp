// Reads the metadata of shards by the project's own scan, and tensors by plain positioned reads. The HDF5 library reads
// only chunked tensors.
#include "stage/shards/shard_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/checksum.h"
#include "base/json/json.h"
#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/shards/fp8_tensors.h"
#include "stage/shards/shard_folder.h"
#include "stage/shards/shard_format.h"

namespace lfm2 {

namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;

// The type of a dataset. fp8 is unsigned bytes with an attribute; nothing for types that no tensor has.
std::optional<DType> element_type(const h5::ScannedDataset& found, const std::string& where) {
  const h5::ScannedType& type = found.type;
  if (type.dtype) return *type.dtype == DType::kI32 ? std::nullopt : type.dtype;
  const bool bytes = type.kind == h5::ScannedType::Class::kInteger && type.bytes == 1 && !type.is_signed;
  if (!bytes || !found.attributes.contains(shard::kElementTypeAttribute)) return std::nullopt;
  const std::string text = h5::text_of(found.attributes, shard::kElementTypeAttribute, where);
  if (text != shard::kFp8Type)
    throw Error(ExitCode::kData, fmt::format("{}: {} is \"{}\", expected \"{}\"", where, shard::kElementTypeAttribute,
                                             text, shard::kFp8Type));
  return DType::kF8;
}

// Place and type of a dataset, checked so that a plain read of its bytes is safe.
ShardTensor describe(const std::string& tensor, const h5::ScannedDataset& found, const CheckedFile& raw,
                     size_t file_index) {
  const std::string where = fmt::format("{}: tensor {}", raw.path().string(), tensor);
  const auto refuse = [&](const std::string& message) {
    throw Error(ExitCode::kData, fmt::format("{}: {}", where, message));
  };
  const std::optional<DType> dtype = element_type(found, where);
  if (!dtype) refuse(fmt::format("type is {}, expected fp32, bf16, fp16 or fp8", found.type.text()));
  const bool contiguous = found.storage == h5::ScannedDataset::Storage::kContiguous;
  if (!contiguous && found.storage != h5::ScannedDataset::Storage::kChunked)
    refuse("stored neither contiguously nor in chunks");
  ShardTensor result;
  result.spec.name = tensor;
  result.spec.dims = found.dims;
  result.dtype = *dtype;
  result.file = file_index;
  result.offset = found.offset;
  result.bytes = checked_multiply(numel(found.dims), size_bytes(result.dtype), tensor);
  result.contiguous = contiguous;
  result.checksum = h5::text_of(found.attributes, shard::kChecksumAttribute, where);
  if (found.attributes.contains(shard::kCheckpointNameAttribute))
    result.checkpoint_name = h5::text_of(found.attributes, shard::kCheckpointNameAttribute, where);
  return result;
}

}  // namespace

std::map<std::string, std::string> text_files_of(const h5::ScannedAttributes& root, const std::string& where) {
  if (!root.contains(shard::kTextFilesAttribute)) return {};
  const std::string what = fmt::format("{}: {}", where, shard::kTextFilesAttribute);
  const Json json = parse_json(h5::text_of(root, shard::kTextFilesAttribute, where), what);
  if (!json.is_object())
    throw Error(ExitCode::kData, fmt::format("{}: {}, expected a JSON object", what, json_excerpt(json)));
  std::map<std::string, std::string> files;
  for (const auto& [name, checksum] : json.items()) {
    // The names are known ones, so that no shard can name a file elsewhere.
    if (std::find(shard::kTextFiles.begin(), shard::kTextFiles.end(), name) == shard::kTextFiles.end())
      throw Error(ExitCode::kData, fmt::format("{}: unknown file {}, expected {}", what, json_excerpt(Json(name)),
                                               fmt::join(shard::kTextFiles, ", ")));
    const std::string hex = checksum.is_string() ? checksum.get<std::string>() : std::string();
    if (hex.size() != 32 || hex.find_first_not_of("0123456789abcdef") != std::string::npos)
      throw Error(ExitCode::kData,
                  fmt::format("{}: checksum of {} is {}, expected 32 hex digits", what, name, json_excerpt(checksum)));
    files.emplace(name, hex);
  }
  return files;
}

struct ShardSet::Handles {
  std::mutex mutex;
  std::map<size_t, h5::File> files;
};

namespace {

struct OpenShard {
  CheckedFile file;
  h5::Scan scan;
};

OpenShard open_shard(const std::filesystem::path& path) {
  CheckedFile file(path);
  const std::string where = path.string();
  const auto expect_shard = [&](const h5::ScannedAttributes& root) {
    if (!root.contains(shard::kFormatAttribute) || h5::text_of(root, shard::kFormatAttribute, where) != shard::kFormat)
      throw Error(ExitCode::kData, fmt::format("{}: no shard: attribute \"{}\" is not \"{}\"", where,
                                               shard::kFormatAttribute, shard::kFormat));
  };
  h5::Scan scan = h5::scan(file, {.only = {}, .check_root = expect_shard});
  return {std::move(file), std::move(scan)};
}

// Checks the stage numbers of all files before it blames one for its position in the order of names.
void expect_each_stage_once(const std::vector<OpenShard>& shards, const std::filesystem::path& folder) {
  std::map<int64_t, std::string> by_stage;
  int64_t stages = 0;
  for (const OpenShard& shard : shards) {
    const std::filesystem::path& path = shard.file.path();
    const h5::ScannedAttributes& root = shard.scan.attributes;
    const auto of_split = [&](const OpenShard& one) {
      return h5::text_of(one.scan.attributes, shard::kSplitIdAttribute, one.file.path().string());
    };
    if (of_split(shard) != of_split(shards.front())) return;  // which is said later
    stages = h5::integer_of(root, shard::kStagesAttribute, path.string());
    const int64_t stage = h5::integer_of(root, shard::kStageAttribute, path.string());
    if (const auto [at, added] = by_stage.emplace(stage, path.filename().string()); !added)
      throw Error(ExitCode::kData, fmt::format("{}: stage {} stands in {} and in {}, expected one of them",
                                               folder.string(), stage, at->second, path.filename().string()));
  }
  int64_t missing = 0;
  while (by_stage.contains(missing)) ++missing;
  if (missing < stages)
    throw Error(ExitCode::kNoInput, fmt::format("{}: stage {} of {} is missing, expected a file such as {}",
                                                folder.string(), missing, stages, shard::file_name(missing, stages)));
}

}  // namespace

void ShardSet::add_file(CheckedFile file, h5::Scan scan, std::map<std::string, ShardTensor>& found) {
  const std::string where = file.path().string();
  const auto text = [&](const char* name) { return h5::text_of(scan.attributes, name, where); };
  const auto integer = [&](const char* name) { return h5::integer_of(scan.attributes, name, where); };
  if (const int64_t version = integer(shard::kVersionAttribute);
      version != shard::kVersion && version != shard::kFp8Version)
    throw Error(ExitCode::kData, fmt::format("{}: {} is {}, expected {} or {}", where, shard::kVersionAttribute,
                                             version, shard::kVersion, shard::kFp8Version));
  const auto require_same = [&](const char* attribute, auto theirs, auto& ours) {
    if (!files_.empty() && theirs != ours)
      throw Error(ExitCode::kData, fmt::format("{}: {} differs from that of {}: shards of different splits", where,
                                               attribute, files_.front().path().filename().string()));
    ours = std::move(theirs);
  };
  require_same(shard::kSplitIdAttribute, text(shard::kSplitIdAttribute), split_id_);
  require_same(shard::kConfigAttribute, text(shard::kConfigAttribute), config_text_);
  require_same(shard::kTextFilesAttribute, text_files_of(scan.attributes, where), text_files_);
  require_same(shard::kAdaptersAttribute, adapters_of(scan.attributes, where), adapters_);
  const int64_t stage = integer(shard::kStageAttribute), stages = integer(shard::kStagesAttribute);
  if (stage != static_cast<int64_t>(files_.size()))
    throw Error(ExitCode::kData,
                fmt::format("{}: holds stage {} of {}, expected stage {}", where, stage, stages, files_.size()));
  stages_.push_back({integer(shard::kLayerFirstAttribute), integer(shard::kLayerCountAttribute)});
  for (const auto& [tensor, dataset] : scan.datasets) {
    ShardTensor described = describe(tensor, dataset, file, files_.size());
    if (described.dtype == DType::kF8 && integer(shard::kVersionAttribute) != shard::kFp8Version)
      throw Error(ExitCode::kData, fmt::format("{}: tensor {} is fp8, expected {} {}", where, tensor,
                                               shard::kVersionAttribute, shard::kFp8Version));
    if (!found.emplace(tensor, std::move(described)).second)
      throw Error(ExitCode::kData, fmt::format("{}: tensor {} stands in another shard too", where, tensor));
  }
  files_.push_back(std::move(file));
  scans_.push_back(std::move(scan));
}

// Checks the bytes that no checksum covers. Comes last, because the other checks give a better message for the same
// damage.
void ShardSet::check_gaps() {
  for (size_t file = 0; file < files_.size(); ++file) {
    const h5::Scan& scan = scans_[file];
    if (!scan.complete || !scan.attributes.contains(shard::kGapsAttribute)) continue;
    const std::string where = files_[file].path().string();
    if (const std::string gaps = h5::text_of(scan.attributes, shard::kGapsAttribute, where); gaps != shard::kZeroGaps)
      throw Error(ExitCode::kData, fmt::format("{}: {} is \"{}\", expected \"{}\"", where, shard::kGapsAttribute, gaps,
                                               shard::kZeroGaps));
    h5::expect_empty_gaps(files_[file], scan);
  }
  scans_.clear();
}

void ShardSet::match_model(std::map<std::string, ShardTensor>& found) {
  int64_t next_layer = 0;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    if (stages_[stage].first != next_layer || stages_[stage].count < 1 ||
        stages_[stage].count > config_.layers - next_layer)
      throw Error(ExitCode::kData, fmt::format("{}: holds {} layers from {}, expected them to start at {} of {}",
                                               files_[stage].path().string(), stages_[stage].count,
                                               stages_[stage].first, next_layer, config_.layers));
    next_layer = stages_[stage].end();
  }
  if (next_layer != config_.layers)
    throw Error(ExitCode::kData, fmt::format("{}: the shards end with layer {}, expected {}: a stage is missing",
                                             files_.back().path().string(), next_layer - 1, config_.layers - 1));
  FeedForwardTypes types;
  for (TensorSpec& spec : model_tensors(config_)) {
    add_tensor(std::move(spec), found);
    const ShardTensor weight = tensors_.back();
    const std::string where = files_[weight.file].path().string();
    types.add(weight.spec, weight.dtype, where);
    if (weight.dtype != DType::kF8) continue;
    expect_fp8_weight(weight.spec, weight.checkpoint_name, config_.quantization, where);
    add_tensor(scale_spec(weight.spec, config_.quantization.scheme), found);
    expect_scale_type(tensors_.back().spec, tensors_.back().dtype, where);
  }
  if (!found.empty())
    throw Error(ExitCode::kData,
                fmt::format("{}: tensor {} belongs to no part of the model: {} such tensors",
                            files_[found.begin()->second.file].path().string(), found.begin()->first, found.size()));
}

// Moves the tensor from `found` to the end of tensors().
void ShardSet::add_tensor(TensorSpec spec, std::map<std::string, ShardTensor>& found) {
  const auto at = found.find(spec.name);
  if (at == found.end())
    throw Error(ExitCode::kData,
                fmt::format("{}: tensor {} is missing, expected shape {}", files_.front().path().parent_path().string(),
                            spec.name, dims_text(spec.dims)));
  ShardTensor tensor = std::move(at->second);
  found.erase(at);
  const std::string where = fmt::format("{}: tensor {}", files_[tensor.file].path().string(), spec.name);
  if (tensor.spec.dims != spec.dims)
    throw Error(ExitCode::kData,
                fmt::format("{} has shape {}, expected {}", where, dims_text(tensor.spec.dims), dims_text(spec.dims)));
  if (!tensor.checkpoint_name.empty() && !is_checkpoint_name(spec, tensor.checkpoint_name))
    throw Error(ExitCode::kData,
                fmt::format("{}: {} is {}, which is no name of this tensor", where, shard::kCheckpointNameAttribute,
                            json_excerpt(Json(tensor.checkpoint_name))));
  tensor.spec = std::move(spec);
  index_.emplace(tensor.spec.name, tensors_.size());
  tensors_.push_back(std::move(tensor));
}

ShardSet ShardSet::open(const std::filesystem::path& folder) {
  ShardSet set;
  set.handles_ = std::make_shared<Handles>();
  std::map<std::string, ShardTensor> found;
  std::vector<OpenShard> shards;
  for (const auto& path : list_shards(folder)) shards.push_back(open_shard(path));
  expect_each_stage_once(shards, folder);
  for (OpenShard& shard : shards) set.add_file(std::move(shard.file), std::move(shard.scan), found);
  set.config_ = parse_model_config(set.config_text_,
                                   fmt::format("{}: {}", set.files_.front().path().string(), shard::kConfigAttribute));
  set.match_model(found);
  set.check_gaps();
  return set;
}

void ShardSet::leave_out_behind(int64_t layers, ModelEnd end) {
  expect(layers >= 1 && layers <= config_.layers, "ShardSet::leave_out_behind: not layers of the model");
  config_.layers = layers;
  config_.layer_types.resize(static_cast<size_t>(layers));
  config_.dense_layers = std::min(config_.dense_layers, layers);
  config_.end = end;
}

const ShardTensor& ShardSet::find(const std::string& name) const {
  const auto at = index_.find(name);
  expect(at != index_.end(), "ShardSet::find: no such tensor in the model");
  return tensors_[at->second];
}

const ShardTensor* ShardSet::scale_of(const ShardTensor& weight) const {
  return weight.dtype == DType::kF8 ? &find(scale_name(weight.spec.name)) : nullptr;
}

DType ShardSet::choose_dtype(std::optional<DType> wanted) {
  std::set<std::string> fp8;
  for (const ShardTensor& tensor : tensors_)
    if (tensor.dtype == DType::kF8) fp8.insert(tensor.spec.name);
  if (wanted == DType::kF8 && fp8.empty())
    throw Error(ExitCode::kUsage,
                fmt::format("--dtype fp8: {} holds weights in {}, expected fp8: weights-tools quantize MODEL --to fp8 "
                            "--out MODEL-FP8, then weights-tools split MODEL-FP8 --out shards/",
                            files_.front().path().parent_path().string(), name(dtype_of_most_bytes(tensors_))));
  const bool in_fp8 = !wanted || wanted == DType::kF8;
  config_.fp8_weights = in_fp8 ? std::move(fp8) : std::set<std::string>();
  return in_fp8 ? dtype_of_most_bytes(tensors_) : *wanted;
}

void ShardSet::choose_cache_dtype(std::optional<DType> wanted, DType compute) {
  config_.fp8_cache = wanted == DType::kF8;
  if (wanted && !config_.fp8_cache && *wanted != compute)
    throw Error(ExitCode::kUsage,
                fmt::format("--cache-dtype {}: activations are {}, expected auto or fp8, or --dtype {}", name(*wanted),
                            name(compute), name(*wanted)));
}

uint64_t ShardSet::total_bytes() const {
  uint64_t total = 0;
  for (const ShardTensor& tensor : tensors_) total += tensor.bytes;
  return total;
}

void ShardSet::read(const ShardTensor& tensor, uint64_t first_byte, std::span<std::byte> into) const {
  const CheckedFile& file = files_[tensor.file];
  expect(checked_add(first_byte, into.size(), tensor.spec.name) <= tensor.bytes, "ShardSet::read: outside the tensor");
  if (tensor.contiguous) return file.read(tensor.offset + first_byte, into);
  if (into.empty()) return;
  const std::lock_guard lock(handles_->mutex);
  auto at = handles_->files.find(tensor.file);
  if (at == handles_->files.end()) at = handles_->files.emplace(tensor.file, h5::File::open(file)).first;
  // `target` gets the stored type, so the library converts nothing.
  const auto read_rows = [&](uint64_t row, uint64_t rows, std::byte* target) {
    at->second.read_rows(tensor.spec.name, row, rows, h5::file_type(tensor.dtype).get(), target);
  };
  const uint64_t row_bytes = tensor.bytes / tensor.spec.dims.front();
  const uint64_t first_row = first_byte / row_bytes, end_row = (first_byte + into.size() - 1) / row_bytes + 1;
  if (first_byte % row_bytes == 0 && into.size() % row_bytes == 0)
    return read_rows(first_row, end_row - first_row, into.data());
  std::vector<std::byte> rows((end_row - first_row) * row_bytes);
  read_rows(first_row, end_row - first_row, rows.data());
  std::memcpy(into.data(), rows.data() + (first_byte - first_row * row_bytes), into.size());
}

void ShardSet::expect_checksum(const ShardTensor& tensor, const Checksum& found) const {
  if (const std::string hex = found.hex(); hex != tensor.checksum)
    throw Error(ExitCode::kData,
                fmt::format("{}: tensor {} is damaged: checksum {}, expected {}", files_[tensor.file].path().string(),
                            tensor.spec.name, hex, tensor.checksum));
}

void ShardSet::read(const ShardTensor& tensor, const Sink& sink) const {
  std::vector<std::byte> piece(std::min<uint64_t>(kPieceBytes, tensor.bytes));
  Checksum checksum;
  for (uint64_t done = 0; done < tensor.bytes; done += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), tensor.bytes - done));
    read(tensor, done, piece);
    checksum.add(piece);
    sink(done, piece);
  }
  expect_checksum(tensor, checksum);
}

}  // namespace lfm2
